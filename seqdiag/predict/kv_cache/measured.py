"""A cache known from runs alone: each tensor's growth is fitted and must be regular."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.engines.base import Engine, copies
from seqdiag.predict.kv_cache.layout import Dtypes, Kept, Part

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeasuredCache(Part):
    """A tensor with min(rate x tokens + offset, most) entries of `entry_bytes` each."""

    path: str = field(compare=False)
    rate: int
    offset: int
    most: int | None
    entry_bytes: int
    kind: ClassVar[str] = "growing"

    def held(self, tokens: int) -> int:
        grown = max(self.rate * tokens + self.offset, 0)
        return grown if self.most is None else min(grown, self.most)

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        return (Kept((self.held(tokens), self.entry_bytes), "pad"),)

    def formula(self, tokens: int) -> str:
        return f"{self.held(tokens)} entries of {self.entry_bytes} bytes, as {self.path}"

    def saturates_at(self) -> int | None:
        return None if self.most is None else -(-(self.most - self.offset) // self.rate)


@dataclass(frozen=True, slots=True)
class MeasuredState(Part):
    """A tensor of a size that no run's length changed."""

    path: str = field(compare=False)
    size: int
    shared: bool
    """Whether all sequences of a batch share it."""
    kind: ClassVar[str] = "fixed"
    is_state: ClassVar[bool] = True

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        return (Kept((self.size,), "pad"),)

    def formula(self, tokens: int) -> str:
        return f"{self.size} bytes, as {self.path}"


class Measured(Engine):
    """What the module itself was seen to hold."""

    name = "measured"
    conventions = "measured: the tensors that the module keeps, by its own dtypes"
    settings_read = frozenset()
    knows_parts = False

    def tensors(self, part: Part, tokens: int, batch: int, dtypes: Dtypes) -> tuple[Kept, ...]:
        assert isinstance(part, MeasuredCache | MeasuredState)
        shared = isinstance(part, MeasuredState) and part.shared
        return copies(part.tensors(tokens), 1 if shared else batch)


def fit(path: str, itemsize: int, runs: Sequence[tuple[int, Shape]], doubled: Shape) -> Part:
    """Returns the part that explains a tensor's shapes after runs of one sequence.

    `runs` are pairs of tokens and shape, in order; `doubled` is the shape after the first of those
    lengths with two sequences. Raises `UsageError` for growth that is not regular: it must be a
    multiple of the tokens, up to a most.
    """
    shapes = [shape for _, shape in runs]
    shared = prod(doubled) == prod(shapes[0])
    if not shared and prod(doubled) != 2 * prod(shapes[0]):
        raise UsageError(
            f"--model: {path} is {shapes[0]} for one sequence and {doubled} for two: it cannot be "
            "sized for a batch"
        )
    varying = {
        axis for shape in shapes for axis in range(len(shape))
        if len(shape) == len(shapes[0]) and shape[axis] != shapes[0][axis]
    }  # fmt: skip
    if len({len(shape) for shape in shapes}) > 1 or len(varying) > 1:
        raise UsageError(
            f"--model: {path} grows along several axes, {_shown(runs)}: a map, not a cache"
        )
    if not varying:
        return MeasuredState(path, prod(shapes[0]) * itemsize, shared)
    if shared:
        raise UsageError(
            f"--model: {path} grows with the tokens but not with the sequences of a batch",
            hint="--layout tbd is for a module that takes time first, as nn.LSTM does unless "
            "batch_first is set",
        )
    (axis,) = varying
    entry = prod(n for i, n in enumerate(shapes[0]) if i != axis) * itemsize
    rate, offset, most = _line([(tokens, shape[axis]) for tokens, shape in runs], path)
    return MeasuredCache(path, rate, offset, most, entry)


def _line(points: Sequence[tuple[int, int]], path: str) -> tuple[int, int, int | None]:
    """Returns rate, offset and most of min(rate x tokens + offset, most) through the points."""
    last = points[-1][1]
    rising = [point for point in points if point[1] < last] or list(points)
    flat = points[len(rising) :]
    if len(flat) == 1:  # the last may still be rising
        rising, flat = list(points), []
    (t0, n0), rate = rising[0], 1
    if len(rising) > 1:
        t1, n1 = rising[1]
        rate = max((n1 - n0) // (t1 - t0), 1)
    offset = n0 - rate * t0
    most = last if flat else None
    # One length below a window tells its rate only if it is one entry a token.
    regular = len(rising) > 1 or not offset
    for tokens, held in points:
        grown = rate * tokens + offset
        regular &= held == (grown if most is None else min(grown, most))
    if not regular:
        shown = ", ".join(f"{n} after {t}" for t, n in points)
        raise UsageError(
            f"--model: {path} does not grow by whole entries a token: {shown} tokens",
            hint="--lengths with other or longer runs may show the rule; a window needs two "
            "lengths beyond it",
        )
    return rate, offset, most


def _shown(runs: Sequence[tuple[int, Shape]]) -> str:
    return ", ".join(f"{shape} after {tokens} tokens" for tokens, shape in runs)
