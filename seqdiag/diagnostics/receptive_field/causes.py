"""Where a leak starts and which of the usual causes fits."""

from __future__ import annotations

import itertools
import math

from seqdiag.diagnostics.receptive_field.measuring import Measured


def causes(measured: Measured) -> list[str]:
    """Returns where the future gets in and why, as far as the pattern tells."""
    where = _where(measured)
    return [*filter(None, [where]), *_why(measured)]


def _where(measured: Measured) -> str:
    leaking = _leaking(measured)
    able = [n for n in range(measured.n_outputs) if measured.own[n] < measured.seq_len - 1]
    if not leaking or not able:
        return ""
    if measured.matrix is None:
        shown = ", ".join(map(str, leaking[:3]))
        return f"leak at outputs {shown} ..., {leaking[-1]}: cuts were tried, not every input"
    block = _block(measured)
    if block:
        return f"leak inside blocks of {block} steps"
    reach = math.ceil((measured.lookahead or 1) / (measured.stride or 1))
    if leaking[0] == able[0] and leaking[-1] >= able[-1] - reach and _dense(leaking):
        return "leak at every position"
    if leaking[-1] < measured.n_outputs // 2:
        return f"leak only at the start, outputs {leaking[0]} to {leaking[-1]}"
    gaps = {b - a for a, b in itertools.pairwise(leaking)}
    if len(gaps) == 1 and (gap := gaps.pop()) > 1:
        return f"leak at every {gap}th position, from {leaking[0]} on"
    return f"leak at {len(leaking)} of {measured.n_outputs} positions, the first {leaking[0]}"


def _dense(leaking: list[int]) -> bool:
    return len(leaking) == leaking[-1] - leaking[0] + 1


def _leaking(measured: Measured) -> list[int]:
    found = {leak.output for leak in measured.leaks}
    if measured.matrix is not None:
        for n, row in enumerate(measured.matrix.leaks.tolist()):
            if any(row[measured.own[n] + 1 :]):
                found.add(n)
    return sorted(found)


def _ahead(measured: Measured) -> list[int]:
    """Returns how far ahead each output sees, from the matrix."""
    assert measured.matrix is not None
    ahead = []
    for n, row in enumerate(measured.matrix.leaks.tolist()):
        seen = [s for s, leaks in enumerate(row) if leaks]
        ahead.append(max(0, seen[-1] - measured.own[n]) if seen else 0)
    return ahead


def _block(measured: Measured) -> int | None:
    """Returns b if every output sees exactly to the end of its own block of b steps."""
    if measured.matrix is None or measured.stride != 1:
        return None
    ahead = _ahead(measured)
    size = max(ahead) + 1
    length = measured.seq_len
    if not 1 < size <= length // 2:
        return None
    fits = all(a == min((n // size + 1) * size, length) - 1 - n for n, a in enumerate(ahead))
    return size if fits else None


def _why(measured: Measured) -> list[str]:
    found = list(measured.watched.found)
    if measured.watched.normalises and _only_large(measured):
        found.append("only at large inputs: they beat an additive mask; mask with -inf")
    if _block(measured):
        found.append("means or summaries over blocks that hold later steps")
    if found or measured.matrix is None:
        return [f"likely cause: {'; '.join(found)}"] if found else []
    ahead = [a for n, a in enumerate(_ahead(measured)) if measured.own[n] < measured.seq_len - 1]
    steady = set(ahead[: max(1, len(ahead) - max(ahead))])
    if len(steady) == 1 and measured.lookahead == _back(measured):
        found.append(f"padding of {measured.lookahead} on both sides: pad on the left only")
    elif steady == {1}:
        found.append("a mask or a shift that is off by one")
    elif measured.sees_the_end and len(ahead) > 1:
        found.append("something joins all steps: a missing mask, a mean over time, both directions")
    return [f"likely cause: {'; '.join(found)}"] if found else []


def _only_large(measured: Measured) -> bool:
    """Returns whether inputs of their own size show no leak at all."""
    if not measured.leaks or any(leak.scale == 1.0 for leak in measured.leaks):
        return False
    if measured.matrix is None:
        return True
    small = measured.matrix.small.tolist()
    return not any(any(row[measured.own[n] + 1 :]) for n, row in enumerate(small))


def _back(measured: Measured) -> int:
    """Returns how far back the middle output sees."""
    assert measured.matrix is not None
    middle = measured.n_outputs // 2
    seen = [s for s, leaks in enumerate(measured.matrix.leaks[middle].tolist()) if leaks]
    return measured.own[middle] - seen[0] if seen else 0
