"""A size against the context as straight pieces: a constant, a slope, and where they change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seqdiag.units import MAX_COUNT

MOST_PIECES = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """`constant + slope * step * ceil(T / step)` bytes for contexts T from `first` to `last`."""

    first: int
    last: int | None
    """None: without end."""
    constant: int
    slope: float
    """Bytes a token; a whole number unless a step's bytes are no multiple of its tokens."""


def pieces(size: Callable[[int], int], step: int) -> list[Piece]:
    """Returns the pieces of `size` from one token on.

    `size` grows only at multiples of `step` tokens, on which it is linear but for bends. Each piece
    is followed by doubling and then bisection to the last multiple that lies on its line. A size
    that goes on bending, such as a sawtooth, is cut off after `MOST_PIECES`: the last has an end.
    """

    def at(steps: int) -> int:
        return size(steps * step)

    last, start = MAX_COUNT // step, 1
    found: list[Piece] = []
    while len(found) < MOST_PIECES:
        origin = at(start)
        rise = at(start + 1) - origin
        end = _end_of_line(at, start, origin, rise, last)
        slope = rise // step if rise % step == 0 else rise / step
        first = (start - 1) * step + 1
        found.append(
            Piece(first, None if end == last else end * step, origin - rise * start, slope)
        )
        if end == last:
            break
        start = end + 1
    return found


def _end_of_line(at: Callable[[int], int], start: int, origin: int, rise: int, last: int) -> int:
    """Returns the last of the steps from `start` on that lie on the line."""

    def on_line(steps: int) -> bool:
        return at(steps) == origin + rise * (steps - start)

    low, reach = start + 1, 2
    while True:
        high = min(start + reach, last)
        if not on_line(high):
            break
        if high == last:
            return last
        low, reach = high, 2 * reach
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if on_line(middle) else (low, middle)
    return low
