"""The diagnosis itself: the question, predicted and measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiag.diagnostics.receptive_field.findings import conclude, unmet
from seqdiag.diagnostics.receptive_field.inline import inline_name, inline_structure
from seqdiag.diagnostics.receptive_field.predicting import predicted_row
from seqdiag.diagnostics.receptive_field.row import PLOT, ReceptiveFieldRow, ResponseRow
from seqdiag.diagnostics.receptive_field.spec import ReceptiveFieldSpec
from seqdiag.report.result import Details, Diagnosis

if TYPE_CHECKING:
    from torch import nn


def receptive_field(spec: ReceptiveFieldSpec, module: nn.Module | None = None) -> Diagnosis:
    """Returns the diagnosis for `spec`, of `module` where one is given; it is left as it was.

    Raises `UsageError` for options that do not fit each other, or a module that cannot be built,
    fed, or told apart from noise; `UnavailableError` for an absent device.
    """
    spec.check()
    if spec.predict_only and spec.inline and module is None:
        row = predicted_row(spec, inline_name(spec), inline_structure(spec))
        return _diagnosis(spec, iter([row]), 1, Details(ResponseRow, list, "--leaks-csv"), "")
    from seqdiag.diagnostics.receptive_field.rows import rows
    from seqdiag.diagnostics.receptive_field.subjects import check_names, count, subjects
    from seqdiag.measure.device import resolve_device

    if module is None:
        check_names(spec)
    device, label = resolve_device(spec.device)
    pairs: list[ResponseRow] = []
    details = Details(
        ResponseRow,
        lambda: pairs,
        "--leaks-csv",
        None if spec.leaks_csv is None else Path(spec.leaks_csv),
    )
    found = rows(spec, subjects(spec, device, module), device, pairs)
    return _diagnosis(spec, found, count(spec), details, label)


def _diagnosis(
    spec: ReceptiveFieldSpec,
    rows: Iterator[ReceptiveFieldRow],
    total: int,
    details: Details,
    device: str,
) -> Diagnosis:
    return Diagnosis(
        command="receptive-field",
        spec=dataclasses.asdict(spec),
        row_type=ReceptiveFieldRow,
        rows=rows,
        total=total,
        conclude=lambda rows: conclude(spec, rows),
        plot=None if spec.predict_only else PLOT,
        device=device or "cpu",
        dtype=spec.dtype,
        seed=spec.seed,
        details=details,
        unmet=lambda rows: unmet(spec, rows),
    )
