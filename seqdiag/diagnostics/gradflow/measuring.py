"""From subjects to gradient profiles over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from seqdiag.diagnostics.gradflow.spec import GradflowSpec
from seqdiag.diagnostics.gradflow.subjects import Subject
from seqdiag.errors import SeqdiagError, is_memory
from seqdiag.measure.lyapunov import leading_exponent
from seqdiag.measure.probes import Profile, Run, input_gradient, padded, profile_as, profile_float64
from seqdiag.report.schema import Status


@dataclass(frozen=True, slots=True)
class Measured:
    """One subject at one seed: its profile, or why there is none."""

    subject: str
    seed: int
    profile: Profile | None
    lyapunov: float | None = None
    status: Status = "ok"
    note: str = ""


def profiles(spec: GradflowSpec, subjects: Iterator[Subject]) -> Iterator[Measured]:
    """Yields the profile of every subject of `spec`, seed by seed."""
    dtype = getattr(torch, spec.dtype)
    for subject in subjects:
        try:
            profile = _profile(subject, dtype, spec)
        except SeqdiagError:
            raise
        except RuntimeError as error:  # a kernel that the dtype does not have on this device
            if subject.own or is_memory(error):
                raise
            yield Measured(
                subject.name, subject.seed, None, status="unsupported", note=_first_line(error)
            )
            continue
        lyapunov = _lyapunov(subject) if spec.by == "summary" else None
        yield Measured(subject.name, subject.seed, profile, lyapunov, note=subject.note)


def _profile(subject: Subject, dtype: torch.dtype, spec: GradflowSpec) -> Profile:
    def measure_exactly() -> Profile:
        exact, run, x = subject.fed_as(torch.float64)
        recurrent = exact.recurrent if spec.lengths is None else None
        with subject.guarded():
            return profile_float64(_ending(run, spec), x, recurrent, subject.reduce)

    if dtype == torch.float64:
        profile = measure_exactly()
    else:
        _, run, x = subject.fed_as(dtype)
        with subject.guarded():
            gradient = input_gradient(_ending(run, spec), x, reduce=subject.reduce)
        profile = profile_as(gradient, measure_exactly)
    return profile.last(spec.steps)


def _ending(run: Run, spec: GradflowSpec) -> Run:
    return run if spec.lengths is None else padded(run, spec.lengths)


def _lyapunov(subject: Subject) -> float | None:
    if subject.recurrent is None:
        return None
    exact, _, x = subject.fed_as(torch.float64)
    assert exact.recurrent is not None
    return leading_exponent(exact.recurrent, x)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
