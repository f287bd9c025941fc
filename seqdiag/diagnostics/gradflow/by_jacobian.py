"""`--jacobian`: what the state's Jacobian does over many steps, beside what W_hh alone predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from seqdiag.diagnostics.gradflow.spec import GradflowSpec
from seqdiag.diagnostics.gradflow.subjects import Subject
from seqdiag.errors import UsageError
from seqdiag.measure.decay import decay_per_step
from seqdiag.measure.jacobian import jacobian_profile, recurrent_weights
from seqdiag.measure.lyapunov import leading_exponent
from seqdiag.measure.probes import profile_float64
from seqdiag.report.result import PlotSpec
from seqdiag.report.schema import Status, column

PLOT = PlotSpec(
    x="steps_back",
    y="sigma_max_log10",
    series="subject",
    x_label="steps back from the last state",
    y_label="log10 of the largest singular value",
)


@dataclass(frozen=True, slots=True)
class JacobianRow:
    """d h_T / d h_{T-k} of one subject."""

    subject: str = column("architecture", identity=True)
    seed: int = column("seed of inputs and weights", identity=True)
    seq_len: int = column("steps in the sequence", identity=True)
    steps_back: int = column("k of d h_T / d h_{T-k}", identity=True)
    sigma_max_log10: float | None = column("log10 of the largest singular value", unit="log10")
    sigma_min_log10: float | None = column("log10 of the smallest", unit="log10")
    bound_log10: float | None = column(
        "k log10(gamma sigma_max(W_hh)): the largest cannot exceed it", unit="log10"
    )
    spectral_radius: float | None = column("largest |eigenvalue| of W_hh")
    weight_sigma_max: float | None = column("largest singular value of W_hh")
    lyapunov_per_step: float | None = column("leading Lyapunov exponent per step")
    decay_per_step_ratio: float | None = column("slope of the input gradient, per step back")
    status: Status = column("ok, or why there is no number")
    note: str = column("what limits the numbers")


def row_type(spec: GradflowSpec) -> type:
    return JacobianRow


def count(spec: GradflowSpec) -> int:
    return spec.n_subjects * spec.seeds * spec.seq_len


def headline(spec: GradflowSpec) -> Callable[[JacobianRow], bool]:
    lags = {m * 10**e for m in (1, 2, 5) for e in range(9)} | {spec.seq_len}
    return lambda row: row.steps_back in lags


def rows(spec: GradflowSpec, subjects: Iterator[Subject]) -> Iterator[JacobianRow]:
    """Yields the lags from 1 to the whole sequence."""
    for subject in subjects:
        exact, _, x = subject.fed_as(torch.float64)
        layer = exact.recurrent
        if layer is None:
            raise UsageError(
                f"--jacobian: {subject.name} is not one of rnn, lstm, gru, linear by itself"
            )
        profile = jacobian_profile(layer, x[:1])
        weights = recurrent_weights(layer)
        lyapunov = leading_exponent(layer, x[:1])
        decay = decay_per_step(profile_float64(layer, x, layer, subject.reduce).log10_norms)
        bound = math.log10(weights.bound_per_step) if weights.bound_per_step else None
        for index, (largest, smallest) in enumerate(
            zip(profile.largest, profile.smallest, strict=True)
        ):
            lag = index + 1
            if spec.steps_back is not None and lag not in spec.steps_back:
                continue
            yield JacobianRow(
                subject=subject.name,
                seed=subject.seed,
                seq_len=spec.seq_len,
                steps_back=lag,
                sigma_max_log10=largest,
                sigma_min_log10=smallest,
                bound_log10=None if bound is None else lag * bound,
                spectral_radius=weights.spectral_radius,
                weight_sigma_max=weights.sigma_max,
                lyapunov_per_step=lyapunov,
                decay_per_step_ratio=decay,
                status="ok",
                note="" if math.isfinite(smallest) else "a step forgets a direction altogether",
            )


def conclude(spec: GradflowSpec, rows: Sequence[JacobianRow]) -> list[str]:
    """Says what W_hh alone would predict, and what happens."""
    findings = []
    for subject in dict.fromkeys(row.subject for row in rows):
        row = next(r for r in rows if r.subject == subject and r.seed == spec.seed)
        measured = (
            f"the Jacobian changes by exp({row.lyapunov_per_step:.3f}) = "
            f"{math.exp(row.lyapunov_per_step or 0):.3f} a step, the input gradient by "
            f"{row.decay_per_step_ratio or math.nan:.2f}"
        )
        if row.spectral_radius is None or row.weight_sigma_max is None:
            findings.append(f"{subject}: {measured}; its gates decide, not one matrix.")
            continue
        says = (
            "must vanish" if row.weight_sigma_max < 1 else "may vanish or explode: it cannot tell"
        )
        findings.append(
            f"{subject}: W_hh has spectral radius {row.spectral_radius:.3f} and largest singular "
            f"value {row.weight_sigma_max:.2f}, so by Pascanu's bound the gradient {says}; "
            f"{measured}."
        )
    return findings
