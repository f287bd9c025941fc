"""The diagnosis itself: the question, measured, in one of its modes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import torch

from seqdiag.diagnostics.ssm_bench import by_scan, findings
from seqdiag.diagnostics.ssm_bench.row import SsmBenchRow
from seqdiag.diagnostics.ssm_bench.spec import SsmBenchSpec
from seqdiag.measure.device import resolve_device
from seqdiag.ops import interpreter
from seqdiag.report.result import Diagnosis, PlotSpec

_PLOT = PlotSpec(
    x="seq_len",
    y="time_ms",
    series="implementation",
    x_label="steps",
    y_label="time (ms)",
    log_x=True,
    log_y=True,
)


def ssm_bench(spec: SsmBenchSpec) -> Diagnosis:
    """Returns the diagnosis for `spec`.

    Raises `UsageError` for options that do not fit each other, `UnavailableError` for an absent
    device or, with `interpret`, where Triton cannot interpret.
    """
    spec.check()
    device, label = resolve_device(spec.device)
    if spec.interpret:
        interpreter.enable()
    facts = by_scan.Facts([], {})
    rows, total = by_scan.rows(spec, device, facts), by_scan.count(spec)

    def conclude(rows: Sequence[SsmBenchRow]) -> list[str]:
        return findings.conclude(spec, facts, rows)

    return Diagnosis(
        command="ssm-bench",
        spec=dataclasses.asdict(spec),
        row_type=SsmBenchRow,
        rows=_with_threads(rows, spec.threads),
        total=total,
        conclude=conclude,
        plot=_PLOT,
        device=label,
        dtype=spec.dtype,
        seed=spec.seed,
    )


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
