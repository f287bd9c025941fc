"""The diagnosis itself: the models in question, sized in one of the views."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqdiag.diagnostics.kvcache import by_model
from seqdiag.diagnostics.kvcache.measuring import instrument
from seqdiag.diagnostics.kvcache.spec import KvcacheSpec
from seqdiag.diagnostics.kvcache.subject import Subject, against_of, subjects_of
from seqdiag.report.result import Diagnosis

if TYPE_CHECKING:
    from torch import nn


def kvcache(spec: KvcacheSpec, modules: Sequence[nn.Module] = ()) -> Diagnosis:
    """Returns the diagnosis for `spec`; `modules` are measured, as with `spec.model`.

    Raises `UsageError` for a model that cannot be read, `UnavailableError` for an absent device.
    """
    spec.check(bool(modules))
    subjects = subjects_of(spec, modules)
    view = _by_layer if spec.per_layer else _by_curve if spec.curve else _by_model
    diagnosis = view(spec, subjects)
    layouts = {subject.layout.name: subject.layout for subject in subjects}
    cautions = [
        f"Careful: {name} is a guess: {layout.caution}."
        for name, layout in layouts.items()
        if layout.caution
    ]
    if spec.explain:
        from seqdiag.diagnostics.kvcache.explain import explain

        cautions += explain(subjects, max(spec.ctx))
    conclude = diagnosis.conclude
    return dataclasses.replace(diagnosis, conclude=lambda rows: [*cautions, *conclude(rows)])


def _by_model(spec: KvcacheSpec, subjects: list[Subject]) -> Diagnosis:
    against = against_of(spec, subjects)
    measure, device = instrument(spec)
    return Diagnosis(
        command="kvcache",
        spec=dataclasses.asdict(spec),
        row_type=by_model.KvcacheRow,
        rows=by_model.rows(spec, subjects, against, measure),
        total=len(subjects) * len(spec.ctx),
        conclude=lambda rows: by_model.conclude(rows, against),
        plot=by_model.PLOT,
        device=device,
        dtype=spec.dtype or "",
    )


def _by_layer(spec: KvcacheSpec, subjects: list[Subject]) -> Diagnosis:
    from seqdiag.diagnostics.kvcache import by_layer

    measure, device = instrument(spec)
    return Diagnosis(
        command="kvcache",
        spec=dataclasses.asdict(spec),
        row_type=by_layer.KvcacheLayerRow,
        rows=by_layer.rows(spec, subjects, measure),
        total=sum(len(subject.layout.layers) for subject in subjects) * len(spec.ctx),
        conclude=lambda rows: [],
        device=device,
        dtype=spec.dtype or "",
    )


def _by_curve(spec: KvcacheSpec, subjects: list[Subject]) -> Diagnosis:
    from seqdiag.diagnostics.kvcache import by_curve

    return Diagnosis(
        command="kvcache",
        spec=dataclasses.asdict(spec),
        row_type=by_curve.KvcacheCurveRow,
        rows=by_curve.rows(spec, subjects),
        total=len(subjects),
        conclude=by_curve.conclude,
        device="cpu",
        dtype=spec.dtype or "",
    )
