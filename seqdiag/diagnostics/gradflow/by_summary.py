"""`--by summary`: a row for each subject, over one seed or many."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from seqdiag.diagnostics.gradflow.measuring import Measured, profiles
from seqdiag.diagnostics.gradflow.spec import GradflowSpec
from seqdiag.diagnostics.gradflow.subjects import Subject
from seqdiag.measure.decay import decay_per_step, horizon
from seqdiag.report.schema import Status, column

PLOT = None

_DECAY = "factor by which the gradient changes per step back (Theil-Sen slope of its log)"
_HORIZON = "largest lag whose gradient is --horizon-ratio of the last step's or more"
_LYAPUNOV = "leading Lyapunov exponent per step; recurrent subjects only"
_REACHES = "whether the horizon is the whole sequence: then it may be longer"
_LOW, _HIGH = "5th percentile over seeds", "95th percentile over seeds"


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """How fast one subject's gradient decays."""

    subject: str = column("architecture, or the factory of --model", identity=True)
    seed: int = column("seed of inputs and weights", identity=True)
    seq_len: int = column("steps in the sequence", identity=True)
    decay_per_step_ratio: float | None = column(_DECAY)
    horizon_steps: int | None = column(_HORIZON)
    lyapunov_per_step: float | None = column(_LYAPUNOV)
    reaches_start: bool | None = column(_REACHES)
    status: Status = column("ok, or why there is no number")
    note: str = column("what limits the numbers")


@dataclass(frozen=True, slots=True)
class SpreadRow:
    """How fast one subject's gradient decays, over seeds."""

    subject: str = column("architecture, or the factory of --model", identity=True)
    seed: int = column("first seed of inputs and weights", identity=True)
    seeds: int = column("how many seeds", identity=True)
    seq_len: int = column("steps in the sequence", identity=True)
    decay_per_step_ratio: float | None = column(_DECAY)
    decay_per_step_ratio_p05: float | None = column(_LOW)
    decay_per_step_ratio_p95: float | None = column(_HIGH)
    horizon_steps: float | None = column(_HORIZON)
    horizon_steps_p05: float | None = column(_LOW)
    horizon_steps_p95: float | None = column(_HIGH)
    lyapunov_per_step: float | None = column(_LYAPUNOV)
    lyapunov_per_step_p05: float | None = column(_LOW)
    lyapunov_per_step_p95: float | None = column(_HIGH)
    reaches_start: bool | None = column(f"{_REACHES}, at the median seed")
    status: Status = column("ok, or why there is no number")
    note: str = column("what limits the numbers")


def row_type(spec: GradflowSpec) -> type:
    return SpreadRow if spec.seeds > 1 else SummaryRow


def count(spec: GradflowSpec) -> int:
    return spec.n_subjects


def headline(spec: GradflowSpec) -> None:
    return None


def rows(spec: GradflowSpec, subjects: Iterator[Subject]) -> Iterator[SummaryRow | SpreadRow]:
    """Yields a row as each subject is done; over many seeds, when all are."""
    if spec.seeds == 1:
        for one in profiles(spec, subjects):
            yield _summary(spec, one)
        return
    by_subject: dict[str, list[SummaryRow]] = {}
    for one in profiles(spec, subjects):
        by_subject.setdefault(one.subject, []).append(_summary(spec, one))
    for subject, summaries in by_subject.items():
        yield _spread(spec, subject, summaries)


def conclude(spec: GradflowSpec, rows: Sequence[SummaryRow | SpreadRow]) -> list[str]:
    """Says which horizons are cut short and what the two rates mean."""
    findings = [
        f"{row.subject}: the horizon is the whole sequence; --seq-len {4 * spec.seq_len} shows "
        "whether it ends."
        for row in rows
        if row.reaches_start
    ]
    if fitted := _by_slope(spec, rows):
        findings.append(
            f"At its slope alone the gradient would fall to {spec.horizon_ratio:g} in {fitted}; "
            "horizon_steps is measured, transients included."
        )
    if any(row.lyapunov_per_step is not None for row in rows):
        findings.append(
            "exp(lyapunov_per_step) is the long-run rate of the state's Jacobian, "
            "decay_per_step_ratio the rate seen from the inputs of this sequence."
        )
    if spec.seeds == 1:
        findings.append("One draw of the weights: --seeds 20 shows the spread.")
    return findings


def _by_slope(spec: GradflowSpec, rows: Sequence[SummaryRow | SpreadRow]) -> str:
    """Returns the steps that the slope predicts, for the subjects that decay."""
    return ", ".join(
        f"{math.log(spec.horizon_ratio) / math.log(row.decay_per_step_ratio):.0f} ({row.subject})"
        for row in rows
        if row.decay_per_step_ratio and row.decay_per_step_ratio < 0.999
    )


def _summary(spec: GradflowSpec, one: Measured) -> SummaryRow:
    status, note = one.status, one.note
    decay = reached = None
    if one.profile is not None:
        log10 = one.profile.log10_norms
        if any(math.isnan(value) for value in log10):
            status, note = "nonfinite", "the gradient is not a number at some step"
        else:
            decay, reached = decay_per_step(log10), horizon(log10, spec.horizon_ratio)
            note = "; ".join(filter(None, (one.note, _limits(spec, one))))
    return SummaryRow(
        subject=one.subject,
        seed=one.seed,
        seq_len=one.steps or spec.seq_len,
        decay_per_step_ratio=decay,
        horizon_steps=reached,
        lyapunov_per_step=one.lyapunov,
        reaches_start=None if reached is None else reached == one.steps - 1,
        status=status,
        note=note,
    )


def _limits(spec: GradflowSpec, one: Measured) -> str:
    assert one.profile is not None
    lost = sum(one.profile.underflowed)
    unseen = sum(
        norm == 0 and not under
        for norm, under in zip(one.profile.norms, one.profile.underflowed, strict=True)
    )
    if one.profile.log10_norms[-1] == -math.inf:
        return "the last step itself has no gradient"
    parts = []
    if lost:
        parts.append(f"{lost} of {one.steps} steps underflow in {spec.dtype}")
    if unseen:
        parts.append(f"{unseen} of {one.steps} steps are exactly zero")
    return "; ".join(parts)


def _spread(spec: GradflowSpec, subject: str, summaries: Sequence[SummaryRow]) -> SpreadRow:
    decay = _percentiles([row.decay_per_step_ratio for row in summaries])
    reached = _percentiles([row.horizon_steps for row in summaries])
    lyapunov = _percentiles([row.lyapunov_per_step for row in summaries])
    whole = sum(row.reaches_start is True for row in summaries)
    failed = [row for row in summaries if row.status != "ok"]
    notes = list(dict.fromkeys(row.note for row in failed if row.note))
    if whole:
        notes.append(f"the horizon is the whole sequence in {whole} of {len(summaries)} seeds")
    return SpreadRow(
        subject,
        spec.seed,
        spec.seeds,
        summaries[0].seq_len,
        *decay,
        *reached,
        *lyapunov,
        reaches_start=None if reached[0] is None else reached[0] >= summaries[0].seq_len - 1,
        status=failed[0].status if failed else "ok",
        note="; ".join(notes),
    )


def _percentiles(
    values: Sequence[float | None],
) -> tuple[float | None, float | None, float | None]:
    """Returns median, 5th and 95th percentile of the values there are."""
    present = [value for value in values if value is not None]
    if not present:
        return None, None, None
    low, high = np.percentile(present, [5, 95])
    return float(median(present)), float(low), float(high)
