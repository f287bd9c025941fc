"""`--mode stream`: a stream that does not end, hour by hour, from measured step costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from seqdiag.diagnostics.ssm_bench import by_step
from seqdiag.diagnostics.ssm_bench.by_step import Step, short
from seqdiag.diagnostics.ssm_bench.row import SsmBenchRow
from seqdiag.diagnostics.ssm_bench.spec import SsmBenchSpec
from seqdiag.report.schema import Status
from seqdiag.units import format_bytes

_SECONDS = 3600
_POSITIONS = (1024, 8192, 32768)
"""Where steps are timed; beyond, a cost that grows is a line through them."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step costs after t others, in ms: `base + slope t`."""

    kind: str
    implementation: str
    base_ms: float
    slope_ms: float
    bytes_base: float
    bytes_slope: float
    status: Status
    note: str

    def between(self, first: int, last: int) -> float:
        """Returns the milliseconds of the steps from `first` up to `last`."""
        steps = last - first
        return self.base_ms * steps + self.slope_ms * steps * (first + last - 1) / 2

    def held(self, steps: int) -> int:
        return round(self.bytes_base + self.bytes_slope * steps)


def count(spec: SsmBenchSpec) -> int:
    return (len(spec.kinds) + ("attention" in spec.against)) * spec.hours


def rows(spec: SsmBenchSpec, device: torch.device, costs: list[Cost]) -> Iterator[SsmBenchRow]:
    """Yields a row for each form and hour."""
    measured: list[Step] = []
    timed = replace(spec, position=_POSITIONS)
    for _ in by_step.rows(timed, device, measured):
        pass
    for kind in dict.fromkeys(step.kind for step in measured):
        own = [step for step in measured if step.kind == kind]
        cost = _cost([step for step in own if step.implementation == own[0].implementation])
        costs.append(cost)
        for hour in range(spec.hours):
            yield _row(spec, cost, hour, device)


def _cost(steps: Sequence[Step]) -> Cost:
    """Fits a line; a recurrence, whose state does not grow, has its mean and no slope."""
    usable = [s for s in steps if s.timing is not None and s.timing.samples_ms]
    first = steps[0]
    if not usable:
        return Cost(first.kind, first.implementation, 0, 0, 0, 0, steps[-1].status, steps[-1].note)
    x = [float(s.position) for s in usable]
    y = [s.timing.median_ms for s in usable if s.timing is not None]
    grows = usable[-1].state_bytes > usable[0].state_bytes
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = 0.0
    if grows and len(usable) > 1:
        spread = sum((a - mean_x) ** 2 for a in x)
        slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
        slope = max(0.0, slope)
    bytes_slope = 0.0
    if grows:
        bytes_slope = (usable[-1].state_bytes - usable[0].state_bytes) / (x[-1] - x[0])
    note = f"a step timed after {', '.join(str(s.position) for s in usable)} others"
    if grows:
        note += ", a line through them beyond"
    return Cost(
        kind=first.kind,
        implementation=first.implementation,
        base_ms=max(0.0, mean_y - slope * mean_x),
        slope_ms=slope,
        bytes_base=usable[0].state_bytes - bytes_slope * x[0],
        bytes_slope=bytes_slope,
        status="ok",
        note=note,
    )


def _row(spec: SsmBenchSpec, cost: Cost, hour: int, device: torch.device) -> SsmBenchRow:
    tokens = _SECONDS * spec.rate
    first, last = hour * tokens, (hour + 1) * tokens
    time_ms = cost.between(first, last) if cost.status == "ok" else None
    note = cost.note
    if time_ms is not None:
        note = f"hour {hour + 1}: {time_ms / 1e3 / _SECONDS:.2%} of real time; {note}"
    return SsmBenchRow(
        implementation=cost.implementation,
        kind=cost.kind,
        pass_="fwd",
        mode="stream",
        batch=spec.batch,
        d_model=spec.d_model,
        d_state=spec.d_state,
        n_heads=spec.heads,
        chunk=None,
        seq_len=tokens,
        position=last,
        dtype=spec.dtype,
        device=device.type,
        time_ms=time_ms,
        time_ms_p10=None,
        time_ms_p90=None,
        repeats=None,
        first_call_ms=None,
        tokens_per_s=spec.batch * tokens / time_ms * 1e3 if time_ms else None,
        time_per_token_us=time_ms / tokens * 1e3 if time_ms is not None else None,
        gb_per_s=None,
        flop_count=None,
        min_flop_count=None,
        peak_bytes=None,
        state_bytes=cost.held(last) if cost.status == "ok" else None,
        max_abs_error=None,
        rel_rms_error=None,
        dual_max_error=None,
        first_divergent_step=None,
        speedup_ratio=None,
        status=cost.status,
        note=note,
    )


def conclude(spec: SsmBenchSpec, costs: Sequence[Cost]) -> list[str]:
    """Says what the first and the last hour cost, and when a form falls behind the stream."""
    tokens = _SECONDS * spec.rate
    lines = []
    for cost in costs:
        if cost.status != "ok":
            continue
        first = cost.between(0, tokens) / 1e3
        last = cost.between((spec.hours - 1) * tokens, spec.hours * tokens) / 1e3
        held = format_bytes(cost.held(spec.hours * tokens))
        line = (
            f"{cost.kind}: hour 1 takes {short(first)} s, hour {spec.hours} {short(last)} s; "
            f"{held} held after {spec.hours} h at {spec.rate} tokens a second"
        )
        if cost.slope_ms > 0:
            behind = (1e3 / spec.rate - cost.base_ms) / cost.slope_ms / tokens
            line += f"; a step outlasts the gap between tokens after {short(max(0.0, behind))} h"
        lines.append(f"{line}.")
    return lines
