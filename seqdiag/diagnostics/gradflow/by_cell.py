"""`--by cell`: the gradient at each layer and each step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    step: int = column("step, from 0", identity=True)
    steps_back: int = column("seq_len - 1 - step", identity=True)
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
        norms = [step_norms(g)[0].tolist() for g in found.outputs]
        last = norms[-1][-1]
        for index, (name, of_layer) in enumerate(zip(found.names, norms, strict=True)):
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
                    note="" if finite else "the gradient is not a number",
                )


def conclude(spec: GradflowSpec, rows: Sequence[CellRow]) -> list[str]:
    return ["--plot FILE draws layers against steps as a heat map."]
