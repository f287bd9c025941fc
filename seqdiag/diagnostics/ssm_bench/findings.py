"""What the rows of `--mode scan` say together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from seqdiag.diagnostics.ssm_bench.by_scan import Facts, Measured
from seqdiag.diagnostics.ssm_bench.problems import shape_of
from seqdiag.diagnostics.ssm_bench.row import SsmBenchRow
from seqdiag.diagnostics.ssm_bench.selectivity import floor
from seqdiag.diagnostics.ssm_bench.spec import SsmBenchSpec
from seqdiag.units import format_tokens


def conclude(spec: SsmBenchSpec, facts: Facts, rows: Sequence[SsmBenchRow]) -> list[str]:
    """Returns the sentences, those about duality first."""
    longest = max(spec.seq_len)
    scans = [m for m in facts.measured if m.row.kind in spec.kinds]
    findings = [line for kind in spec.kinds for line in _dual(kind, scans, longest)]
    findings += [line for kind in spec.kinds for line in _fastest(spec, facts, kind, longest)]
    findings += _crossovers(spec, facts)
    findings += _sequential(facts)
    findings += _selectivity(rows)
    return findings


def _dual(kind: str, scans: Sequence[Measured], longest: int) -> list[str]:
    """One function in several forms: how far apart they lie, and where."""
    own = [m for m in scans if m.row.kind == kind and m.row.seq_len == longest]
    good = {
        m.row.implementation: m
        for m in own
        if m.row.status == "ok" and m.row.dual_max_error is not None
    }
    lines = []
    if good:
        worst = max(float(m.row.dual_max_error or 0.0) for m in good.values())
        drift = max(
            (m.checked.drift for m in good.values() if m.checked and m.checked.drift), key=max
        )
        start, middle, end = drift
        lines.append(
            f"{kind}: {' = '.join(good)} = step by step, at most {worst:.1g} apart over "
            f"{longest} steps; from float64 {start:.1g}, {middle:.1g} and {end:.1g} in the first, "
            "the middle and the last eighth."
        )
    grown = {m.row.first_divergent_step for m in own if m.row.status == "nonfinite"}
    if grown - {None}:
        first = min(step for step in grown if step is not None)
        lines.append(f"{kind}: the recurrence grows without bound, from step {first} on: no speed.")
    wrong = [m.row.implementation for m in own if m.row.status == "inaccurate"]
    if wrong:
        lines.append(f"{kind}: not the same function: {', '.join(dict.fromkeys(wrong))}.")
    return lines


def _fastest(spec: SsmBenchSpec, facts: Facts, kind: str, longest: int) -> list[str]:
    timed = _timed(facts, kind, longest, spec.pass_[0])
    if not timed:
        return []
    row = min((m.row for m in timed), key=_time)
    shape = shape_of(spec, kind, longest)  # type: ignore[arg-type]
    parts = []
    if row.speedup_ratio is not None and row.implementation != "loop":
        parts.append(f"{row.speedup_ratio:.1f}x the loop")
    if kind == "selective" and row.pass_ == "fwd":
        parts.append(f"{shape.exps / _time(row) / 1e6:.2g} G exp/s")
    if facts.copy_gb_per_s and row.gb_per_s:
        share = row.gb_per_s / facts.copy_gb_per_s
        parts.append(f"{share:.1%} of the {facts.copy_gb_per_s:.3g} GB/s that a copy reaches")
    if row.flop_count and row.min_flop_count and row.flop_count != row.min_flop_count:
        times = row.flop_count / row.min_flop_count
        parts.append(f"{times:.2g} times the operations of the bare recurrence")
    detail = f": {', '.join(parts)}" if parts else ""
    return [f"{kind}: {row.implementation} is the fastest at {longest} steps{detail}."]


def _crossovers(spec: SsmBenchSpec, facts: Facts) -> list[str]:
    """Where each kind's fastest form overtakes attention, from the measured lengths."""
    lines = []
    for pass_ in spec.pass_:
        what = {"fwd": "forward", "bwd": "backward", "both": "training (both passes)"}[pass_]
        for kind in spec.kinds:
            points = []
            for steps in sorted(spec.seq_len):
                ours = _timed(facts, kind, steps, pass_)
                theirs = _timed(facts, "attention", steps, pass_)
                if ours and theirs:
                    points.append((steps, min(ours, key=lambda m: _time(m.row)), theirs[0]))
            if points:
                lines.append(f"{what}, {kind}: {crossover(points)}")
    return lines


def crossover(points: Sequence[tuple[int, Measured, Measured]]) -> str:
    """Returns where the first's time falls below the second's, as a sentence with its interval.

    Between measured lengths log time is taken as linear in log length. Outside them a length is
    extrapolated from the last two, and said to be; the interval is that of the medians.
    """
    logs = [
        (math.log(steps), math.log(_time(ours.row) / _time(theirs.row)), _spread(ours, theirs))
        for steps, ours, theirs in points
    ]
    names = f"{points[-1][1].row.implementation} overtakes attention"
    for (x0, y0, s0), (x1, y1, s1) in itertools.pairwise(logs):
        if y0 > 0 >= y1:
            middle = _root(x0, y0, x1, y1)
            ends = (_root(x0, y0 - s0, x1, y1 - s1), _root(x0, y0 + s0, x1, y1 + s1))
            low, high = (math.exp(min(max(end, x0), x1)) for end in sorted(ends))
            return f"{names} at {math.exp(middle):.0f} steps ({low:.0f} to {high:.0f})."
    shortest, longest = points[0][0], points[-1][0]
    if all(y <= 0 for _, y, _ in logs):
        return f"{points[-1][1].row.implementation} is faster than attention from {shortest} on."
    if len(logs) > 1:
        (x0, y0, _), (x1, y1, _) = logs[-2:]
        if y1 < y0 and y1 > 0:
            beyond = math.exp(_root(x0, y0, x1, y1))
            return f"{names} beyond {longest} steps, near {beyond:.0f} if both go on as measured."
    return f"attention is faster at {longest} steps: measure longer ones."


def _root(x0: float, y0: float, x1: float, y1: float) -> float:
    return x0 - y0 * (x1 - x0) / (y1 - y0) if y1 != y0 else x1


def _spread(*measured: Measured) -> float:
    """Returns the half-width of the 95 % interval of a ratio's logarithm."""
    total = 0.0
    for one in measured:
        if one.timing is not None and one.timing.repeats > 1:
            low, high = one.timing.interval_ms
            total += (math.log(high / low) / 2) ** 2
    return math.sqrt(total)


def _sequential(facts: Facts) -> list[str]:
    """What a recurrent net cannot do at once."""
    lines = []
    for name in dict.fromkeys(name for name, _ in facts.parallel_ratio):
        per_token = {
            m.row.seq_len: m.row.time_per_token_us
            for m in facts.measured
            if m.row.implementation == name and m.row.pass_ == "fwd" and m.row.time_per_token_us
        }
        ratio = facts.parallel_ratio[name, max(s for n, s in facts.parallel_ratio if n == name)]
        costs = ", ".join(
            f"{us:.3g} us a step at {format_tokens(steps or 0)}" for steps, us in per_token.items()
        )
        lines.append(
            f"{name}: {costs}; {ratio:.0%} of that, the products with the input, could run at "
            "once, the rest waits for the step before."
        )
    return lines


def _selectivity(rows: Sequence[SsmBenchRow]) -> list[str]:
    error = {r.kind: r.rel_rms_error for r in rows if r.mode == "selectivity"}
    if set(error) != {"lti", "selective"}:
        return []
    return [
        f"Selective copying: an input-dependent step holds the marked token to "
        f"{error['selective']:.1g}; the best fixed decay leaves an error of {error['lti']:.2f}, "
        f"and no fixed filter less than {floor():.2f}."
    ]


def _timed(facts: Facts, kind: str, steps: int, pass_: str) -> list[Measured]:
    return [
        m
        for m in facts.measured
        if (m.row.kind, m.row.seq_len, m.row.pass_) == (kind, steps, pass_)
        and m.row.status == "ok"
        and m.row.time_ms
    ]


def _time(row: SsmBenchRow) -> float:
    assert row.time_ms is not None
    return row.time_ms
