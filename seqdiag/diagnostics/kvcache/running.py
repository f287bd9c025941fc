"""`--model`: a layout from what a module is seen to keep after runs of several lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import nn

from seqdiag.diagnostics.kvcache.spec import KvcacheSpec
from seqdiag.errors import UsageError
from seqdiag.measure.cache import Run, run
from seqdiag.models.adapting import Feeding
from seqdiag.models.loading import open_module
from seqdiag.predict.kv_cache.layout import Layer, Layout, Part
from seqdiag.predict.kv_cache.measured import fit


def measured_layout(spec: KvcacheSpec, given: nn.Module | None = None) -> Layout:
    """Returns what a module keeps, by `spec.lengths`: the one given, or of --model or --hf.

    Each length is run with one sequence, the first with two as well. Raises `UsageError` where
    that shows no regular growth.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        name, module, note = open_module(spec.model, spec.model_arg, spec.hf, given)
    if not isinstance(module, nn.Module):
        raise UsageError(f"MODEL: {module!r:.60} is no preset, path or torch.nn.Module")
    shapes = [(1, tokens) for tokens in spec.lengths] + [(2, spec.lengths[0])]
    runs = [run(module, _feeding(spec, module, *shape)) for shape in shapes]
    lengths = ", ".join(map(str, spec.lengths))
    layout = Layout(
        name=name,
        layers=_layers(runs),
        dtype=str(_floats(module)[0]).removeprefix("torch."),
        source=f"runs of {lengths} tokens",
        measured="; ".join(
            filter(
                None,
                (
                    f"measured by runs of {lengths} tokens on {runs[0].told}",
                    f"a window is seen only if it lies between {spec.lengths[0]} and "
                    f"{spec.lengths[-2]} tokens",
                    note,
                ),
            )
        ),
    )
    if spec.weights != "auto":
        return layout
    weights = [*module.parameters(), *module.buffers()]
    return dataclasses.replace(
        layout,
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
        weights_from="parameters and buffers of the module",
    )


def _feeding(spec: KvcacheSpec, module: nn.Module, batch: int, tokens: int) -> Feeding:
    dtype, device = _floats(module)
    return Feeding(
        batch=batch,
        seq_len=tokens,
        dtype=dtype,
        device=device,
        kind=spec.input,
        d_in=spec.d_in,
        vocab=spec.vocab,
        layout=spec.layout,
    )


def _floats(module: nn.Module) -> tuple[torch.dtype, torch.device]:
    """Returns the dtype and device of the module's numbers."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            return tensor.dtype, tensor.device
    return torch.get_default_dtype(), torch.device("cpu")


def _layers(runs: Sequence[Run]) -> tuple[Layer, ...]:
    """Returns the parts that explain every tensor of the runs, by layer."""
    *single, doubled = runs
    for other in runs[1:]:
        if missing := {held.path for held in other.held} ^ {held.path for held in runs[0].held}:
            raise UsageError(
                f"--model: {min(missing)} is kept after some lengths only: after "
                f"{runs[0].tokens} or {other.tokens} tokens",
                hint="--lengths says how long the runs are",
            )
    shapes = [{held.path: held.shape for held in one.held} for one in single]
    twice = {held.path: held.shape for held in doubled.held}
    layers: dict[str, list[Part]] = {}
    for held in single[0].held:
        grown = [
            (one.tokens, by_path[held.path]) for one, by_path in zip(single, shapes, strict=True)
        ]
        part = fit(held.path, held.itemsize, grown, twice[held.path])
        layers.setdefault(_layer_of(held.path), []).append(part)
    return tuple(Layer(tuple(parts)) for parts in layers.values())


def _layer_of(path: str) -> str:
    """Returns what the tensors of a layer share: the path up to its first number, or its parent."""
    names = path.split(".")
    for index, name in enumerate(names[:-1]):
        if name.isdigit():
            return ".".join(names[: index + 1])
    return ".".join(names[:-1])
