"""`--mode step`: one more token after t others, the state truly rolled that far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seqdiag.diagnostics.ssm_bench.candidates import Call
from seqdiag.diagnostics.ssm_bench.problems import Problem, draw, shape_of
from seqdiag.diagnostics.ssm_bench.row import SsmBenchRow
from seqdiag.diagnostics.ssm_bench.spec import SsmBenchSpec
from seqdiag.measure.allocation import available_bytes
from seqdiag.measure.timing import Clock, Timing, clock_for, quantile
from seqdiag.ops.attention import attention
from seqdiag.ops.scan import selective_triton
from seqdiag.ops.triton_support import why_not_triton
from seqdiag.predict.scan_work import Kind
from seqdiag.report.schema import Status
from seqdiag.units import format_bytes, format_tokens

_PIECE = 16384
"""Steps of the prefill at a time: what bounds its memory."""
_MOST_SAMPLES, _FEWEST_SAMPLES = 2000, 5
_TAIL_SAMPLES = 200
"""Samples below which a 99th percentile says nothing."""
_CHUNKED = {"lti": "chunked", "selective": "chunked", "ssd": "chunked", "linear-rnn": "chunked"}
FLAT = 0.10
"""A step cost that changes by less counts as constant."""


@dataclass(slots=True)
class Step:
    """One implementation of a step at one position."""

    implementation: str
    kind: str
    position: int
    state_bytes: int
    read_bytes: int
    call: Call | None = None
    timing: Timing | None = None
    status: Status = "ok"
    note: str = ""


def count(spec: SsmBenchSpec) -> int:
    kernels = "selective" in spec.kinds
    return (len(spec.kinds) + kernels + _attends(spec)) * len(spec.position)


def _attends(spec: SsmBenchSpec) -> bool:
    return "attention" in spec.against


def rows(spec: SsmBenchSpec, device: torch.device, measured: list[Step]) -> Iterator[SsmBenchRow]:
    """Yields a row for each kind and for attention at each position, all timed in turns."""
    for kind in spec.kinds:
        measured += _recurrent_steps(spec, kind, device)
    if _attends(spec):
        measured += _attention_steps(spec, device)
    if not spec.check_only:
        _time(measured, clock_for(device), spec.budget_s)
    for step in measured:
        step.call = None
        yield _row(spec, step, device)


def _recurrent_steps(spec: SsmBenchSpec, kind: Kind, device: torch.device) -> list[Step]:
    """Rolls the state through every position, in order, and keeps a step at each."""
    state: Tensor | None = None
    shape, itemsize = shape_of(spec, kind, 1), getattr(torch, spec.dtype).itemsize
    gone, kernels = 0, []
    by_position: dict[int, Step] = {}
    for position in sorted(spec.position):
        state = _rolled(spec, kind, device, gone, position, state)
        gone = position
        problem = draw(spec, kind, 1, device)
        held = problem.empty_state(_state_dtype(spec)) if state is None else state
        bytes_held = held.numel() * held.element_size()
        if kind == "selective":
            kernels.append(_kernel_step(problem, position, held))
        by_position[position] = Step(
            implementation="step",
            kind=kind,
            position=position,
            state_bytes=bytes_held,
            read_bytes=shape.min_bytes(itemsize) + 2 * bytes_held,
            call=_step_call(problem, held.clone()),
            note="" if torch.isfinite(held).all() else "the state is not finite",
            status="ok" if torch.isfinite(held).all() else "nonfinite",
        )
    kernels.sort(key=lambda step: spec.position.index(step.position))
    return [*(by_position[position] for position in spec.position), *kernels]


def _kernel_step(problem: Problem, position: int, state: Tensor) -> Step:
    """Returns a step of the Triton kernel, which advances a state of its own in place."""
    size = state.numel() * state.element_size()
    found = Step("scan-triton step", "selective", position, size, 3 * size)
    reason = why_not_triton(problem.driven.dtype, state.device)
    if state.device.type != "cuda":
        reason = "needs a CUDA device"
    if reason is not None:
        found.status, found.note = "unavailable", reason
        return found
    i, held = problem.inputs, state.clone()
    at = [i[name][:, 0] for name in ("u", "delta", "B", "C")]

    def call() -> Any:
        return selective_triton.step(
            at[0], at[1], i["A"], at[2], at[3], None, None, None, problem.softplus, held
        )

    found.call = call
    return found


def _rolled(
    spec: SsmBenchSpec,
    kind: Kind,
    device: torch.device,
    first: int,
    last: int,
    state: Tensor | None,
) -> Tensor | None:
    """Returns the state after the steps `first` to `last`, each piece with inputs of its own."""
    while first < last:
        steps = min(_PIECE, last - first)
        piece = draw(replace(spec, seed=spec.seed + first), kind, steps, device)
        fixed = draw(spec, kind, 1, device).inputs  # the decays are those of the model, always
        inputs = {n: x if n in piece.timed else fixed[n] for n, x in piece.inputs.items()}
        with torch.no_grad():
            state = Problem(kind, inputs, piece.softplus).scan(_CHUNKED[kind], None, state)[1]
        first += steps
    return state


def _state_dtype(spec: SsmBenchSpec) -> torch.dtype:
    return torch.float64 if spec.dtype == "float64" else torch.float32


def _step_call(problem: Problem, state: Tensor) -> Call:
    """Returns a step that goes on from its own last state, as a model does."""
    step, operands = problem.stepper(state.dtype)
    at = tuple(operands[name][:, 0] for name in problem.timed)
    held = [state]

    def call() -> Any:
        with torch.no_grad():
            y, held[0] = step(at, held[0])
        return y

    return call


def _attention_steps(spec: SsmBenchSpec, device: torch.device) -> list[Step]:
    """One query against a cache of each length; the longest is allocated, the others are cuts."""
    dtype = getattr(torch, spec.dtype)
    dim = spec.d_model // spec.heads
    one = 2 * spec.batch * spec.d_model * dtype.itemsize
    room = available_bytes(device)
    fits = [p for p in spec.position if room is None or (p + 1) * one < 0.8 * room]
    generator = torch.Generator().manual_seed(spec.seed)
    shape = (spec.batch, spec.heads, max(fits, default=0) + 1, dim)
    k, v = (
        torch.randn(shape, generator=generator, dtype=torch.float32).to(device, dtype)
        for _ in range(2)
    )
    q = torch.randn(*shape[:2], 1, dim, generator=generator).to(device, dtype)
    steps = []
    for position in spec.position:
        size = (position + 1) * one
        step = Step("attention decode", "attention", position, size, size)
        if position in fits:
            step.call = _decode_call(q, k[:, :, : position + 1], v[:, :, : position + 1])
            step.note = "the operator alone, its token in the cache"
        else:
            step.status = "oom"
            step.note = f"a cache of {format_bytes(size)}; {format_bytes(room or 0)} are free"
        steps.append(step)
    return steps


def _decode_call(q: Tensor, k: Tensor, v: Tensor) -> Call:
    def call() -> Any:
        with torch.no_grad():
            return attention(q, k, v, causal=False, impl="sdpa")

    return call


def _time(steps: Sequence[Step], clock: Clock, budget_s: float) -> None:
    """Times the positions of a kind in turns: many samples, for the tail; slow ones a few."""
    groups: dict[str, list[Step]] = {}
    for step in steps:
        if step.call is not None and step.status == "ok":
            groups.setdefault(step.implementation + step.kind, []).append(step)
    for group in groups.values():  # a long cache would sweep the others' states out of theirs
        _time_group(group, clock, budget_s / len(groups))


def _time_group(steps: Sequence[Step], clock: Clock, budget_s: float) -> None:
    for step in steps:
        step.timing = Timing()
        clock.time_ms(_called(step))
    end = clock.now_s() + budget_s
    rounds = 0
    while rounds < _FEWEST_SAMPLES or (rounds < _MOST_SAMPLES and clock.now_s() < end):
        for step in steps if rounds % 2 == 0 else reversed(steps):
            if step.timing is not None and not _slow(step.timing, budget_s, len(steps)):
                step.timing.samples_ms.append(clock.time_ms(_called(step)))
        rounds += 1


def _called(step: Step) -> Call:
    assert step.call is not None
    return step.call


def _slow(timing: Timing, budget_s: float, among: int) -> bool:
    """Returns whether a step has had its share of the budget, so that the others go on."""
    return timing.repeats >= _FEWEST_SAMPLES and sum(timing.samples_ms) > 1e3 * budget_s / among


def _row(spec: SsmBenchSpec, step: Step, device: torch.device) -> SsmBenchRow:
    timing = step.timing
    time_ms = timing.median_ms if timing is not None else None
    notes = [step.note]
    if timing is not None and timing.repeats >= _TAIL_SAMPLES:
        notes.append(f"p99 {quantile(timing.samples_ms, 0.99):.3g} ms")
    return SsmBenchRow(
        implementation=step.implementation,
        kind=step.kind,
        pass_="fwd",
        mode="step",
        batch=spec.batch,
        d_model=spec.d_model,
        d_state=spec.d_state,
        n_heads=spec.heads,
        chunk=None,
        seq_len=1,
        position=step.position,
        dtype=spec.dtype,
        device=device.type,
        time_ms=time_ms,
        time_ms_p10=timing.p10_ms if timing is not None else None,
        time_ms_p90=timing.p90_ms if timing is not None else None,
        repeats=timing.repeats if timing is not None else None,
        first_call_ms=None,
        tokens_per_s=spec.batch * 1e3 / time_ms if time_ms else None,
        time_per_token_us=time_ms * 1e3 if time_ms else None,
        gb_per_s=step.read_bytes / time_ms / 1e6 if time_ms else None,
        flop_count=None,
        min_flop_count=None if step.kind == "attention" else shape_of(spec, step.kind, 1).min_flops,  # type: ignore[arg-type]
        peak_bytes=None,
        state_bytes=step.state_bytes,
        max_abs_error=None,
        rel_rms_error=None,
        dual_max_error=None,
        first_divergent_step=None,
        speedup_ratio=None,
        status=step.status,
        note="; ".join(filter(None, notes)),
    )


def conclude(spec: SsmBenchSpec, measured: Sequence[Step]) -> list[str]:
    """Says which line is flat and which rises."""
    lines = []
    for kind, form in dict.fromkeys((step.kind, step.implementation) for step in measured):
        own = [s for s in measured if (s.kind, s.implementation) == (kind, form)]
        timed = sorted(
            (s for s in own if s.timing and s.timing.samples_ms),
            key=lambda s: s.position,
        )
        if len(timed) > 1:
            lines.append(_trend(kind, [s for s in timed if s.position >= 1024] or timed))
    return lines


def _trend(kind: str, timed: Sequence[Step]) -> str:
    first, last = timed[0], timed[-1]
    a, b = first.timing, last.timing
    assert a is not None and b is not None
    ratio = b.median_ms / a.median_ms
    low, high = b.interval_ms[0] / a.interval_ms[1], b.interval_ms[1] / a.interval_ms[0]
    where = f"{format_tokens(last.position)} against {format_tokens(first.position)} steps"
    span = f"{short(ratio)}x the time at {where} (95 % interval {short(low)} to {short(high)})"
    held = (
        f"{format_bytes(first.state_bytes)} held throughout"
        if first.state_bytes == last.state_bytes
        else f"{format_bytes(first.state_bytes)} held, then {format_bytes(last.state_bytes)}"
    )
    if first.position == last.position:
        return f"{kind}: {a.median_ms * 1e3:.3g} us a step, {held}."
    if low <= 1 + FLAT and high >= 1 - FLAT and abs(ratio - 1) <= FLAT:
        return f"{kind}: a step costs the same however long the past: {span}, {held}."
    power = math.log(ratio) / math.log(max(last.position, 2) / max(first.position, 1))
    return f"{kind}: the cost of a step goes as t^{power:.2f}: {span}, {held}."


def short(value: float) -> str:
    """Returns a number with three digits or more, never as a power of ten."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
