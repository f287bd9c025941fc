"""`--mode scan`: every form over a whole sequence, checked, then timed side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from seqdiag.diagnostics.ssm_bench.beside import beside, input_projection
from seqdiag.diagnostics.ssm_bench.candidates import Call, Candidate, scans, status_of
from seqdiag.diagnostics.ssm_bench.checking import Checked
from seqdiag.diagnostics.ssm_bench.forms import takes_chunk
from seqdiag.diagnostics.ssm_bench.row import SsmBenchRow
from seqdiag.diagnostics.ssm_bench.selectivity import selectivity_rows
from seqdiag.diagnostics.ssm_bench.spec import Pass, SsmBenchSpec
from seqdiag.measure.memory import peak_bytes
from seqdiag.measure.timing import Timing, clock_for, time_interleaved


@dataclass(frozen=True, slots=True)
class Measured:
    """A row with what its findings need beyond the row."""

    row: SsmBenchRow
    checked: Checked | None = None
    timing: Timing | None = None


@dataclass(slots=True)
class Facts:
    """What was measured besides the rows."""

    measured: list[Measured]
    parallel_ratio: dict[tuple[str, int], float]
    """Of a recurrent net at a length: the share of its time that waits for no earlier step."""
    copy_gb_per_s: float | None = None


def count(spec: SsmBenchSpec) -> int:
    """Returns how many rows there will be."""
    chunks = len(spec.chunk) if spec.chunk is not None else 1
    forms = sum(chunks if takes_chunk(n) else 1 for k in spec.kinds for n in spec.forms(k))
    return (forms + len(spec.against)) * len(spec.seq_len) * len(spec.pass_) + 2 * _pair(spec)


def _pair(spec: SsmBenchSpec) -> bool:
    return {"lti", "selective"} <= set(spec.kinds)


def rows(spec: SsmBenchSpec, device: torch.device, facts: Facts) -> Iterator[SsmBenchRow]:
    """Yields the rows of a length when all of its forms are timed."""
    if not spec.check_only:
        facts.copy_gb_per_s = _copy_speed(device)
    for steps in spec.seq_len:
        candidates = [c for kind in spec.kinds for c in scans(spec, kind, steps, device)]
        candidates += [beside(spec, name, steps, device) for name in spec.against]
        checked = [candidate.run_check() for candidate in candidates]
        for pass_ in spec.pass_:
            for one in _measure(spec, candidates, checked, pass_, device, facts):
                facts.measured.append(one)
                yield one.row
    if _pair(spec):
        yield from selectivity_rows(spec)


def _measure(
    spec: SsmBenchSpec,
    candidates: list[Candidate],
    checked: list[Checked],
    pass_: Pass,
    device: torch.device,
    facts: Facts,
) -> list[Measured]:
    good = {
        str(i): c
        for i, (c, gate) in enumerate(zip(candidates, checked, strict=True))
        if gate.status == "ok" and c.timed and not spec.check_only and _has_pass(c, pass_)
    }
    failed: dict[str, Exception] = {}
    calls: dict[str, Call] = {}
    for key, candidate in good.items():
        try:
            calls[key] = candidate.call(pass_)
        except Exception as error:
            failed[key] = error
    peaks = {key: _peak(call, device) for key, call in calls.items()}
    nets = [c for c in good.values() if c.implementation in ("rnn", "lstm", "gru")]
    if pass_ == "fwd":
        for net in nets:
            part = input_projection(spec, net.implementation, net.seq_len, device)
            calls[f"part {net.implementation}"] = part.call("fwd")
    share = spec.budget_s / (len(spec.seq_len) * len(spec.pass_))
    timings = time_interleaved(calls, clock_for(device), budget_s=share) if calls else {}
    for net in nets if pass_ == "fwd" else []:
        whole = timings[next(k for k, c in good.items() if c is net)]
        part_timing = timings[f"part {net.implementation}"]
        if whole.error is None and part_timing.error is None:
            ratio = part_timing.median_ms / whole.median_ms
            facts.parallel_ratio[net.implementation, net.seq_len] = min(1.0, ratio)
    loops = {
        c.kind: timings[k].median_ms
        for k, c in good.items()
        if c.implementation == "loop" and k in timings and timings[k].samples_ms
    }
    found = []
    for i, (candidate, gate) in enumerate(zip(candidates, checked, strict=True)):
        timing, problem = timings.get(str(i)), failed.get(str(i))
        if timing is not None and timing.error is not None:
            problem, timing = timing.error, None
        row = _row(spec, candidate, gate, pass_, device, timing, problem, loops, peaks.get(str(i)))
        found.append(Measured(row, gate, timing))
    return found


def _has_pass(candidate: Candidate, pass_: Pass) -> bool:
    return pass_ == "fwd" or not candidate.forward_only


def _row(
    spec: SsmBenchSpec,
    candidate: Candidate,
    gate: Checked,
    pass_: Pass,
    device: torch.device,
    timing: Timing | None,
    error: Exception | None,
    loops: dict[str, float],
    peak: int | None,
) -> SsmBenchRow:
    status, note = (gate.status, gate.note) if error is None else status_of(error)
    if status == "ok" and not _has_pass(candidate, pass_):
        status, note = "unsupported", "forward only"
    if status == "ok":
        notes = [candidate.extra_note, timing.note if timing is not None else ""]
        if not candidate.timed:
            notes.append("interpreted: checked only")
        note = "; ".join(filter(None, notes))
    tokens = spec.batch * candidate.seq_len
    time_ms = timing.median_ms if timing is not None else None
    forward = pass_ == "fwd"
    return SsmBenchRow(
        implementation=candidate.implementation,
        kind=candidate.kind,
        pass_=pass_,
        mode="scan",
        batch=spec.batch,
        d_model=spec.d_model,
        d_state=spec.d_state,
        n_heads=spec.heads,
        chunk=candidate.chunk,
        seq_len=candidate.seq_len,
        position=None,
        dtype=spec.dtype,
        device=candidate.device or device.type,
        time_ms=time_ms,
        time_ms_p10=timing.p10_ms if timing is not None else None,
        time_ms_p90=timing.p90_ms if timing is not None else None,
        repeats=timing.repeats if timing is not None else None,
        first_call_ms=gate.first_call_ms if candidate.timed else None,
        tokens_per_s=tokens / time_ms * 1e3 if time_ms else None,
        time_per_token_us=time_ms / candidate.seq_len * 1e3 if time_ms else None,
        gb_per_s=candidate.min_bytes / time_ms / 1e6
        if time_ms and candidate.min_bytes and forward
        else None,
        flop_count=candidate.flop_count if forward else None,
        min_flop_count=candidate.min_flop_count if forward else None,
        peak_bytes=peak,
        state_bytes=candidate.state_bytes,
        max_abs_error=gate.error.max_abs if gate.error else None,
        rel_rms_error=gate.error.rel_rms if gate.error else None,
        dual_max_error=gate.dual,
        first_divergent_step=gate.first_step,
        speedup_ratio=loops[candidate.kind] / time_ms
        if time_ms and candidate.kind in loops
        else None,
        status=status,
        note=note,
    )


def _peak(call: Call, device: torch.device) -> int | None:
    try:
        return peak_bytes(call, device)
    except RuntimeError:  # it will fail again when timed, and say so
        return None


def _copy_speed(device: torch.device) -> float:
    """Returns GB/s of a copy far larger than the caches, reading and writing counted."""
    source = torch.zeros(2**24, device=device)
    target = torch.empty_like(source)
    calls = {"copy": lambda: target.copy_(source)}
    timing = time_interleaved(calls, clock_for(device), budget_s=0.15)["copy"]
    return 2 * source.numel() * 4 / timing.median_ms / 1e6
