"""From subjects to gradient profiles over time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from seqdiag.diagnostics.gradflow.spec import GradflowSpec
from seqdiag.diagnostics.gradflow.subjects import Subject
from seqdiag.errors import SeqdiagError, is_memory
from seqdiag.measure.lyapunov import leading_exponent
from seqdiag.measure.probes import (
    Profile,
    input_gradient,
    profile_as,
    profile_float64,
    profiles_side_by_side,
)
from seqdiag.models.recurrent import TorchRecurrent
from seqdiag.report.schema import Status

_SEEDS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Measured:
    """One subject at one seed: its profile, or why there is none."""

    subject: str
    seed: int
    profile: Profile | None
    lyapunov: float | None = None
    status: Status = "ok"
    note: str = ""

    @property
    def steps(self) -> int:
        """How many steps the sequence has; 0 if nothing was measured."""
        return 0 if self.profile is None else len(self.profile.norms)


def profiles(spec: GradflowSpec, subjects: Iterator[Subject]) -> Iterator[Measured]:
    """Yields the profile of every subject of `spec`, seed by seed."""
    for subject, found in _some_at_once(spec, subjects):
        try:
            profile = found or _profile(subject, spec)
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


def _some_at_once(
    spec: GradflowSpec, subjects: Iterator[Subject]
) -> Iterator[tuple[Subject, Profile | None]]:
    """Yields the subjects, with their profiles where seeds of one layer could run side by side."""
    if spec.seeds == 1 or spec.lengths or spec.dtype != "float64":
        yield from ((subject, None) for subject in subjects)
        return
    while some := list(itertools.islice(subjects, spec.n_subjects * _SEEDS_AT_ONCE)):
        found: dict[tuple[str, int], Profile | None] = {}
        for name in dict.fromkeys(s.name for s in some):
            mine = [s for s in some if s.name == name]
            found.update(((name, s.seed), p) for s, p in _side_by_side(mine))
        yield from ((subject, found.get((subject.name, subject.seed))) for subject in some)


def _side_by_side(seeds: list[Subject]) -> list[tuple[Subject, Profile | None]]:
    if not isinstance(seeds[0].module, TorchRecurrent):
        return []
    fed = [subject.fed_as(torch.float64) for subject in seeds]
    layers = [s.module for s, _, _ in fed if isinstance(s.module, TorchRecurrent)]
    inputs = torch.stack([x for _, _, x in fed])
    profiles = profiles_side_by_side(layers, inputs, [s.reduce for s in seeds])
    return list(zip(seeds, profiles, strict=True))


def _profile(subject: Subject, spec: GradflowSpec) -> Profile:
    dtype = getattr(torch, spec.dtype)

    def measure_exactly() -> Profile:
        exact, run, x = subject.fed_as(torch.float64)
        with subject.guarded():
            return profile_float64(run, x, exact.recurrent, subject.reduce)

    if dtype == torch.float64:
        return measure_exactly()
    _, run, x = subject.fed_as(dtype)
    with subject.guarded():
        gradient = input_gradient(run, x, reduce=subject.reduce)
    return profile_as(gradient, measure_exactly)


def _lyapunov(subject: Subject) -> float | None:
    if subject.recurrent is None:
        return None
    exact, _, x = subject.fed_as(torch.float64)
    assert exact.recurrent is not None
    return leading_exponent(exact.recurrent, x)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
