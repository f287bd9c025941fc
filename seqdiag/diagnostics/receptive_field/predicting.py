"""The row of a structure that is not measured, without torch."""

from __future__ import annotations

import dataclasses
import math

from seqdiag.diagnostics.receptive_field.row import ReceptiveFieldRow
from seqdiag.diagnostics.receptive_field.spec import ReceptiveFieldSpec
from seqdiag.predict.receptive_field import (
    Field,
    Structure,
    StructureError,
    predict_field,
    skipped_inputs,
    without_norms,
)
from seqdiag.predict.receptive_field.positions import positions

FEW_OUTPUTS = 4
"""How many outputs a module that shortens the sequence is given, if it can be."""


def long_enough(
    spec: ReceptiveFieldSpec, structure: Structure | None, predicted: Field | None
) -> int:
    """Returns --seq-len, doubled until the sequence holds a whole field, or to --max-seq-len."""
    seq_len = spec.seq_len
    if structure is None or predicted is None:
        return seq_len
    while seq_len * 2 <= spec.max_seq_len and _too_short(structure, predicted, seq_len):
        seq_len *= 2
    return seq_len


def _too_short(structure: Structure, predicted: Field, seq_len: int) -> bool:
    try:
        outputs = structure.length(seq_len)
    except StructureError:
        return True
    stride = max(1, math.floor(predicted.stride))
    if predicted.steps is None:
        return stride > 1 and outputs < FEW_OUTPUTS
    return seq_len < predicted.steps + (stride if stride > 1 else 0)


def predicted_row(
    spec: ReceptiveFieldSpec, subject: str, structure: Structure | None, reason: str = ""
) -> ReceptiveFieldRow:
    """Returns what the structure says alone; the inputs are those inside the sequence."""
    if structure is None:
        return _row(spec, subject, None, None, f"no prediction: {reason}")
    field = predict_field(structure)
    seq_len = long_enough(spec, structure, field)
    notes = [
        unbounded_note(field),
        unnormalised_note(field, structure, 0),
        skipped_note(structure),
    ]
    try:
        output = _output(spec, structure.length(seq_len), field)
    except StructureError as error:
        return _row(spec, subject, field, None, _joined([*notes, str(error)]))
    if output is None:
        return _row(spec, subject, field, None, _joined([*notes, "no such --position"]))
    field = predict_field(structure, output)
    read = structure.reads(positions([output]), seq_len)
    if field.steps is not None and read.span < field.steps:
        notes.append(f"only {read.span} of {field.steps} steps lie in a sequence of {seq_len}")
    row = _row(spec, subject, field, output, _joined(notes))
    if not read.bits:
        return row

    return dataclasses.replace(row, seq_len=seq_len, first_input=read.first, last_input=read.last)


def _row(
    spec: ReceptiveFieldSpec, subject: str, field: Field | None, output: int | None, note: str
) -> ReceptiveFieldRow:
    ahead = None if field is None else field.lookahead
    latency = None if field is None or field.latency is None else max(0, field.latency)
    return ReceptiveFieldRow(
        subject=subject,
        seq_len=spec.seq_len,
        position=output,
        predicted_steps=None if field is None else field.steps,
        predicted_count=None if field is None else field.count,
        measured_steps=None,
        measured_count=None,
        structural_steps=None,
        first_input=None,
        last_input=None,
        lookahead_steps=ahead,
        causal=None if field is None else ahead is not None and ahead <= 0,
        stride=None if field is None else float(field.stride),
        latency_steps=latency,
        latency_ms=latency_ms(spec, latency),
        effective_steps_p50=None,
        effective_steps_p90=None,
        effective_steps_p99=None,
        probe="structure",
        status="ok",
        note=note,
    )


def _output(spec: ReceptiveFieldSpec, outputs: int, field: Field) -> int | None:
    ahead = field.lookahead is not None and field.lookahead > 0
    if spec.position == "middle" or (spec.position is None and ahead):
        return (outputs - 1) // 2
    if spec.position in (None, "last", "all"):
        return outputs - 1
    output = int(spec.position)
    return output if output < outputs else None


def latency_ms(spec: ReceptiveFieldSpec, latency: int | None) -> float | None:
    """Returns the latency at --sample-rate, in milliseconds."""
    if latency is None or spec.sample_rate is None:
        return None
    return 1000.0 * latency / spec.sample_rate


def unbounded_note(field: Field) -> str:
    """Returns why there is no size."""
    return f"unbounded ({field.unbounded})" if field.steps is None else ""


def unnormalised_note(field: Field, structure: Structure, output: int) -> str:
    """Returns what the rest would see if nothing were normalised over time."""
    if field.steps is not None or "normalisation" not in field.unbounded:
        return ""
    steps = predict_field(without_norms(structure), output).steps
    return "" if steps is None else f"without it {steps} steps"


def skipped_note(structure: Structure) -> str:
    """Returns which inputs no output reads, where a stride is above its kernel."""
    step, skipped = skipped_inputs(structure)
    if not skipped:
        return ""
    shown = ", ".join(map(str, skipped[:8])) + (", ..." if len(skipped) > 8 else "")
    return f"no output reads the inputs {shown} of every {step}"


def _joined(notes: list[str]) -> str:
    return "; ".join(filter(None, notes))
