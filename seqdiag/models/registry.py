"""The layers by name. To add one: a class with the contract of `Mixer`, and a line in `MIXERS`.

The letter stands for the layer in a pattern such as `mmmmmmma`.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import Any

from seqdiag.errors import UsageError, unknown
from seqdiag.models.mixer import Mixer


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a layer is, its letter in a pattern, and what it is."""

    path: str
    letter: str
    description: str


_ATTENTION = "seqdiag.models.attention:Attention"

MIXERS = {
    "rnn": Entry("seqdiag.models.recurrent:RNN", "r", "torch.nn.RNN"),
    "lstm": Entry("seqdiag.models.recurrent:LSTM", "L", "torch.nn.LSTM"),
    "gru": Entry("seqdiag.models.recurrent:GRU", "g", "torch.nn.GRU"),
    "s4d": Entry("seqdiag.models.ssm:S4D", "s", "diagonal state space, fixed over time"),
    "lru": Entry("seqdiag.models.ssm:LRU", "u", "linear recurrent unit"),
    "mamba": Entry("seqdiag.models.mamba:Mamba", "m", "selective state space, Mamba"),
    "mamba2": Entry("seqdiag.models.mamba2:Mamba2", "M", "state space dual, Mamba-2"),
    "linear-attention": Entry(
        "seqdiag.models.linear_attention:LinearAttention", "l", "linear attention, elu + 1"
    ),
    "retention": Entry(
        "seqdiag.models.linear_attention:Retention", "t", "linear attention with a fixed decay"
    ),
    "gla": Entry(
        "seqdiag.models.linear_attention:GatedLinearAttention", "G", "gated linear attention"
    ),
    "delta": Entry("seqdiag.models.linear_attention:DeltaNet", "d", "delta rule, DeltaNet"),
    "gated-delta": Entry(
        "seqdiag.models.linear_attention:GatedDeltaNet", "D", "delta rule with a decay"
    ),
    "attention": Entry(_ATTENTION, "a", "causal softmax attention"),
    "sliding-attention": Entry(_ATTENTION, "w", "attention with a sliding window"),
    "short-conv": Entry("seqdiag.models.conv:ShortConv", "c", "depthwise causal convolution"),
    "base-conv": Entry("seqdiag.models.conv:BaseConv", "b", "short convolution times a gate"),
    "dilated-conv": Entry("seqdiag.models.conv:DilatedConv", "v", "dilated causal convolutions"),
    "tcn": Entry("seqdiag.models.conv:TCN", "T", "residual dilated convolutions"),
    "wavenet": Entry("seqdiag.models.conv:WaveNet", "W", "gated dilated convolutions with skips"),
    "none": Entry("seqdiag.models.mixer:Stateless", "-", "no mixing over time"),
}
_OPTIONS: dict[str, dict[str, Any]] = {"sliding-attention": {"window": 16}}
_HEAD_SIZES = ("heads", "head_dim", "key_dim", "value_dim")
LETTERS = {entry.letter: name for name, entry in MIXERS.items()}


def build_mixer(name: str, width: int, options: dict[str, Any] | None = None) -> Mixer:
    """Returns the layer `name` with its options; drawn from torch's global stream.

    Raises `UsageError` for an unknown name or option.
    """
    if name not in MIXERS:
        raise unknown("--arch", name, MIXERS)
    module, _, attribute = MIXERS[name].path.partition(":")
    mixer_type = getattr(importlib.import_module(module), attribute)
    settings = {**_OPTIONS.get(name, {}), **(options or {})}
    try:
        with warnings.catch_warnings():  # a width of no head is refused below
            warnings.simplefilter("ignore")
            mixer: Mixer = mixer_type(width, **settings)
    except TypeError as error:
        raise UsageError(f"{name}: {error}") from None
    except ZeroDivisionError:
        raise UsageError(f"--hidden: {width} is too narrow for {name}") from None
    if any(getattr(mixer, size, 1) < 1 for size in _HEAD_SIZES):
        raise UsageError(f"--hidden: {width} is too narrow for the heads of {name}")
    return mixer


def parse_pattern(pattern: str) -> list[str]:
    """Returns the layers that the letters of `pattern` stand for."""
    names = []
    for letter in pattern:
        if letter not in LETTERS:
            known = ", ".join(f"{key} {name}" for key, name in LETTERS.items())
            raise UsageError(f"--pattern: {pattern!r} holds {letter!r}", hint=f"letters: {known}")
        names.append(LETTERS[letter])
    if not names:
        raise UsageError("--pattern: is empty")
    return names
