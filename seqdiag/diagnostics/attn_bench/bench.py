"""One problem, all implementations: judged one by one, then timed side by side."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqdiag.diagnostics.attn_bench.gate import Gate, repeats_bitwise
from seqdiag.diagnostics.attn_bench.problem import Problem, timed_call
from seqdiag.diagnostics.attn_bench.row import AttnBenchRow, empty_row
from seqdiag.diagnostics.attn_bench.spec import AttnBenchSpec
from seqdiag.errors import is_memory
from seqdiag.measure.allocation import available_bytes
from seqdiag.measure.backend import sdpa_backend
from seqdiag.measure.memory import peak_bytes
from seqdiag.measure.timing import Timing, clock_for, time_interleaved
from seqdiag.ops.attention import IMPLEMENTATIONS, AttentionProblem
from seqdiag.ops.registry import Implementation, load_implementation
from seqdiag.predict.accelerators import Peak
from seqdiag.predict.work import Pass
from seqdiag.units import format_bytes

_INTERPRETED = "flash-triton-interpret"
_BACKENDS = {
    "naive": "eager",
    "reference": "eager float64",
    "blocked": "eager",
    "flash-triton": "triton",
    _INTERPRETED: "triton interpreter",
}
_WHOLE_SCORES = ("naive", "reference", "sdpa-math")
"""These hold score matrices: three at once going forward, twice as many with gradients."""
_L2_MATTERS = 0.05


@dataclass(frozen=True, slots=True)
class Setting:
    """What all problems of a run share."""

    spec: AttnBenchSpec
    dtype: torch.dtype
    device: torch.device
    peak: Peak | None
    peak_is_measured: bool


@dataclass(slots=True)
class _Candidate:
    """An implementation that is right so far."""

    row: AttnBenchRow
    call: Callable[[], object]


def rows(setting: Setting) -> Iterator[AttnBenchRow]:
    """Yields the rows of each problem and pass when all of them are in.

    What a problem leaves of its share of the budget goes to those after it.
    """
    jobs = [(shape, which) for shape in setting.spec.shapes for which in setting.spec.passes]
    left_s = setting.spec.budget
    for done, (shape, which) in enumerate(jobs):
        problem = Problem(shape, setting.dtype, setting.device, setting.spec.seed)
        found, spent_s = _rows_of(setting, problem, which, left_s / (len(jobs) - done))
        left_s = max(0.0, left_s - spent_s)
        yield from found


def _rows_of(
    setting: Setting, problem: Problem, which: Pass, budget_s: float
) -> tuple[list[AttnBenchRow], float]:
    """Returns the rows and the seconds that timing took."""
    names = setting.spec.implementations
    loaded = {name: load_implementation(IMPLEMENTATIONS, name) for name in names}
    found = {name: _refused(setting, problem, which, loaded[name]) for name in names}
    waiting = [name for name in names if found[name].status == "skipped"]
    if not waiting:
        return list(found.values()), 0.0
    try:
        _check_room(problem)
        inputs = problem.inputs()
        gate = Gate(problem, inputs, which != "fwd")
    except (MemoryError, RuntimeError) as error:
        if not is_memory(error):
            raise
        reason = f"no room for the inputs and the exact result: {_first_line(error)}"
        for name in waiting:
            found[name] = replace(found[name], status="oom", note=reason)
        return list(found.values()), 0.0
    candidates: dict[str, _Candidate] = {}
    for name in waiting:
        found[name] = _judged(setting, problem, which, loaded[name], inputs, gate, candidates)
    start = time.perf_counter()
    if not setting.spec.check_only:
        found |= _timed(setting, problem, which, candidates, budget_s)
    return list(found.values()), time.perf_counter() - start


def _check_room(problem: Problem) -> None:
    """Raises `MemoryError` for inputs that would not fit: the system may kill instead of refusing.

    They are drawn in float32 and cast, and the probes hold another set.
    """
    shape = problem.shape
    sizes = shape.tensor_bytes(4 + 2 * problem.dtype.itemsize)
    need, free = sum(sizes.values()), available_bytes(problem.device)
    if free is not None and need > free:
        raise MemoryError(f"{format_bytes(need)} needed, {format_bytes(free)} are free")


def _refused(
    setting: Setting, problem: Problem, which: Pass, implementation: Implementation
) -> AttnBenchRow:
    """Returns the row of an implementation that cannot run, or one that is still to be filled."""
    spec = setting.spec
    row = empty_row(problem, implementation.name, which, spec.mode, spec.mask)
    row = replace(row, backend=_BACKENDS.get(implementation.name, ""))
    reason = implementation.why_not(problem.for_ops, problem.device)
    if reason is not None:
        runs_at_all = any(implementation.why_not(plain, problem.device) is None for plain in _PLAIN)
        status = "unsupported" if runs_at_all else "unavailable"
        return replace(row, status=status, note=reason)  # type: ignore[arg-type]
    if implementation.name in _WHOLE_SCORES:
        shape = problem.shape
        scores = shape.batch * shape.heads * shape.q_len * shape.kv_len * problem.dtype.itemsize
        need, free = scores * (3 if which == "fwd" else 6), available_bytes(problem.device)
        if free is not None and need > free:
            note = f"holds about {format_bytes(need)} of scores, {format_bytes(free)} are free"
            return replace(row, status="oom", note=note)
    return row


_PLAIN = [
    AttentionProblem(1, 2, 2, 64, 64, 64, 64, dtype, True, None)
    for dtype in (torch.float32, torch.float16)
]
"""An implementation that refuses these is missing here, whatever the problem."""


def _judged(
    setting: Setting,
    problem: Problem,
    which: Pass,
    implementation: Implementation,
    inputs: tuple[Tensor, ...],
    gate: Gate,
    candidates: dict[str, _Candidate],
) -> AttnBenchRow:
    """Returns the row after the first call and the gate; puts it among the candidates if right."""
    spec = setting.spec
    row = _refused(setting, problem, which, implementation)
    interpreted = implementation.name == _INTERPRETED
    try:
        call = timed_call(problem, implementation, which, inputs)
        first_ms = clock_for(problem.device, cold=False).time_ms(call)
        verdict = gate.judge(implementation, which)
        backend = row.backend or sdpa_backend(call) or implementation.name
        peak = None if interpreted else peak_bytes(call, problem.device)
        repeats = not spec.deterministic or repeats_bitwise(problem, implementation, which, inputs)
    except Exception as error:
        return _failed(row, error)
    row = replace(
        row,
        status=verdict.status,
        note=verdict.note,
        needles_failed=verdict.needles_failed,
        error_vs_naive_ratio=verdict.ratio,
        max_abs_error=verdict.error.max_abs if verdict.error else None,
        rel_rms_error=verdict.error.rel_rms if verdict.error else None,
        first_call_ms=None if interpreted else first_ms,
        backend=backend,
        peak_bytes=peak,
    )
    if not repeats and row.status == "ok":
        row = replace(row, status="inaccurate", note="ten runs differ in their bits")
    if interpreted:
        return replace(row, note=_join(row.note, "interpreted: correctness only, never timed"))
    if row.status == "ok":
        candidates[implementation.name] = _Candidate(row, call)
    return row


def _failed(row: AttnBenchRow, error: Exception) -> AttnBenchRow:
    """Returns the row of an implementation that raised; the memory it held is free again."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if isinstance(error, MemoryError | RuntimeError) and is_memory(error):
        return replace(row, status="oom", note=_first_line(error))
    if "No available kernel" in str(error):  # a pinned backend of PyTorch that refuses the shape
        return replace(row, status="unsupported", note=_first_line(error))
    return replace(row, status="error", note=f"{type(error).__name__}: {_first_line(error)}")


def _timed(
    setting: Setting,
    problem: Problem,
    which: Pass,
    candidates: dict[str, _Candidate],
    budget_s: float,
) -> dict[str, AttnBenchRow]:
    """Returns the rows of the candidates with their times."""
    spec = setting.spec
    calls = {name: candidate.call for name, candidate in candidates.items()}
    both = spec.l2 == "both"
    budget_s = budget_s / 2 if both else budget_s
    cold = clock_for(problem.device, cold=spec.l2 != "warm")
    timings = time_interleaved(calls, cold, budget_s=budget_s)
    found = {
        name: _with_time(setting, problem, which, candidates[name].row, timing)
        for name, timing in timings.items()
    }
    if both:
        warm_clock = clock_for(problem.device, cold=False)
        for name, timing in time_interleaved(calls, warm_clock, budget_s=budget_s).items():
            found[name] = _with_warm(found[name], timing)
    reference = found.get(spec.against)
    if reference is not None and reference.time_ms:
        for name, row in found.items():
            if row.time_ms:
                found[name] = replace(row, speedup_ratio=reference.time_ms / row.time_ms)
    return found


def _with_time(
    setting: Setting, problem: Problem, which: Pass, row: AttnBenchRow, timing: Timing
) -> AttnBenchRow:
    if timing.error is not None:
        return _failed(row, timing.error)
    seconds = timing.median_ms / 1e3
    flops_per_s = problem.shape.flops(which) / seconds
    bytes_per_s = row.min_bytes / seconds
    ratio = _peak_ratio(setting, row, flops_per_s, bytes_per_s)
    row = replace(
        row,
        time_ms=timing.median_ms,
        time_ms_p10=timing.p10_ms,
        time_ms_p90=timing.p90_ms,
        repeats=timing.repeats,
        tflop_per_s=flops_per_s / 1e12,
        gb_per_s=bytes_per_s / 1e9,
        peak_ratio=ratio,
        note=_join(row.note, timing.note),
    )
    if ratio is not None and ratio > 1 and not setting.peak_is_measured and row.mode != "decode":
        return replace(row, status="error", note=f"{ratio:.2f} of the device's peak: timed wrongly")
    return row


def _peak_ratio(
    setting: Setting, row: AttnBenchRow, flops_per_s: float, bytes_per_s: float
) -> float | None:
    if setting.peak is None:
        return None
    if row.mode == "decode":
        return bytes_per_s / setting.peak.bytes_per_s
    most = setting.peak.flops(row.dtype)
    return None if most is None else flops_per_s / most


def _with_warm(row: AttnBenchRow, timing: Timing) -> AttnBenchRow:
    if timing.error is not None or row.time_ms is None:
        return row
    warm = timing.median_ms
    if abs(warm - row.time_ms) <= _L2_MATTERS * row.time_ms:
        return replace(row, note=_join(row.note, "a warm L2 changes less than 5 %"))
    return replace(row, note=_join(row.note, f"with a warm L2 {warm:.4g} ms"))


def conditions(rows: Sequence[AttnBenchRow]) -> dict[tuple[object, ...], list[AttnBenchRow]]:
    """Returns the rows by problem and pass: those that compare with each other."""
    groups: dict[tuple[object, ...], list[AttnBenchRow]] = {}
    names = [f.name for f in dataclasses.fields(AttnBenchRow)][1:14]
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    return groups


def _join(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{text.splitlines()[0]:.200}"
