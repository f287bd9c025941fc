"""`--by layer`: the gradient at the output of each layer and of its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiag.diagnostics.gradflow.spec import GradflowSpec
from seqdiag.diagnostics.gradflow.subjects import Subject
from seqdiag.measure.layers import LayerGradients, layer_gradients
from seqdiag.measure.probes import step_norms
from seqdiag.report.result import PlotSpec
from seqdiag.report.schema import Status, column

PLOT = PlotSpec(
    x="layer",
    y="grad_log10_norm",
    series="subject",
    x_label="layer, from the input",
    y_label="log10 of the gradient norm",
)
_LOG10_2 = 0.3010299956639812
_VANISHED = 1e-2
SIDE_BY_SIDE = "the layers stand side by side: the last does not depend on the first"


@dataclass(frozen=True, slots=True)
class LayerRow:
    """The gradient at one layer."""

    subject: str = column("architecture, pattern, or the factory of --model", identity=True)
    seed: int = column("seed of inputs and weights", identity=True)
    layer: int = column("from 0, the input side", identity=True)
    name: str = column("the layer in the module", identity=True)
    grad_norm: float | None = column("norm of d loss / d output of the layer")
    grad_log10_norm: float | None = column("log10 of it, empty where exactly zero", unit="log10")
    grad_ratio: float | None = column("grad_norm / grad_norm of the last layer")
    weight_grad_norm: float | None = column("norm of d loss / d weights of the layer")
    weight_grad_ratio: float | None = column("weight_grad_norm / that of the last layer")
    status: Status = column("ok, or why there is no number")
    note: str = column("what limits the numbers")


def row_type(spec: GradflowSpec) -> type:
    return LayerRow


def count(spec: GradflowSpec) -> int:
    return spec.n_subjects * spec.seeds * (spec.depth or 1)


def headline(spec: GradflowSpec) -> None:
    return None


def gradients(spec: GradflowSpec, subject: Subject) -> LayerGradients:
    """Returns the gradients of a subject in the dtype asked for."""
    cast, run, x = subject.fed_as(getattr(torch, spec.dtype))
    with cast.guarded():
        return layer_gradients(run, x, cast.module, cast.reduce)


def rows(spec: GradflowSpec, subjects: Iterator[Subject]) -> Iterator[LayerRow]:
    """Yields the layers from the input to the output."""
    for subject in subjects:
        found = gradients(spec, subject)
        norms, logs = zip(*(_whole_norm(g) for g in found.outputs), strict=True)
        for index, name in enumerate(found.names):
            finite = math.isfinite(norms[index]) and math.isfinite(norms[-1])
            notes = [found.notes[index]]
            if not finite:
                notes.append("the gradient is not a number")
            elif norms[index] == 0:
                notes.append("exactly zero: no gradient reaches this layer")
            if not found.chained and index == 0 and len(norms) > 1:
                notes.append(SIDE_BY_SIDE)
            yield LayerRow(
                subject=subject.name,
                seed=subject.seed,
                layer=index,
                name=name,
                grad_norm=norms[index],
                grad_log10_norm=logs[index] * _LOG10_2 if norms[index] else None,
                grad_ratio=_ratio(norms[index], norms[-1]),
                weight_grad_norm=found.weights[index],
                weight_grad_ratio=_ratio(found.weights[index], found.weights[-1]),
                status="ok" if finite else "nonfinite",
                note="; ".join(filter(None, notes)),
            )


def conclude(spec: GradflowSpec, rows: Sequence[LayerRow]) -> list[str]:
    """Says what reaches the first layer, and what that does not say."""
    findings = []
    for subject in dict.fromkeys(row.subject for row in rows):
        mine = [row for row in rows if row.subject == subject and row.seed == spec.seed]
        first, last = mine[0], mine[-1]
        if SIDE_BY_SIDE in first.note or len(mine) == 1:
            why = SIDE_BY_SIDE if len(mine) > 1 else "it is one layer"
            findings.append(f"{subject}: {why}, so there is no depth to cross.")
            continue
        if first.grad_ratio is None or not math.isfinite(first.grad_ratio):
            findings.append(f"{subject}: there is no ratio: {_without(last)}.")
            continue
        when = f"after {spec.after_steps} steps" if spec.after_steps else "at init"
        findings.append(
            f"{subject}, {when}: the gradient at layer {first.layer} is {first.grad_ratio:.3g} of "
            f"that at layer {last.layer}."
        )
    if spec.norm == "post" or "post" in str(spec.arch):
        findings.append(_about_post_norm(spec, rows))
    return findings


def _without(last: LayerRow) -> str:
    if last.status == "nonfinite":
        return "the gradient is not a number"
    return "the last layer has no gradient"


def _about_post_norm(spec: GradflowSpec, rows: Sequence[LayerRow]) -> str:
    vanished = any(row.grad_ratio is not None and row.grad_ratio < _VANISHED for row in rows)
    if vanished and spec.after_steps == 0:
        return (
            "A post-norm gradient seldom vanishes at init; here it does already: see whether more "
            "--hidden or --seq-len changes that."
        )
    if spec.after_steps == 0:
        return (
            '"Post-LN gradients vanish at depth" is half right: at init they do not; a few steps '
            "without warm-up make them: add --after-steps 20 --lr 1e-3."
        )
    if vanished:
        return (
            '"Post-LN gradients vanish at depth" is half right: it is steps without warm-up that '
            "make them vanish; without --after-steps the same stack is shown at init."
        )
    return "The post-norm gradient survived these steps; try more of them or a larger --lr."


def _whole_norm(gradient: Tensor) -> tuple[float, float]:
    norm, log2 = step_norms(gradient.reshape(1, 1, -1))
    return norm.item(), log2.item()


def _ratio(value: float | None, last: float | None) -> float | None:
    return value / last if value is not None and last else None
