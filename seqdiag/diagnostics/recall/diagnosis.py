"""The diagnosis itself: read-back."""

from __future__ import annotations

import dataclasses

from seqdiag.diagnostics.recall import by_memory
from seqdiag.diagnostics.recall.spec import RecallSpec
from seqdiag.report.result import Diagnosis


def recall(spec: RecallSpec) -> Diagnosis:
    """Returns the diagnosis for `spec`. Raises `UsageError` for options that do not fit."""
    spec.check()
    return Diagnosis(
        command="recall",
        spec=dataclasses.asdict(spec),
        row_type=by_memory.ReadBackRow,
        rows=by_memory.rows(spec),
        total=len(spec.memory) * len(spec.state_dim) * len(spec.pairs),
        conclude=by_memory.conclude,
        plot=by_memory.PLOT,
        dtype="float32",
        seed=spec.seed,
    )
