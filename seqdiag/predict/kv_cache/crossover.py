"""Where one model's memory reaches another's."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from seqdiag.units import MAX_COUNT


def first_reach(
    subject: Callable[[int], int], other: Callable[[int], int], breakpoints: Iterable[int]
) -> int | None:
    """Returns the smallest context of one token or more at which `subject` >= `other`.

    Both are byte counts, linear in the context between consecutive `breakpoints` (the contexts at
    which windows saturate), so each piece is solved exactly in whole numbers. None: never.
    """

    def gap(tokens: int) -> int:
        return subject(tokens) - other(tokens)

    starts = sorted({1, *(point for point in breakpoints if point > 1)})
    for start, end in zip(starts, [*starts[1:], MAX_COUNT], strict=True):
        if gap(start) >= 0:
            return start
        slope = gap(start + 1) - gap(start) if end > start else 0
        if slope > 0:
            reached = start + -(gap(start) // slope)
            if reached <= end:
                return reached
    return None


_MOST_STEPS = 2000


def first_reach_of_steps(subject: Callable[[int], int], other: Callable[[int], int]) -> int | None:
    """Returns the smallest context of one token or more at which `subject` >= `other`.

    For byte counts that grow in steps, such as pages: both must never fall. Any context that
    reaches needs `subject` to hold at least what `other` holds now, so the search leaps there by
    bisection until it does. None: not within 2^40 tokens or 2000 leaps.
    """
    tokens = 1
    for _ in range(_MOST_STEPS):
        target = other(tokens)
        if subject(tokens) >= target:
            return tokens
        if subject(MAX_COUNT) < target:
            return None
        low, high = tokens, MAX_COUNT
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if subject(middle) >= target else (middle, high)
        tokens = high
    return None
