"""The diagnosis itself: the question, measured, in one of its modes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch

from seqdiag.diagnostics.ssm_bench import by_scan, by_step, by_stream, findings, inspecting
from seqdiag.diagnostics.ssm_bench.row import SsmBenchRow
from seqdiag.diagnostics.ssm_bench.spec import SsmBenchSpec
from seqdiag.measure.aot import require_triton
from seqdiag.measure.device import resolve_device
from seqdiag.ops import interpreter
from seqdiag.report.result import Diagnosis, PlotSpec

Conclude = Callable[[Sequence[SsmBenchRow]], list[str]]

_PLOT = PlotSpec(
    x="seq_len",
    y="time_ms",
    series="implementation",
    x_label="steps",
    y_label="time (ms)",
    log_x=True,
    log_y=True,
)


_PLOT_POSITION = dataclasses.replace(_PLOT, x="position", series="kind", x_label="steps before")


def ssm_bench(spec: SsmBenchSpec) -> Diagnosis:
    """Returns the diagnosis for `spec`.

    Raises `UsageError` for options that do not fit each other, `UnavailableError` for an absent
    device or, with `interpret`, where Triton cannot interpret.
    """
    spec.check()
    if spec.inspect:
        return _inspection(spec)
    device, label = resolve_device(spec.device)
    if spec.interpret:
        interpreter.enable()
    rows, total, conclude = _mode(spec, device)
    return Diagnosis(
        command="ssm-bench",
        spec=spec.as_options(),
        row_type=SsmBenchRow,
        rows=_with_threads(rows, spec.threads),
        total=total,
        conclude=conclude,
        plot=_PLOT if spec.mode == "scan" else _PLOT_POSITION,
        device=label,
        dtype=spec.dtype,
        seed=spec.seed,
    )


def _inspection(spec: SsmBenchSpec) -> Diagnosis:
    """Returns the diagnosis that compiles the kernels and runs nothing."""
    require_triton()
    targets = inspecting.targets_of(spec.inspect)
    return Diagnosis(
        command="ssm-bench",
        spec=spec.as_options(),
        row_type=inspecting.InspectRow,
        rows=inspecting.rows(spec, targets),
        total=inspecting.count(spec, targets),
        conclude=inspecting.conclude,
        device="none: compiled ahead of time",
        dtype=spec.dtype,
    )


def _mode(spec: SsmBenchSpec, device: torch.device) -> tuple[Iterator[SsmBenchRow], int, Conclude]:
    """Returns the rows of a mode, how many there will be, and what to make of them."""
    if spec.mode == "step":
        steps: list[by_step.Step] = []
        rows = by_step.rows(spec, device, steps)
        return rows, by_step.count(spec), lambda _: by_step.conclude(spec, steps)
    if spec.mode == "stream":
        costs: list[by_stream.Cost] = []
        rows = by_stream.rows(spec, device, costs)
        return rows, by_stream.count(spec), lambda _: by_stream.conclude(spec, costs)
    facts = by_scan.Facts([], {})
    rows = by_scan.rows(spec, device, facts)
    return rows, by_scan.count(spec), lambda rows: findings.conclude(spec, facts, rows)


def _with_threads(rows: Iterator[SsmBenchRow], threads: int | None) -> Iterator[SsmBenchRow]:
    with _threads(threads):
        yield from rows


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Runs on `count` CPU threads; None leaves them as they are."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
