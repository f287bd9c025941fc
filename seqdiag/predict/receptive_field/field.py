"""The receptive field of a structure, in numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from seqdiag.predict.receptive_field.positions import Positions, positions
from seqdiag.predict.receptive_field.structure import (
    Chain,
    Conv,
    Everything,
    Parallel,
    Past,
    Structure,
)

LARGEST = 2**24
"""The widest field that is worked out step by step."""


@dataclass(frozen=True, slots=True)
class Field:
    """What the outputs of a structure read."""

    steps: int | None
    """From the first to the last input that one output reads; None where there is no end."""
    count: int | None
    """How many inputs it reads: fewer than `steps` where a dilation leaves holes."""
    stride: Fraction
    """Input steps from one output to the next."""
    offset: int
    """The first input that output 0 would read in endless time, negative inside the padding."""
    lookahead: int | None
    """The last input read, counted from the last of the output's own stride; None: no end."""
    latency: int | None
    """The last input read, counted from the first of the output's own stride."""
    unbounded: str = ""
    """What has no end: `recurrent`, `attention` ..."""

    @property
    def centre(self) -> float | None:
        """The middle of what output 0 reads, in input steps."""
        return None if self.steps is None else self.offset + (self.steps - 1) / 2


def predict_field(structure: Structure, output: int = 0) -> Field:
    """Returns the receptive field of one output in endless time.

    The sizes are those of `output`, whose phase counts after a transposed convolution; look-ahead
    and latency are the largest over all phases. Raises `StructureError` for paths that are not
    aligned.
    """
    stride = structure.stride
    read = structure.reads(positions([output]), None)
    ahead, latency = _ahead(structure, stride)
    offset = structure.reads(positions([0]), None).first
    if read.bounded:
        return Field(read.span, read.count, stride, offset, ahead, latency)
    kinds = ", ".join(dict.fromkeys(_unbounded(structure)))
    return Field(None, None, stride, offset, ahead, latency, kinds)


def _ahead(structure: Structure, stride: Fraction) -> tuple[int | None, int | None]:
    ahead = latency = -math.inf
    for output in range(stride.denominator * 4):
        read = structure.reads(positions([output]), None)
        if read.future:
            return None, None
        start = math.floor(output * stride)
        latency = max(latency, read.last - start)
        ahead = max(ahead, read.last - own_last(output, stride))
    return int(ahead), int(latency)


def own_last(output: int, stride: Fraction) -> int:
    """Returns the last input of the output's own stride: its own time where the stride is 1."""
    start = math.floor(output * stride)
    return start + max(1, math.floor(stride)) - 1


def _unbounded(structure: Structure) -> list[str]:
    if isinstance(structure, Chain | Parallel):
        parts = structure.layers if isinstance(structure, Chain) else structure.paths
        return [kind for part in parts for kind in _unbounded(part)]
    return [structure.kind] if isinstance(structure, Past | Everything) else []


def without_norms(structure: Structure) -> Structure:
    """Returns the structure with normalisation over time left out."""
    if isinstance(structure, Chain):
        return Chain(tuple(map(without_norms, structure.layers)))
    if isinstance(structure, Parallel):
        return Parallel(tuple(map(without_norms, structure.paths)))
    norm = isinstance(structure, Everything) and structure.kind.startswith("normalisation")
    return Conv() if norm else structure


def chain_size(layers: list[Conv]) -> tuple[int, int, int]:
    """Returns (r, S, P) of a chain: size, stride and left padding, all in input steps.

    r = 1 + sum_l (k_l - 1) d_l prod_{i<l} s_i, S = prod s_i, P = sum_l p_l prod_{i<l} s_i
    (Araujo 2019, equations 2 and 7).
    """
    size, stride, padding = 1, 1, 0
    for layer in layers:
        size += (layer.kernel - 1) * layer.dilation * stride
        padding += layer.left * stride
        stride *= layer.stride_
    return size, stride, padding


def skipped_inputs(structure: Structure) -> tuple[int, list[int]]:
    """Returns the stride S and the residues modulo S of inputs that no output ever reads."""
    stride = structure.stride
    if stride.denominator != 1 or stride <= 1:
        return 1, []
    step = int(stride)
    read = structure.reads(Positions(0, 1), None)
    if not read.bounded:
        return step, []
    seen = {position % step for position in read}
    return step, [residue for residue in range(step) if residue not in seen]
