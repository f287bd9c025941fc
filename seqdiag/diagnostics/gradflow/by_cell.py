"""`--by cell`: the gradient at each layer and each step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from seqdiag.diagnostics.gradflow.by_layer import gradients
from seqdiag.diagnostics.gradflow.spec import GradflowSpec
from seqdiag.diagnostics.gradflow.subjects import Subject
from seqdiag.measure.probes import step_norms
from seqdiag.report.result import PlotSpec
from seqdiag.report.schema import Status, column

PLOT = PlotSpec(
    x="steps_back",
    y="layer",
    series="subject",
    x_label="steps back from the last",
    y_label="layer, from the input",
    heat="grad_log10_norm",
    heat_label="log10 of the gradient norm",
)


@dataclass(frozen=True, slots=True)
class CellRow:
    """The gradient at the output of one layer at one step."""

    subject: str = column("architecture, pattern, or the factory of --model", identity=True)
    seed: int = column("seed of inputs and weights", identity=True)
    layer: int = column("from 0, the input side", identity=True)
    name: str = column("the layer in the module", identity=True)
    step: int | None = column("step, from 0", identity=True)
    steps_back: int | None = column("seq_len - 1 - step", identity=True)
    grad_norm: float | None = column("norm of d loss / d output of the layer at the step")
    grad_log10_norm: float | None = column("log10 of it, empty where exactly zero", unit="log10")
    grad_ratio: float | None = column("grad_norm / that of the last layer at the last step")
    status: Status = column("ok, or why there is no number")
    note: str = column("what limits the numbers")


def row_type(spec: GradflowSpec) -> type:
    return CellRow


def count(spec: GradflowSpec) -> int:
    return spec.n_subjects * spec.seeds * spec.seq_len * (spec.depth or 1)


def headline(spec: GradflowSpec) -> None:
    return None


def rows(spec: GradflowSpec, subjects: Iterator[Subject]) -> Iterator[CellRow]:
    """Yields layer by layer, each from the first step to the last."""
    wanted = None if spec.steps_back is None else set(spec.steps_back)
    for subject in subjects:
        found = gradients(spec, subject)
        ordered = [_time_second(g, spec) for g in found.outputs]
        norms = [None if g is None else step_norms(g)[0].tolist() for g in ordered]
        last = norms[-1][-1] if norms[-1] else 0.0
        for index, (name, of_layer) in enumerate(zip(found.names, norms, strict=True)):
            if of_layer is None:
                yield _no_time_axis(subject, index, name, found.outputs[index])
                continue
            for step, norm in enumerate(of_layer):
                lag = len(of_layer) - 1 - step
                if wanted is not None and lag not in wanted:
                    continue
                finite = math.isfinite(norm)
                yield CellRow(
                    subject=subject.name,
                    seed=subject.seed,
                    layer=index,
                    name=name,
                    step=step,
                    steps_back=lag,
                    grad_norm=norm,
                    grad_log10_norm=math.log10(norm) if finite and norm > 0 else None,
                    grad_ratio=norm / last if finite and last > 0 else None,
                    status="ok" if finite else "nonfinite",
                    note=_note(norm, found.notes[index]),
                )


def _time_second(gradient: Tensor, spec: GradflowSpec) -> Tensor | None:
    """Returns the gradient as (B, T, ...), or None if no axis, or more than one, could be time."""
    axes = [i for i, size in enumerate(gradient.shape) if size == spec.seq_len]
    usual = {"btd": 1, "tbd": 0, "bdt": 2}[spec.layout]
    if gradient.ndim < 2 or not axes:
        return None
    if len(axes) > 1 and usual not in axes:
        return None
    time = usual if usual in axes else axes[0]
    moved = gradient.movedim(time, 0)
    return moved.movedim(0, 1)


def _no_time_axis(subject: Subject, index: int, name: str, gradient: Tensor) -> CellRow:
    shape = ", ".join(map(str, gradient.shape))
    return CellRow(
        subject=subject.name,
        seed=subject.seed,
        layer=index,
        name=name,
        step=None,
        steps_back=None,
        grad_norm=None,
        grad_log10_norm=None,
        grad_ratio=None,
        status="unsupported",
        note=f"no axis of its output ({shape}) is certain to be time",
    )


def _note(norm: float, note: str) -> str:
    if not math.isfinite(norm):
        note = "; ".join(filter(None, (note, "the gradient is not a number")))
    elif norm == 0:
        note = "; ".join(filter(None, (note, "exactly zero: no gradient reaches this cell")))
    return note


def conclude(spec: GradflowSpec, rows: Sequence[CellRow]) -> list[str]:
    return ["--plot FILE draws layers against steps as a heat map."]
