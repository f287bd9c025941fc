"""What the rows mean, and whether they meet what was asked of them."""

from __future__ import annotations

from collections.abc import Sequence

from seqdiag.diagnostics.receptive_field.inline import inline_structure
from seqdiag.diagnostics.receptive_field.row import ReceptiveFieldRow
from seqdiag.diagnostics.receptive_field.spec import ReceptiveFieldSpec


def conclude(spec: ReceptiveFieldSpec, rows: Sequence[ReceptiveFieldRow]) -> list[str]:
    """Says what each subject sees, and whether the future leaks in."""
    findings = []
    for subject in dict.fromkeys(row.subject for row in rows):
        own = [row for row in rows if row.subject == subject]
        findings.append(f"{subject}: {_sees(own[-1])}; {_verdict(own[-1])}.")
        findings += dict.fromkeys(f"{subject}: {row.note}." for row in own if row.note)
    if spec.inline and spec.kernel is None and spec.dilations is None and spec.strides is None:
        findings.append(
            "Try your own module: seqdiag receptive-field --model path/to/file.py:factory."
        )
    return findings[:20]


def _sees(row: ReceptiveFieldRow) -> str:
    if row.status == "nonfinite":
        return "the outputs are not finite"
    if row.measured_steps is None and row.predicted_steps is None:
        return "sees without end" if row.note.startswith("unbounded") else "nothing known"
    steps = row.measured_steps if row.measured_steps is not None else row.predicted_steps
    counted = row.measured_count if row.measured_steps is not None else row.predicted_count
    holes = f" ({counted} of them read)" if counted is not None and counted != steps else ""
    where = ""
    if row.first_input is not None:
        where = f", inputs {row.first_input} to {row.last_input} of {row.seq_len}"
    return f"output {row.position} sees {steps} steps{holes}{where}"


def _verdict(row: ReceptiveFieldRow) -> str:
    if row.causal is None:
        return "no verdict on causality"
    if row.causal:
        return "no output sees the future"
    if row.lookahead_steps is None:
        return "outputs see the whole future"
    return f"the future leaks in, {row.lookahead_steps} steps ahead"


def unmet(spec: ReceptiveFieldSpec, rows: Sequence[ReceptiveFieldRow]) -> list[str]:
    """Returns what --needs and --fail-on-leak miss, a line each."""
    lines = []
    for subject in dict.fromkeys(row.subject for row in rows):
        own = [row for row in rows if row.subject == subject]
        if spec.needs is not None:
            lines += _short(spec, subject, own, spec.needs)
        if spec.fail_on_leak:
            verdict = own[0].causal
            if verdict is False:
                lines.append(f"--fail-on-leak: {subject} sees {own[0].lookahead_steps} steps ahead")
            elif verdict is None:
                lines.append(f"--fail-on-leak: {subject} could not be judged: {own[0].note}")
    return lines


def _short(
    spec: ReceptiveFieldSpec, subject: str, rows: Sequence[ReceptiveFieldRow], needs: int
) -> list[str]:
    reach = max((_reach(row) for row in rows), default=0)
    if reach >= needs:
        return []
    if rows[0].note.startswith("unbounded") and rows[0].status == "ok" and _longest(rows) < needs:
        return [
            f"--needs: {subject} was measured over {_longest(rows)} steps, fewer than {needs}: "
            f"give --seq-len {needs}"
        ]
    return [f"--needs: {subject} sees {reach} steps, {reach} < {needs}{_remedy(spec, needs)}"]


def _reach(row: ReceptiveFieldRow) -> int:
    """Returns what a row says of the reach: what is measured, or predicted where nothing was."""
    if row.measured_steps is not None:
        return row.measured_steps
    if row.predicted_steps is None and row.note.startswith("unbounded"):
        return row.seq_len if row.probe != "structure" else 2**62
    return row.predicted_steps or 0


def _longest(rows: Sequence[ReceptiveFieldRow]) -> int:
    return max(row.seq_len for row in rows)


def _remedy(spec: ReceptiveFieldSpec, needs: int) -> str:
    """Returns which dilations would reach: those given, doubled on as they double."""
    if not spec.inline:
        return ""
    import dataclasses

    from seqdiag.predict.receptive_field import predict_field

    levels = [d for _, d, _ in dataclasses.replace(spec, convs=1, stacks=1).convolutions()]
    if spec.kernel is not None and len(spec.kernel) > 1:
        return ""
    if spec.strides is not None and len(spec.strides) > 1:
        return ""
    for _ in range(40):
        levels.append(2 * levels[-1])
        longer = dataclasses.replace(spec, dilations=tuple(levels))
        steps = predict_field(inline_structure(longer)).steps or 0
        if steps >= needs:
            return f"; --dilations {','.join(map(str, levels))} would see {steps}"
    return ""
