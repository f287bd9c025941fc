"""The built-in subjects: layers and stacks drawn from one stream, as the articles draw them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seqdiag.errors import UsageError, unknown
from seqdiag.models.attention import Attention
from seqdiag.models.block import Norm, NormType
from seqdiag.models.mixer import Mixer
from seqdiag.models.recurrent import GRU, LSTM, RNN, Init, LinearRecurrence, initialise
from seqdiag.models.registry import MIXERS, build_mixer, parse_pattern
from seqdiag.models.stack import (
    Stack,
    StackSpec,
    architecture_names,
    load_architecture,
    with_style,
)
from seqdiag.ops.attention import IMPLEMENTATIONS

LINEAR = "linear"
_ARTICLE = ("rnn", "lstm", "gru")


@dataclass(frozen=True, slots=True)
class SubjectOptions:
    """How the built-in subjects are made."""

    width: int
    init: Init = "default"
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    forget_bias: float | None = None
    multipliers: tuple[float, ...] = (0.9, 0.99, 1.0, 1.1)
    depth: int | None = None
    norm: Norm | None = None
    norm_type: NormType | None = None
    pattern: str | None = None
    attn_impl: str | None = None
    """Which implementation attention layers run on; None is PyTorch's."""

    @property
    def stacks(self) -> bool:
        """Whether a single layer is to be stacked in blocks."""
        return not (self.depth is None and self.norm is None and self.norm_type is None)


def architectures() -> dict[str, str]:
    """Returns every built-in subject with what it is."""
    known = {LINEAR: "h_t = a h_{t-1} + x_t, one subject for each --multiplier"}
    known.update((name, entry.description) for name, entry in MIXERS.items())
    known.update((name, f"configs/architectures/{name}.toml") for name in architecture_names())
    return known


def check_architectures(names: tuple[str, ...], options: SubjectOptions) -> None:
    """Raises `UsageError` for an unknown name or an option that none of `names` has."""
    known = architectures()
    for name in names:
        if name not in known:
            raise unknown("--arch", name, known)
    inside = {*names, *(parse_pattern(options.pattern) if options.pattern is not None else ())}
    if options.forget_bias is not None and "lstm" not in inside:
        raise UsageError("--forget-bias is of lstm, which is not among --arch")
    if options.nonlinearity != "tanh" and "rnn" not in inside:
        raise UsageError("--nonlinearity is of rnn, which is not among --arch")
    if options.init != "default" and not {"rnn", "lstm", "gru"} & inside:
        raise UsageError("--init is of rnn, lstm and gru, none of which is among --arch")
    if options.attn_impl is not None:
        known = {name: path for name, path in IMPLEMENTATIONS.items() if name != "reference"}
        if options.attn_impl not in known:
            raise unknown("--attn-impl", options.attn_impl, known)
        for name in set(names) & set(architecture_names()):
            inside |= set(load_architecture(name).layers)
        if not {"attention", "sliding-attention"} & inside:
            raise UsageError("--attn-impl is of attention, which is not among --arch")
    if options.stacks and names == (LINEAR,):
        raise UsageError("--depth and --norm stack layers; linear is one by itself")


def subject_names(names: tuple[str, ...], options: SubjectOptions) -> list[str]:
    """Returns the subjects in order: one for each multiplier of `linear`, and the pattern last."""
    subjects = []
    for name in names:
        subjects += [_linear(a) for a in options.multipliers] if name == LINEAR else [name]
    return subjects + ([options.pattern] if options.pattern is not None else [])


def draw_subjects(
    names: tuple[str, ...], options: SubjectOptions, batch: int, seq_len: int, seed: int
) -> tuple[Tensor, dict[str, Mixer]]:
    """Returns inputs (B, T, D) and the layers by subject name, all in float32.

    One stream seeded by `seed` draws the inputs, then rnn, lstm and gru, asked for or not, as the
    articles do; any other layer is drawn as if it stood alone after the inputs. So a subject does
    not depend on the others. The global stream is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x = torch.randn(batch, seq_len, options.width)
        start = torch.get_rng_state()
        articles = {} if options.stacks else _draw_until(_ARTICLE, names, options)
        layers: dict[str, Mixer] = {}
        for name in names:
            torch.set_rng_state(start)
            if name in articles:
                layers[name] = articles[name]
            elif name == LINEAR:
                for a in options.multipliers:
                    layers[_linear(a)] = LinearRecurrence(options.width, a)
            else:
                layers[name] = _draw(name, options)
        if options.pattern is not None:
            torch.set_rng_state(start)
            layers[options.pattern] = _stack(StackSpec(options.pattern), options)
    return x, layers


def _draw_until(
    order: tuple[str, ...], names: tuple[str, ...], options: SubjectOptions
) -> dict[str, Mixer]:
    """Returns the layers of `order` up to the last one asked for, drawn one after the other."""
    last = max((order.index(name) for name in names if name in order), default=-1)
    return {name: _draw(name, options) for name in order[: last + 1]}


def _linear(multiplier: float) -> str:
    short = f"{multiplier:g}"
    return f"linear({short})" if float(short) == multiplier else f"linear({multiplier!r})"


def _draw(name: str, options: SubjectOptions) -> Mixer:
    if name in architecture_names():
        return _stack(load_architecture(name), options)
    if options.stacks:
        return _stack(StackSpec(MIXERS[name].letter, options={name: _own(name, options)}), options)
    layer = build_mixer(name, options.width, _own(name, options))
    _initialise(layer, options)
    return layer


def _own(name: str, options: SubjectOptions) -> dict[str, object]:
    return {"nonlinearity": options.nonlinearity} if name == "rnn" else {}


def _stack(spec: StackSpec, options: SubjectOptions) -> Stack:
    stack = Stack(options.width, with_style(spec, options.depth, options.norm, options.norm_type))
    for layer in stack.modules():
        _initialise(layer, options)
    return stack


def _initialise(layer: torch.nn.Module, options: SubjectOptions) -> None:
    if options.init != "default" and isinstance(layer, RNN | LSTM | GRU):
        initialise(layer, options.init)
    if options.forget_bias is not None and isinstance(layer, LSTM):
        layer.set_forget_bias(options.forget_bias)
    if options.attn_impl is not None and isinstance(layer, Attention):
        layer.impl = options.attn_impl
