"""The diagnosis itself: read-back, or trained models where a task is named."""

from __future__ import annotations

import dataclasses

from seqdiag.diagnostics.recall import by_memory
from seqdiag.diagnostics.recall.spec import RecallSpec
from seqdiag.report.result import Diagnosis, Live, PlotSpec


def recall(spec: RecallSpec) -> Diagnosis:
    """Returns the diagnosis for `spec`. Raises `UsageError` for options that do not fit."""
    spec.check()
    return _read_back(spec) if spec.task is None else _trained(spec)


def _read_back(spec: RecallSpec) -> Diagnosis:
    return Diagnosis(
        command="recall",
        spec=_own(spec, _READ_BACK),
        row_type=by_memory.ReadBackRow,
        rows=by_memory.rows(spec),
        total=len(spec.memory) * len(spec.state_dim) * len(spec.pairs),
        conclude=by_memory.conclude,
        plot=_capacity_plot(spec),
        dtype="float32",
        seed=spec.seed,
    )


def _trained(spec: RecallSpec) -> Diagnosis:
    from seqdiag.diagnostics.recall import by_training

    jobs = by_training.jobs_of(spec)
    for job in jobs:
        by_training.check(job)
    live = Live()
    return Diagnosis(
        command="recall",
        spec=_own(spec, _TRAINING),
        row_type=by_training.TrainedRow,
        rows=by_training.rows(spec, jobs, live),
        live=live,
        total=len(jobs),
        conclude=by_training.conclude,
        plot=_training_plot(spec),
        dtype="float32",
        seed=spec.seed,
    )


def _capacity_plot(spec: RecallSpec) -> PlotSpec | None:
    """Returns a line for each memory or each dimension; there is no plot where both vary."""
    if len(spec.state_dim) == 1:
        return by_memory.PLOT
    return (
        dataclasses.replace(by_memory.PLOT, series="state_dim") if len(spec.memory) == 1 else None
    )


def _training_plot(spec: RecallSpec) -> PlotSpec | None:
    """Returns accuracy against state bytes, or pairs where they vary; None where a line would mix.

    A line has one value at each x, so only one of length and load may vary, and no seeds.
    """
    from seqdiag.diagnostics.recall import by_training

    if spec.seeds > 1 or len(spec.equal) > 1 or (len(spec.pairs) > 1 and len(spec.seq_len) > 1):
        return None
    if len(spec.pairs) == 1:
        return by_training.PLOT
    return dataclasses.replace(
        by_training.PLOT, x="pairs", x_label="pairs", low="accuracy_low", high="accuracy_high"
    )


_READ_BACK = {"memory", "state_dim", "value_dim", "trials", "probes", "draw"}
_TRAINING = {
    "task", "arch", "pattern", "seq_len", "vocab", "d_model", "equal", "heads", "window", "filler",
    "updates", "batch", "lr", "budget", "seeds", "jobs", "scheduler", "resume",
}  # fmt: skip


def _own(spec: RecallSpec, own: set[str]) -> dict[str, object]:
    """Returns the options that this kind of recall has, as `--config` reads them again."""
    options = dataclasses.asdict(spec)
    options["budget"] = f"{options.pop('budget_s'):g}s"
    return {k: v for k, v in options.items() if k in own | {"pairs", "seed"}}
