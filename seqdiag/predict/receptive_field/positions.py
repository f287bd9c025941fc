"""A set of positions in time: the bits of one whole number, and whether it has an end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions `first + i` for each bit i of `bits`, which is odd unless the set is empty."""

    first: int = 0
    bits: int = 0
    past: bool = False
    """Whether every position before the last is in it as well, without a beginning."""
    future: bool = False
    """Whether every position after the first is in it as well, without an end."""

    @property
    def last(self) -> int:
        return self.first + self.bits.bit_length() - 1

    @property
    def bounded(self) -> bool:
        return not (self.past or self.future)

    @property
    def span(self) -> int:
        """Steps from the first to the last."""
        return self.bits.bit_length()

    @property
    def count(self) -> int:
        return self.bits.bit_count()

    def __iter__(self) -> Iterator[int]:
        bits, position = self.bits, self.first
        while bits:
            zeros = (bits & -bits).bit_length() - 1
            position += zeros
            yield position
            bits >>= zeros + 1
            position += 1

    def shifted(self, steps: int) -> Positions:
        return Positions(self.first + steps, self.bits, self.past, self.future)

    def union(self, other: Positions) -> Positions:
        if not (self.bits and other.bits):
            return self if self.bits else other
        first = min(self.first, other.first)
        bits = (self.bits << (self.first - first)) | (other.bits << (other.first - first))
        return Positions(first, bits, self.past or other.past, self.future or other.future)

    def smeared(self, count: int, step: int) -> Positions:
        """Returns every position p + j step for j < count."""
        bits, done = self.bits, 1
        while done < count:
            more = min(done, count - done)
            bits |= bits << (more * step)
            done += more
        return Positions(self.first, bits, self.past, self.future)

    def scaled(self, factor: int) -> Positions:
        """Returns every position p factor."""
        if factor == 1:
            return self
        scaled = positions(p * factor for p in self)
        return Positions(scaled.first, scaled.bits, self.past, self.future)

    def within(self, length: int) -> Positions:
        """Returns the positions from 0 to `length` - 1."""
        bits, first = self.bits, self.first
        if first < 0:
            bits, first = bits >> -first, 0
        bits &= (1 << max(0, length - first)) - 1
        return _trimmed(first, bits)

    def outside(self, length: int) -> list[int]:
        """Returns the positions before 0 and from `length` on."""
        return [p for p in self if not 0 <= p < length]


def positions(items: Iterable[int]) -> Positions:
    """Returns the set of `items`."""
    found = sorted(set(items))
    if not found:
        return Positions()
    digits = bytearray((found[-1] - found[0]) // 8 + 1)
    for item in found:
        digits[(item - found[0]) >> 3] |= 1 << ((item - found[0]) & 7)
    return Positions(found[0], int.from_bytes(digits, "little"))


def run_of(first: int, last: int) -> Positions:
    """Returns the positions from `first` to `last`."""
    return Positions(first, (1 << (last - first + 1)) - 1) if last >= first else Positions()


def _trimmed(first: int, bits: int) -> Positions:
    if not bits:
        return Positions()
    zeros = (bits & -bits).bit_length() - 1
    return Positions(first + zeros, bits >> zeros)
