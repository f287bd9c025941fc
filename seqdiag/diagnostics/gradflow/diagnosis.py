"""The diagnosis itself: the question, measured, in one of its views."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from seqdiag.diagnostics.gradflow import (
    by_cell,
    by_jacobian,
    by_layer,
    by_logits,
    by_summary,
    by_time,
)
from seqdiag.diagnostics.gradflow.spec import GradflowSpec, View
from seqdiag.diagnostics.gradflow.subjects import subjects
from seqdiag.errors import UsageError
from seqdiag.measure.device import resolve_device
from seqdiag.report.result import Diagnosis

VIEWS: dict[View, Any] = {
    "time": by_time,
    "summary": by_summary,
    "layer": by_layer,
    "cell": by_cell,
    "logits": by_logits,
    "jacobian": by_jacobian,
}
"""To add a view: a module with `row_type`, `rows`, `count`, `conclude`, `headline` and `PLOT`."""


def gradflow(spec: GradflowSpec, module: nn.Module | None = None) -> Diagnosis:
    """Returns the diagnosis for `spec`, of `module` where one is given; it is left as it was.

    Raises `UsageError` for options that do not fit each other or a module that cannot be built or
    fed, `UnavailableError` for an absent device.
    """
    if module is not None and not isinstance(module, nn.Module):
        raise UsageError(f"gradflow: {module!r:.60} is not a torch.nn.Module")
    spec.check(module is not None)
    device, label = resolve_device(spec.device)
    view = VIEWS[spec.by]
    return Diagnosis(
        command="gradflow",
        spec=dataclasses.asdict(spec),
        row_type=view.row_type(spec),
        rows=view.rows(spec, subjects(spec, device, module)),
        total=view.count(spec),
        conclude=lambda rows: view.conclude(spec, rows),
        plot=view.PLOT,
        headline=view.headline(spec),
        device=label,
        dtype=spec.dtype,
        seed=spec.seed,
    )
