"""`--by time`: a row for each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from seqdiag.diagnostics.gradflow.measuring import profiles
from seqdiag.diagnostics.gradflow.spec import GradflowSpec
from seqdiag.diagnostics.gradflow.subjects import Subject
from seqdiag.measure.decay import decay_per_step, horizon
from seqdiag.measure.probes import Profile
from seqdiag.report.result import PlotSpec
from seqdiag.report.schema import Status, column

PLOT = PlotSpec(
    x="steps_back",
    y="grad_log10_norm",
    series="subject",
    x_label="steps back from the last",
    y_label="log10 of the gradient norm",
)
_ARTICLE_LAG = 49
"""What `g[-50]` of a sequence reads, often printed as "50 steps back"."""
_SMALLEST_NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14}
_SMALLEST_NORMAL["bfloat16"] = _SMALLEST_NORMAL["float32"]


@dataclass(frozen=True, slots=True)
class TimeRow:
    """The gradient at one input step."""

    subject: str = column("architecture, or the factory of --model", identity=True)
    seed: int = column("seed of inputs and weights", identity=True)
    seq_len: int = column("steps in the sequence", identity=True)
    step: int = column("input step, from 0", identity=True)
    steps_back: int = column("steps before the last, which is 0", identity=True)
    grad_norm: float | None = column(
        "norm of d loss / d input at the step; the loss is read off the last output"
    )
    grad_log10_norm: float | None = column(
        "log10 of it, finite where grad_norm underflows; empty where exactly zero", unit="log10"
    )
    grad_ratio: float | None = column("grad_norm / grad_norm of the last step")
    status: Status = column("ok, or why there is no number")
    note: str = column("what a zero means")


def row_type(spec: GradflowSpec) -> type:
    return TimeRow


def count(spec: GradflowSpec) -> int:
    lengths = spec.lengths or (spec.seq_len,)
    return spec.n_subjects * spec.seeds * sum(len(_lags(spec, steps)) for steps in lengths)


def headline(spec: GradflowSpec) -> Callable[[TimeRow], bool]:
    """Returns which rows a table shows: lags 0, 1, 2, 5, 10, 20, 50 ... and the first step."""
    lags = {m * 10**e for m in (1, 2, 5) for e in range(9)}
    lags |= {0, _ARTICLE_LAG, *(steps - 1 for steps in spec.lengths or (spec.seq_len,))}
    lags |= set(spec.steps_back or ())
    return lambda row: row.steps_back in lags


def rows(spec: GradflowSpec, subjects: Iterator[Subject]) -> Iterator[TimeRow]:
    """Yields the steps from first to last."""
    for one in profiles(spec, subjects):
        lost = sum(one.profile.underflowed) if one.profile else 0
        steps = one.steps or spec.seq_len
        for lag in sorted(_lags(spec, steps), reverse=True):
            step = steps - 1 - lag
            norm, log10, ratio, status, note = None, None, None, one.status, one.note
            if one.profile is not None:
                norm, log10, ratio, status, note = _read(one.profile, step, spec, lost)
                note = "; ".join(filter(None, (one.note, note)))
            yield TimeRow(one.subject, one.seed, steps, step, lag, norm, log10, ratio, status, note)


def conclude(spec: GradflowSpec, rows: Sequence[TimeRow]) -> list[str]:
    """Says how far each subject's gradient carries, what underflowed, and what a lag is."""
    findings = []
    own = spec.model is not None or spec.hf is not None
    for subject in dict.fromkeys(row.subject for row in rows):
        mine = [row for row in rows if row.subject == subject and row.seed == spec.seed]
        if spec.steps_back is None and mine[0].status != "unsupported":
            findings.append(_reach(subject, mine, spec))
        for note in dict.fromkeys(row.note for row in mine if row.note):
            count = sum(row.note == note for row in mine)
            findings.append(f"{subject}, {count} of {len(mine)} steps: {note}.")
    if own and spec.reduce is None:
        findings.append(
            "The loss is the last output along one random direction: --reduce sum takes its sum."
        )
    if not own and any(row.steps_back == _ARTICLE_LAG for row in rows):
        findings.append(
            "steps_back counts from the last step, which is 0: g[-50], often called 50 steps "
            f"back, is steps_back {_ARTICLE_LAG}."
        )
    if not own and spec.steps_back is None:
        findings.append(
            "One draw of the weights: --by summary --seeds 20 shows the spread, "
            "--forget-bias 2 what an LSTM gains, --model file.py:factory your own."
        )
    return findings


def _lags(spec: GradflowSpec, steps: int) -> Sequence[int]:
    """Returns the lags to show of a sequence; one that is shorter has not all of those wanted."""
    return range(steps) if spec.steps_back is None else [n for n in spec.steps_back if n < steps]


def _read(
    profile: Profile, step: int, spec: GradflowSpec, lost: int
) -> tuple[float | None, float | None, float | None, Status, str]:
    """Returns norm, log10, ratio, status and note of one step."""
    norm, log10 = profile.norms[step], profile.log10_norms[step]
    if math.isnan(norm) or math.isnan(log10):
        return None, None, None, "nonfinite", "the gradient is not a number"
    ratio = _ratio(profile, step)
    shown = log10 if math.isfinite(log10) else None
    if profile.underflowed[step]:
        where = "a float64" if spec.dtype != "float64" else "a rescaled"
        of = f"{lost} of {len(profile.norms)} steps underflow"
        note = f"{of} to zero in {spec.dtype}"
        if any(profile.norms[i] > 0 for i, under in enumerate(profile.underflowed) if under):
            note = f"{of} (zero or subnormal) in {spec.dtype}"
        if shown is None:
            return norm, None, ratio, "ok", f"{note}; here below 1e-570, or no gradient at all"
        return norm, shown, ratio, "ok", f"{note}; log10 is from {where} pass"
    if math.isinf(norm):
        return None, shown, None, "nonfinite", f"the norm overflows {spec.dtype}"
    if norm == 0:
        return 0.0, None, ratio, "ok", "exactly zero: no gradient reaches this step"
    if norm < _SMALLEST_NORMAL[spec.dtype]:
        return norm, shown, ratio, "ok", f"subnormal in {spec.dtype}, where digits are missing"
    return norm, shown, ratio, "ok", ""


def _ratio(profile: Profile, step: int) -> float | None:
    norm, last = profile.norms[step], profile.norms[-1]
    if math.isfinite(last) and last > 0 and math.isfinite(norm):
        return norm / last
    return None


def _reach(subject: str, rows: Sequence[TimeRow], spec: GradflowSpec) -> str:
    log10 = [-math.inf if row.grad_log10_norm is None else row.grad_log10_norm for row in rows]
    reached, factor = horizon(log10, spec.horizon_ratio), decay_per_step(log10)
    if reached is None:
        return f"{subject}: the last step itself has no gradient."
    slope = f", x{factor:.3g} per step" if factor is not None else ""
    whole = " (the whole sequence)" if reached == len(rows) - 1 else ""
    return (
        f"{subject}: at least {spec.horizon_ratio:g} of the last step's gradient reaches "
        f"{reached} steps back{whole}{slope}."
    )
