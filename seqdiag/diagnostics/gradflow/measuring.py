"""From a question to gradient profiles, one subject and seed at a time."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqdiag.diagnostics.gradflow.spec import GradflowSpec
from seqdiag.errors import UsageError
from seqdiag.measure.lyapunov import leading_exponent
from seqdiag.measure.probes import Profile, input_gradient, profile_as, profile_float64
from seqdiag.models.adapting import Feeding, feed
from seqdiag.models.loading import build_model, user_code
from seqdiag.models.recurrent import Recurrent
from seqdiag.models.subjects import draw_subjects
from seqdiag.report.schema import Status


@dataclass(frozen=True, slots=True)
class Measured:
    """One subject at one seed: its profile, or why there is none."""

    subject: str
    seed: int
    profile: Profile | None
    lyapunov: float | None = None
    status: Status = "ok"
    note: str = ""


def measure(spec: GradflowSpec, device: torch.device) -> Iterator[Measured]:
    """Yields every subject of `spec`, seed by seed."""
    return _measure_model(spec, device) if spec.model is not None else _measure_layers(spec, device)


def _measure_layers(spec: GradflowSpec, device: torch.device) -> Iterator[Measured]:
    """Yields the built-in subjects, seed by seed."""
    for seed in spec.all_seeds:
        x, layers = draw_subjects(
            spec.architectures, spec.recurrent_options, spec.batch, spec.seq_len, seed
        )
        for name, layer in layers.items():
            yield _measure_layer(spec, name, seed, layer.to(device), x.to(device))


def _measure_layer(
    spec: GradflowSpec, name: str, seed: int, layer: Recurrent, x: Tensor
) -> Measured:
    dtype = getattr(torch, spec.dtype)
    exact = copy.deepcopy(layer).double()

    def measure_exactly() -> Profile:
        return profile_float64(exact, x.double(), exact)

    try:
        if dtype == torch.float64:
            profile = measure_exactly()
        else:
            profile = profile_as(input_gradient(layer.to(dtype), x.to(dtype)), measure_exactly)
    except RuntimeError as error:  # a kernel that the dtype does not have on this device
        return Measured(name, seed, None, status="unsupported", note=_first_line(error))
    lyapunov = leading_exponent(exact, x.double()) if spec.by == "summary" else None
    return Measured(name, seed, profile, lyapunov)


def _measure_model(spec: GradflowSpec, device: torch.device) -> Iterator[Measured]:
    """Yields the user's module, built anew for each seed."""
    assert spec.model is not None
    name = spec.model.rpartition(":")[2]
    arguments = _parse_arguments(spec.model_arg)
    dtype = getattr(torch, spec.dtype)
    for seed in spec.all_seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = build_model(spec.model, arguments).to(device).train(spec.train_mode)
            profile = _profile_model(spec, module, dtype, seed)
        yield Measured(name, seed, profile)


def _profile_model(spec: GradflowSpec, module: nn.Module, dtype: torch.dtype, seed: int) -> Profile:
    def fed_as(module: nn.Module, dtype: torch.dtype) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        device = next(module.parameters(), torch.zeros(())).device
        feeding = Feeding(
            batch=spec.batch,
            seq_len=spec.seq_len,
            dtype=dtype,
            device=device,
            kind=spec.input,
            d_in=spec.d_in,
            vocab=spec.vocab,
            layout=spec.layout,
            pick=spec.pick,
        )
        fed = feed(module, feeding, torch.Generator().manual_seed(seed))
        return fed.run, fed.inputs

    def measure_exactly() -> Profile:
        with user_code("casting the module to float64"):
            exact = copy.deepcopy(module).double()
        return profile_float64(*fed_as(exact, torch.float64))

    if dtype == torch.float64:
        return measure_exactly()
    return profile_as(input_gradient(*fed_as(module.to(dtype), dtype)), measure_exactly)


def _parse_arguments(pairs: Sequence[str]) -> dict[str, object]:
    """Returns `key=value` pairs; a value is a TOML number, boolean or string, else the text."""
    arguments: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"--model-arg: {pair!r} is not key=value")
        try:
            arguments[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            arguments[key] = {"true": True, "false": False}.get(text, text)
    return arguments


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
