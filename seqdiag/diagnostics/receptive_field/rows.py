"""The rows: prediction, measurement and structure of each output asked for."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch

from seqdiag.diagnostics.receptive_field.causes import causes
from seqdiag.diagnostics.receptive_field.measuring import (
    Measured,
    Seen,
    chosen_outputs,
    measure,
    seen_by,
)
from seqdiag.diagnostics.receptive_field.predicting import (
    latency_ms,
    predicted_row,
    skipped_note,
    unbounded_note,
    unnormalised_note,
)
from seqdiag.diagnostics.receptive_field.row import ReceptiveFieldRow, ResponseRow
from seqdiag.diagnostics.receptive_field.spec import ReceptiveFieldSpec
from seqdiag.diagnostics.receptive_field.streaming import streaming_notes
from seqdiag.diagnostics.receptive_field.subjects import Subject
from seqdiag.errors import UsageError
from seqdiag.measure.connections import (
    connected_inputs,
    gradient_mass,
    positive_copy,
)
from seqdiag.measure.reach import shortest_window
from seqdiag.measure.replacement import few_threads
from seqdiag.models.loading import cast_module, user_code
from seqdiag.predict.receptive_field import Field, predict_field
from seqdiag.report.schema import Status

_DRAWS = 16
"""Random inputs over which gradient mass is summed."""


def rows(
    spec: ReceptiveFieldSpec,
    subjects: Iterator[Subject],
    device: torch.device,
    pairs: list[ResponseRow],
) -> Iterator[ReceptiveFieldRow]:
    """Yields a row for each subject and output; what responds to what goes to `pairs`."""
    for subject in subjects:
        if spec.predict_only:
            yield predicted_row(spec, subject.name, subject.structure, subject.reason)
            continue
        with few_threads(subject.module):
            found = _in_a_dtype_that_runs(spec, subject, device, pairs)
        yield from found


def _in_a_dtype_that_runs(
    spec: ReceptiveFieldSpec, subject: Subject, device: torch.device, pairs: list[ResponseRow]
) -> list[ReceptiveFieldRow]:
    """Returns the rows in float64, or in float32 for a module that has no float64."""
    try:
        return list(_rows_of(spec, subject, device, pairs))
    except UsageError as error:
        if not subject.own or spec.dtype != "float64" or "ouble" not in error.message:
            raise
    single = dataclasses.replace(spec, dtype="float32")
    note = "; ".join(filter(None, [subject.note, "it does not run in float64: float32"]))
    lighter = dataclasses.replace(subject, module=subject.module.float(), note=note)
    return list(_rows_of(single, lighter, device, pairs))


def _rows_of(
    spec: ReceptiveFieldSpec, subject: Subject, device: torch.device, pairs: list[ResponseRow]
) -> Iterator[ReceptiveFieldRow]:
    measured = measure(spec, subject, device)
    pairs += response_rows(measured)
    if not measured.finite or measured.stride is None:
        yield _without_numbers(spec, measured)
        return
    why = causes(measured) if measured.causal is False else []
    why += [measured.watched.misaligned] if measured.watched.misaligned else []
    why += streaming_notes(spec, measured) if spec.streaming else []
    for output in chosen_outputs(spec, measured):
        yield _row(spec, measured, output, device, why)


def response_rows(measured: Measured) -> list[ResponseRow]:
    """Returns the pairs of the leak matrix that respond."""
    if measured.matrix is None or not measured.own:
        return []
    found = torch.nonzero(measured.matrix.responds | measured.matrix.leaks).tolist()
    change, leaking = measured.matrix.change, measured.matrix.leaks
    return [
        ResponseRow(
            subject=measured.subject.name,
            output=n,
            input=s,
            lookahead_steps=s - measured.own[n],
            change_ratio=change[n, s].item(),
            leak=s > measured.own[n] and bool(leaking[n, s]),
        )
        for n, s in found
        if s <= measured.own[n] or bool(leaking[n, s])
    ]


def _row(
    spec: ReceptiveFieldSpec,
    measured: Measured,
    output: int,
    device: torch.device,
    why: Sequence[str],
) -> ReceptiveFieldRow:
    subject, stride = measured.subject, measured.stride
    assert stride is not None
    with subject.guarded():
        seen = seen_by(measured, output)
    structural = _structural(spec, measured, output, device)
    if structural is not None and not _holds(structural, seen):
        structural = None  # something in it needs signs, or numbers that |W| does not leave
    effective = _effective(spec, measured, output, device)
    field = None if subject.structure is None else predict_field(subject.structure, output)
    if field is None or subject.structure is None:
        notes = [*measured.notes, f"no prediction: {subject.reason}"]
    else:
        notes = [
            unbounded_note(field),
            unnormalised_note(field, subject.structure, output),
            skipped_note(subject.structure),
            *measured.notes,
        ]
    status, against = _against(spec, measured, field, output, seen, structural)
    notes += [*why, against]
    latency = None
    if measured.lookahead is not None and not measured.sees_the_end:
        latency = max(0, measured.lookahead + max(1, math.floor(stride)) - 1)
    lost = status == "inaccurate" and not seen.steps
    return ReceptiveFieldRow(
        subject=subject.name,
        seq_len=measured.seq_len,
        position=output,
        predicted_steps=None if field is None else field.steps,
        predicted_count=None if field is None else field.count,
        measured_steps=None if lost else seen.steps,
        measured_count=None if lost else seen.count,
        structural_steps=_span(structural),
        first_input=seen.first,
        last_input=seen.last,
        lookahead_steps=measured.lookahead,
        causal=measured.causal,
        stride=float(stride),
        latency_steps=latency,
        latency_ms=latency_ms(spec, latency),
        effective_steps_p50=effective[0],
        effective_steps_p90=effective[1],
        effective_steps_p99=effective[2],
        probe="; ".join(filter(None, [f"reach: {seen.probe}", _leak_probe(measured)])),
        status=status,
        note="; ".join(filter(None, notes)),
    )


def _leak_probe(measured: Measured) -> str:
    if measured.leak_probe:
        return f"leak: {measured.leak_probe}"
    return "no leak: suffix replacement" + (
        " and single replacement" if measured.matrix is not None else ""
    )


def _against(
    spec: ReceptiveFieldSpec,
    measured: Measured,
    field: Field | None,
    output: int,
    seen: Seen,
    structural: list[int] | None,
) -> tuple[Status, str]:
    """Returns the status and what to say where measurement and prediction differ."""
    expected = measured.expected(output)
    if expected is None or field is None:
        if not seen.steps:
            return "ok", "this output responds to no input"
        return "ok", ""
    first, last, count = expected
    whole = field.steps
    cut = whole is not None and last - first + 1 < whole
    said = f"{last - first + 1} of {whole} steps lie in the sequence" if cut else ""
    same = (seen.first, seen.last) == (first, last) and seen.count in (None, count)
    if same:
        return "ok", said
    fewer = seen.first is None or (seen.first >= first and (seen.last or 0) <= last)
    if not fewer:
        return "ok", f"responds to inputs beyond the predicted {first} to {last}"
    shown = f"{seen.count} of {count} inputs" if seen.count is not None else "only the last ones"
    if spec.dtype == "float32" and not field.unbounded:
        return "inaccurate", f"float32 shows {shown}: try --dtype float64"
    if field.unbounded:
        return "ok", f"responds to {shown}: those further away fade below rounding"
    connected = structural is not None and (min(structural, default=-1), len(structural)) == (
        first,
        count,
    )
    reason = "the connections are there, so units are dead or cancel" if connected else ""
    return "ok", f"responds to {shown}" + (f": {reason}" if reason else "")


def _structural(
    spec: ReceptiveFieldSpec, measured: Measured, output: int, device: torch.device
) -> list[int] | None:
    """Returns the inputs with a path to `output`; None where that network cannot be run."""
    try:
        network = positive_copy(measured.subject.module).eval()
        with user_code("the structural network"):
            fed = measured.subject.fed(spec, measured.seq_len, 2, device, network)
            return connected_inputs(fed.run, fed.inputs, output)
    except Exception:  # a module that cannot be copied or run without its activations
        return None


def _holds(structural: list[int], seen: Seen) -> bool:
    """Returns whether every end that responds has a path."""
    return seen.first is None or {seen.first, seen.last} <= set(structural)


def _span(steps: list[int] | None) -> int | None:
    if steps is None:
        return None
    return max(steps) - min(steps) + 1 if steps else 0


def _effective(
    spec: ReceptiveFieldSpec, measured: Measured, output: int, device: torch.device
) -> tuple[int | None, int | None, int | None]:
    """Returns the runs of inputs that hold 50, 90 and 99 % of the gradient mass (Luo 2016)."""
    if not spec.effective:
        return None, None, None
    subject = measured.subject
    module = cast_module(copy.deepcopy(subject.module), torch.float64)
    fed = subject.fed(spec, measured.seq_len, _DRAWS, device, module, alike=False)
    with subject.guarded():
        mass = gradient_mass(fed.run, fed.inputs, output, spec.seed)
    if not math.isfinite(math.fsum(mass)) or not any(mass):
        return None, None, None
    p50, p90, p99 = (shortest_window(mass, share) for share in (0.5, 0.9, 0.99))
    return p50, p90, p99


def _without_numbers(spec: ReceptiveFieldSpec, measured: Measured) -> ReceptiveFieldRow:
    row = predicted_row(spec, measured.subject.name, measured.subject.structure)
    return dataclasses.replace(
        row,
        seq_len=measured.seq_len,
        causal=None,
        lookahead_steps=None,
        latency_steps=None,
        latency_ms=None,
        first_input=None,
        last_input=None,
        probe="",
        status="nonfinite" if not measured.finite else "unsupported",
        note="; ".join(measured.notes),
    )
