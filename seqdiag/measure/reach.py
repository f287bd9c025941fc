"""Which inputs an output responds to, and whether one of them lies in its future."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from seqdiag.measure.probes import Run
from seqdiag.measure.replacement import Replacement, Tolerance, after, before, each

SCALES = (1.0, 1e3)
"""Sizes of the inputs, relative to what they are drawn as: large ones beat an additive mask."""
_AMPLIFIED = (1e6, 1e12, 1e24, 1e48, 1e96)
"""Sizes of one replaced input among the others, for responses that are very weak."""
_DRAWS = 3
_ID_DRAWS, _ID_CUTS, _SHORT = 8, 12, 128
"""Draws of token ids, cuts in each, and the length up to which there is more than one draw."""


def cuts_of(seq_len: int) -> list[int]:
    """Returns where a sequence is cut: small and unaligned first, powers of two, the last step."""
    primes = [n for n in range(2, min(seq_len, 4096)) if all(n % p for p in range(2, n))][:600]
    chosen, following = [1], 2.0
    for prime in primes:
        if prime >= following or prime <= 7:
            chosen.append(prime)
            following = prime * 1.9
    edges = [2**i for i in range(3, 40, 2) if 2**i < seq_len]
    cuts = {cut for cut in (*chosen, *edges, seq_len - 1, seq_len // 2 + 1) if 0 < cut < seq_len}
    return sorted(cuts)


@dataclass(frozen=True, slots=True)
class Leak:
    """An output that changes with inputs from `cut` on, which all lie in its future."""

    output: int
    cut: int
    scale: float
    change: float
    """Relative to the output's size."""


def leaks(probe: Replacement, own: Sequence[int], scales: Sequence[float] = SCALES) -> list[Leak]:
    """Returns every output that changes when a suffix that lies in its future is replaced.

    `own[n]` is the last input that output n may see.
    """
    cuts = cuts_of(probe.seq_len)
    if list(own) != list(range(probe.seq_len)):
        # Cuts must fall just after an output's own time: a stride leaves few such places.
        outputs = [0, *cuts_of(len(own))]
        strict = {own[n] + 1 for n in outputs if 0 < own[n] + 1 < probe.seq_len}
        cuts = sorted({*cuts, *strict})
    found: list[Leak] = []
    if not cuts:
        return found
    for scale in scales:
        if not probe.finite(scale):
            continue
        # Size matters to a mask, wherever it is cut.
        chosen = cuts if scale == 1.0 else [*cuts[:: max(1, len(cuts) // 3)][:3], cuts[-1]]
        changed = probe.changes(after(chosen, probe.seq_len), scale).relative
        for cut, row in zip(chosen, changed.tolist(), strict=True):
            found += [
                Leak(n, cut, scale, change)
                for n, change in enumerate(row)
                if own[n] < cut and change > probe.tolerances.leak
            ]
    return found


@dataclass(frozen=True, slots=True)
class Matrix:
    """What every output responds to, by replacing one input at a time."""

    change: Tensor
    """(N, T): the largest change of output n, relative to its size, when input s is replaced."""
    responds: Tensor
    """(N, T): whether that is above rounding."""
    leaks: Tensor
    """(N, T): whether it is far above rounding, as a verdict needs."""
    small: Tensor
    """(N, T): whether inputs of their own size show it; False where only larger ones do."""


def response_matrix(probe: Replacement, scales: Sequence[float] = SCALES) -> Matrix:
    """Returns what single replacements show, over several draws and sizes of the inputs."""
    steps = list(range(probe.seq_len))
    marks = each(steps, probe.seq_len)
    shape = (probe.n_outputs, probe.seq_len)
    largest = torch.zeros(shape, dtype=torch.float64)
    responds = torch.zeros(shape, dtype=torch.bool)
    leaking = torch.zeros(shape, dtype=torch.bool)
    small = torch.zeros(shape, dtype=torch.bool)
    for scale in scales:
        if not probe.finite(scale):
            continue
        for draw in range(_DRAWS if scale == 1.0 else 1):
            changes = probe.changes(marks, scale, draw)
            relative = changes.relative.t().double().nan_to_num(0.0)
            largest = torch.maximum(largest, relative)
            responds |= changes.response.t() > probe.tolerances.response
            leaking |= relative > probe.tolerances.leak
            if scale == 1.0:
                small |= relative > probe.tolerances.leak
    return Matrix(largest, responds, leaking, small)


def amplified(probe: Replacement, output: int, steps: list[int]) -> dict[int, float]:
    """Returns which of `steps` output responds to if they are made large, and how large.

    For responses too weak to be seen among the others: deep nets of small weights. Only for the
    past of the output, since large inputs beat masks that smaller ones do not.
    """
    found: dict[int, float] = {}
    for size in _AMPLIFIED:
        if size > torch.finfo(probe.x.dtype).max ** 0.5:
            break
        for draw in range(2):  # a rectifier passes one sign only
            left = [step for step in steps if step not in found]
            if not left:
                return found
            changes = probe.changes(each(left, probe.seq_len), 1.0, draw, amplify=size)
            response = changes.response[:, output].tolist()
            for step, change in zip(left, response, strict=True):
                if change > probe.tolerances.response:
                    found[step] = size
    return found


def bounds(probe: Replacement, output: int, scale: float = 1.0) -> tuple[int, int] | None:
    """Returns the first and last input that `output` responds to, None if it is to none.

    By replacing prefixes and suffixes, cut where the answer must lie: about log2 T passes.
    """
    length = probe.seq_len

    def responds(marks: Tensor) -> list[bool]:
        response = probe.changes(marks, scale).response[:, output]
        return [change > probe.tolerances.response for change in response.tolist()]

    if not responds(before([length], length))[0]:
        return None
    # The prefix [0, c) matters from some c on; that input is the first one.
    ways = max(2, min(8, probe.x.shape[0]))
    first = _first_true(lambda cuts: responds(before([c + 1 for c in cuts], length)), length, ways)
    back = _first_true(
        lambda cuts: responds(after([length - 1 - c for c in cuts], length)), length, ways
    )
    return first, length - 1 - back


def _first_true(holds: Callable[[list[int]], list[bool]], count: int, ways: int) -> int:
    """Returns the first i < count for which a monotone property holds; it does at the last."""
    low, high = 0, count - 1
    while low < high:
        width = high - low
        asked = sorted({low + width * i // ways for i in range(ways)})
        answers = holds(asked)
        true = [i for i, answer in zip(asked, answers, strict=True) if answer]
        high = min(true, default=high)
        false = [i for i, answer in zip(asked, answers, strict=True) if not answer and i < high]
        low = max(false, default=low - 1) + 1
    return low


def stride_of(first: Sequence[int | None], last: Sequence[int | None], seq_len: int) -> Fraction:
    """Returns the input steps between outputs, from the first and last inputs of each.

    Ends that the sequence cuts off do not count. Raises `ValueError` if nothing tells.
    """
    for ends, cut_at in ((last, seq_len - 1), (first, 0)):
        free = [(n, end) for n, end in enumerate(ends) if end is not None and end != cut_at]
        # Several outputs may share an input: only where a new one begins do both move on.
        free = free[:1] + [b for a, b in itertools.pairwise(free) if a[1] != b[1]]
        free = free[1:] if len(free) > 2 else free
        if len(free) > 1:
            (n_first, low), (n_last, high) = free[0], free[-1]
            return Fraction(high - low, n_last - n_first).limit_denominator(64)
    raise ValueError("no two outputs of which both ends lie inside the sequence")


def lookahead(matrix: Matrix, own: Sequence[int]) -> int | None:
    """Returns max(s - own[n]) over what responds.

    What lies ahead counts only if there is a leak: a response far above rounding.
    """
    seq_len = matrix.change.shape[1]
    lag = torch.arange(seq_len).unsqueeze(0) - torch.tensor(own).unsqueeze(1)
    leak = bool((matrix.leaks & (lag > 0)).any())
    counts = matrix.responds if leak else matrix.responds & (lag <= 0)
    return int(lag[counts].max()) if bool(counts.any()) else None


def shortest_window(mass: Sequence[float], share: float) -> int:
    """Returns the length of the shortest run of steps that holds `share` of the mass."""
    total = math.fsum(mass)
    if not total > 0:
        return 0
    shortest, start, held = len(mass), 0, 0.0
    for end, part in enumerate(mass):
        held += part
        while held - mass[start] >= share * total * (1 - 1e-12) and start < end:
            held -= mass[start]
            start += 1
        if held >= share * total * (1 - 1e-12):
            shortest = min(shortest, end - start + 1)
    return shortest


def ids_lookahead(
    run_ids: Run, own: Sequence[int], vocab: int, seed: int, tolerances: Tolerance
) -> int:
    """Returns how far beyond their own time, `own`, outputs see when later token ids are redrawn.

    Sequences go through one by one, so that what mixes a batch is no leak. A lower bound: 0 if
    none of the draws changed an output before its cut.
    """
    generator = torch.Generator().manual_seed(seed)
    length, furthest = len(own), 0
    cuts = cuts_of(length)
    cuts = sorted({*cuts[:: -(-len(cuts) // _ID_CUTS) or 1], *cuts[-1:]})

    def outputs(ids: Tensor) -> Tensor:
        return run_ids(ids)[0].double().flatten(1)

    with torch.no_grad():
        for _ in range(_ID_DRAWS if length <= _SHORT else 1):
            ids = torch.randint(vocab, (1, length), generator=generator)
            whole = outputs(ids)
            limit = tolerances.leak * whole.abs().max()
            for cut in cuts:
                other = ids.clone()
                other[:, cut:] = torch.randint(vocab, (1, length - cut), generator=generator)
                changed = ((outputs(other) - whole).abs().amax(dim=1) > limit).tolist()
                ahead = [cut - o for o, c in zip(own, changed, strict=True) if c and o < cut]
                furthest = max([furthest, *ahead])
    return furthest
