"""What a layer reads: convolutions, windows, recurrences, and their chains and sums.

For each structure, `reads(outputs, length)` gives the inputs that a set of outputs reads. With a
length the sequence ends there, and what lies beyond is padding; with None time is endless. Output
o of a convolution with kernel k, stride s, dilation d and left padding p reads
o s - p + j d for j < k (Araujo, Norris and Sim 2019, "Computing receptive fields", distill.pub).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol

from seqdiag.predict.receptive_field.positions import Positions, positions, run_of

PadMode = Literal["zeros", "reflect", "replicate", "circular"]


class StructureError(ValueError):
    """A sequence too short for the structure, or paths whose outputs do not fit together."""


class Structure(Protocol):
    """Anything with a receptive field."""

    @property
    def stride(self) -> Fraction:
        """Input steps between two outputs."""
        ...

    def length(self, inputs: int) -> int:
        """Returns how many outputs `inputs` steps give."""
        ...

    def reads(self, outputs: Positions, length: int | None) -> Positions: ...


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution, a pooling layer or, with a kernel of 1, padding alone."""

    kernel: int = 1
    stride_: int = 1
    dilation: int = 1
    left: int = 0
    right: int = 0
    mode: PadMode = "zeros"

    @property
    def stride(self) -> Fraction:
        return Fraction(self.stride_)

    def length(self, inputs: int) -> int:
        room = inputs + self.left + self.right - (self.kernel - 1) * self.dilation - 1
        if room < 0:
            raise StructureError(
                f"a kernel that covers {(self.kernel - 1) * self.dilation + 1} steps needs more "
                f"than {inputs}"
            )
        return room // self.stride_ + 1

    def reads(self, outputs: Positions, length: int | None) -> Positions:
        if not outputs.bits:
            return outputs
        taps = outputs.scaled(self.stride_).smeared(self.kernel, self.dilation)
        return _padded(taps.shifted(-self.left), length, self.mode)


@dataclass(frozen=True, slots=True)
class Transposed:
    """A transposed convolution: input i is written to the outputs i s - crop + j d, j < k.

    An output reads floor(k / s) or ceil(k / s) inputs, according to its phase.
    """

    kernel: int
    stride_: int
    dilation: int = 1
    crop: int = 0
    extra: int = 0
    """Outputs more than (n - 1) s - 2 crop + d (k - 1) + 1, PyTorch's output_padding."""

    @property
    def stride(self) -> Fraction:
        return Fraction(1, self.stride_)

    def length(self, inputs: int) -> int:
        reach = (self.kernel - 1) * self.dilation
        outputs = (inputs - 1) * self.stride_ - 2 * self.crop + reach + self.extra + 1
        if outputs < 1:
            raise StructureError(f"{inputs} steps leave no output of a transposed convolution")
        return outputs

    def reads(self, outputs: Positions, length: int | None) -> Positions:
        taps = range(0, self.kernel * self.dilation, self.dilation)
        read = positions(
            (o + self.crop - tap) // self.stride_
            for o in outputs
            for tap in taps
            if (o + self.crop - tap) % self.stride_ == 0
        )
        read = Positions(read.first, read.bits, outputs.past, outputs.future)
        return _padded(read, length, "zeros")


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of the sequence: `start` outputs cut off before, `stop` after."""

    start: int = 0
    stop: int = 0

    @property
    def stride(self) -> Fraction:
        return Fraction(1)

    def length(self, inputs: int) -> int:
        if inputs <= self.start + self.stop:
            raise StructureError(f"{inputs} steps are cut off altogether")
        return inputs - self.start - self.stop

    def reads(self, outputs: Positions, length: int | None) -> Positions:
        return outputs.shifted(self.start)


@dataclass(frozen=True, slots=True)
class Past:
    """A recurrence, or attention over all of the past: everything up to the output itself."""

    kind: str = "recurrent"

    @property
    def stride(self) -> Fraction:
        return Fraction(1)

    def length(self, inputs: int) -> int:
        return inputs

    def reads(self, outputs: Positions, length: int | None) -> Positions:
        if not outputs.bits:
            return outputs
        if length is None:
            return Positions(outputs.last, 1, past=True, future=outputs.future)
        return run_of(0, outputs.last)


@dataclass(frozen=True, slots=True)
class Everything:
    """Whatever joins all steps: attention without a mask, normalisation over time."""

    kind: str

    @property
    def stride(self) -> Fraction:
        return Fraction(1)

    def length(self, inputs: int) -> int:
        return inputs

    def reads(self, outputs: Positions, length: int | None) -> Positions:
        if length is None:
            return Positions(outputs.first, outputs.bits, past=True, future=True)
        return run_of(0, length - 1)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Attention inside chunks of `size`: the past within the chunk, or all of the chunk."""

    size: int
    causal: bool = True

    @property
    def stride(self) -> Fraction:
        return Fraction(1)

    def length(self, inputs: int) -> int:
        return inputs

    def reads(self, outputs: Positions, length: int | None) -> Positions:
        read = Positions()
        for output in outputs:
            start = output // self.size * self.size
            read = read.union(run_of(start, output if self.causal else start + self.size - 1))
        read = Positions(read.first, read.bits, outputs.past, outputs.future)
        return read if length is None else read.within(length)


@dataclass(frozen=True, slots=True)
class Chain:
    """Layers one after the other, the first next to the input."""

    layers: tuple[Structure, ...]

    @property
    def stride(self) -> Fraction:
        stride = Fraction(1)
        for layer in self.layers:
            stride *= layer.stride
        return stride

    def length(self, inputs: int) -> int:
        for layer in self.layers:
            inputs = layer.length(inputs)
        return inputs

    def reads(self, outputs: Positions, length: int | None) -> Positions:
        lengths: list[int | None] = []
        for layer in self.layers:
            lengths.append(length)
            length = None if length is None else layer.length(length)
        for layer, inputs in zip(reversed(self.layers), reversed(lengths), strict=True):
            outputs = layer.reads(outputs, inputs)
        return outputs


@dataclass(frozen=True, slots=True)
class Parallel:
    """Paths side by side that are added, multiplied or joined: the union of what they read."""

    paths: tuple[Structure, ...]

    @property
    def stride(self) -> Fraction:
        strides = {path.stride for path in self.paths}
        if len(strides) > 1:
            shown = ", ".join(sorted(map(str, strides)))
            raise StructureError(f"paths of strides {shown} are not aligned")
        return strides.pop()

    def length(self, inputs: int) -> int:
        lengths = {path.length(inputs) for path in self.paths}
        if len(lengths) > 1:
            shown = ", ".join(map(str, sorted(lengths)))
            raise StructureError(f"paths of {inputs} steps give {shown} outputs, which do not fit")
        return lengths.pop()

    def reads(self, outputs: Positions, length: int | None) -> Positions:
        read = Positions()
        for path in self.paths:
            read = read.union(path.reads(outputs, length))
        return read


def window(size: int) -> Conv:
    """Returns attention over a sliding window of `size` keys, the step's own included."""
    return Conv(kernel=size, left=size - 1)


def causal_padding(kernel: int, dilation: int, stride: int) -> int:
    """Returns the left padding with which output n ends at input (n + 1) s - 1."""
    return max(0, (kernel - 1) * dilation + 1 - stride)


def _padded(read: Positions, length: int | None, mode: PadMode) -> Positions:
    """Returns where reads beyond the ends of a sequence go: nowhere, or mirrored inside."""
    if length is None:
        return read
    inside = read.within(length)
    if mode == "zeros":
        return inside
    period = max(1, 2 * (length - 1))
    folded = []
    for p in read.outside(length):
        if mode == "circular":
            folded.append(p % length)
        elif mode == "replicate":
            folded.append(min(max(p, 0), length - 1))
        else:
            folded.append(min(p % period, period - p % period) if length > 1 else 0)
    return inside.union(positions(folded))
