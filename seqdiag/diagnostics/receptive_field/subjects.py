"""The subjects of a question, ready to be fed at any length."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from seqdiag.diagnostics.receptive_field.inline import inline_name, inline_structure
from seqdiag.diagnostics.receptive_field.spec import ReceptiveFieldSpec
from seqdiag.errors import UsageError
from seqdiag.models.adapting import Fed, Feeding, InputKind, Layout, feed
from seqdiag.models.encoder import Encoder, encoder_names, load_encoder
from seqdiag.models.loading import open_module, user_code
from seqdiag.models.subjects import LINEAR, check_architectures, draw_subjects
from seqdiag.predict.receptive_field import Chain, Structure


@dataclass(frozen=True, slots=True)
class Subject:
    """One module and what is known of its structure."""

    name: str
    module: nn.Module
    structure: Structure | None
    reason: str
    """Why the structure is not known."""
    kind: InputKind
    d_in: int | None
    layout: Layout
    own: bool = False
    """Whether the module is the user's."""
    note: str = ""

    def guarded(self) -> contextlib.AbstractContextManager[None]:
        """Guards what a user's module raises: it is the user's error."""
        return user_code("the forward pass") if self.own else contextlib.nullcontext()

    def fed(
        self,
        spec: ReceptiveFieldSpec,
        seq_len: int,
        batch: int,
        device: torch.device,
        module: nn.Module | None = None,
        alike: bool = True,
    ) -> Fed:
        """Returns the module with `batch` times the same sequence of `seq_len` steps."""
        dtype = getattr(torch, spec.dtype) if module is None else torch.float64
        feeding = Feeding(
            batch=batch,
            seq_len=seq_len,
            dtype=dtype,
            device=device,
            kind=self.kind,
            d_in=self.d_in,
            vocab=spec.vocab,
            layout=self.layout,
            pick=spec.pick,
            alike=alike,
            differentiable=False,
            resampled=True,
        )
        with user_code("feeding the module"):
            return feed(
                self.module if module is None else module,
                feeding,
                torch.Generator().manual_seed(spec.seed),
            )


def count(spec: ReceptiveFieldSpec) -> int:
    """Returns how many subjects there are."""
    if spec.inline or spec.model is not None or spec.hf is not None:
        return 1
    return len(spec.arch or ()) + (spec.pattern is not None)


def subjects(
    spec: ReceptiveFieldSpec, device: torch.device, given: nn.Module | None = None
) -> Iterator[Subject]:
    """Yields every subject, in the dtype asked for."""
    dtype = getattr(torch, spec.dtype)
    if given is not None or spec.model is not None or spec.hf is not None:
        yield _own_module(spec, device, dtype, given)
    elif spec.inline:
        with _drawn_from(spec.seed):
            module = chain_of_convolutions(inline_structure(spec))
        yield _subject(inline_name(spec), module.to(device, dtype).eval(), "bdt", 4)
    else:
        yield from _built_in(spec, device, dtype)


def _subject(name: str, module: nn.Module, layout: Layout, d_in: int) -> Subject:
    from seqdiag.diagnostics.receptive_field.tracing import structure_or_reason

    structure, reason = structure_or_reason(module, "floats", layout)
    return Subject(name, module, structure, reason, "floats", d_in, layout)


def check_names(spec: ReceptiveFieldSpec) -> None:
    """Raises `UsageError` for an unknown architecture."""
    names = tuple(name for name in spec.arch or () if name not in encoder_names())
    if LINEAR in names:
        raise UsageError("--arch: linear is of gradflow; rnn, lstm and gru recur as well")
    if not spec.inline and spec.model is None and spec.hf is None:
        check_architectures(names, spec.subject_options)


def _built_in(
    spec: ReceptiveFieldSpec, device: torch.device, dtype: torch.dtype
) -> Iterator[Subject]:
    names = spec.arch or ()
    encoders = set(names) & set(encoder_names())
    stacks = tuple(name for name in names if name not in encoders)
    _, layers = draw_subjects(stacks, spec.subject_options, 1, 1, spec.seed)
    for name in (*names, *([spec.pattern] if spec.pattern else [])):
        if name in encoders:
            with _drawn_from(spec.seed):
                encoder: nn.Module = Encoder(load_encoder(name), spec.hidden)
            yield _subject(name, encoder.to(device, dtype).eval(), "bdt", encoder.channels)  # type: ignore[arg-type]
        else:
            module = layers[name].to(device, dtype).train(spec.train_mode)
            yield _subject(name, module, "btd", spec.hidden)


def chain_of_convolutions(chain: Chain, width: int = 4) -> nn.Sequential:
    """Returns the chain as linear convolutions of `width` channels, (B, C, T) to (B, C, T')."""
    layers: list[nn.Module] = []
    for layer in chain.layers:
        conv = layer  # only convolutions are described by numbers
        layers.append(nn.ConstantPad1d((conv.left, conv.right), 0.0))  # type: ignore[attr-defined]
        layers.append(
            nn.Conv1d(width, width, conv.kernel, int(conv.stride), dilation=conv.dilation)  # type: ignore[attr-defined]
        )
    return nn.Sequential(*layers)


def _own_module(
    spec: ReceptiveFieldSpec, device: torch.device, dtype: torch.dtype, given: nn.Module | None
) -> Subject:
    from seqdiag.diagnostics.receptive_field.tracing import structure_or_reason

    with _drawn_from(spec.seed):
        name, module, note = open_module(spec.model, spec.model_arg, spec.hf, given)
    if given is not None:
        module = copy.deepcopy(module)
    with user_code(f"casting the module to {dtype}"):
        module = module.to(device, dtype).train(spec.train_mode)
    kind = spec.input
    if kind == "auto":
        kind = "tokens" if any(isinstance(m, nn.Embedding) for m in module.modules()) else "auto"
    follow: InputKind = "floats" if kind == "auto" else kind
    structure, reason = structure_or_reason(module, follow, spec.layout)
    return Subject(
        name, module, structure, reason, spec.input, spec.d_in, spec.layout, own=True, note=note
    )


@contextlib.contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
