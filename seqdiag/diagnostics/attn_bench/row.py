"""The row of `attn-bench`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from seqdiag.diagnostics.attn_bench.problem import Problem
from seqdiag.report.result import PlotSpec
from seqdiag.report.schema import Status, column

PLOT = PlotSpec(
    x="seq_len",
    y="time_ms",
    series="implementation",
    x_label="sequence length",
    y_label="time (ms)",
    log_x=True,
    log_y=True,
)
DECODE_PLOT = dataclasses.replace(PLOT, x="kv_len", x_label="context (tokens)")


@dataclass(frozen=True, slots=True)
class AttnBenchRow:
    """One implementation on one problem."""

    implementation: str = column("how attention is computed", identity=True)
    pass_: str = column("fwd, bwd, or both as a unit", identity=True)
    mode: str = column("prefill, or decode: new queries on a cache", identity=True)
    batch: int = column("sequences at once", identity=True)
    n_heads: int = column("query heads", identity=True)
    n_kv_heads: int = column("key and value heads", identity=True)
    head_dim: int = column("of queries and keys", identity=True)
    head_dim_v: int = column("of values", identity=True)
    seq_len: int = column("queries", unit="tokens", identity=True)
    kv_len: int = column("keys", unit="tokens", identity=True)
    mask: str = column("full, causal, or window:W with W keys", identity=True)
    align: str = column("which corner the mask is aligned to", identity=True)
    dtype: str = column("of inputs and outputs", identity=True)
    device: str = column("where it ran", identity=True)
    time_ms: float | None = column("median", unit="ms")
    time_ms_p10: float | None = column("10th percentile", unit="ms")
    time_ms_p90: float | None = column("90th percentile", unit="ms")
    repeats: int | None = column("samples behind the median")
    first_call_ms: float | None = column("first call, compilation included", unit="ms")
    tflop_per_s: float | None = column("exact FLOPs of visible pairs / time", unit="TFLOP/s")
    gb_per_s: float | None = column("min_bytes / time", unit="GB/s")
    peak_ratio: float | None = column("of the device's peak: FLOPs, or bytes when decoding")
    peak_bytes: int | None = column("most memory held beyond the inputs", unit="B")
    min_bytes: int = column("traffic if every tensor crosses memory once", unit="B")
    materialised_bytes: int = column("traffic if every score crosses memory, unfused", unit="B")
    max_abs_error: float | None = column("largest error against float64")
    rel_rms_error: float | None = column("rms error against float64, relative")
    error_vs_naive_ratio: float | None = column("rms error / that of a naive run in this dtype")
    needles_failed: int | None = column("keys lost, or seen though hidden, of those probed")
    speedup_ratio: float | None = column("time of --against / time")
    backend: str = column("what really ran")
    status: Status = column("ok, or why there is no time")
    note: str = column("why, or what to know")


def empty_row(
    problem: Problem, implementation: str, which: str, mode: str, mask: str
) -> AttnBenchRow:
    """Returns the row of a problem with nothing measured yet."""
    shape = problem.shape
    itemsize = problem.dtype.itemsize
    missing = {
        field.name: None for field in dataclasses.fields(AttnBenchRow) if "None" in str(field.type)
    }
    return AttnBenchRow(
        implementation=implementation,
        pass_=which,
        mode=mode,
        batch=shape.batch,
        n_heads=shape.heads,
        n_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        head_dim_v=shape.v_head_dim,
        seq_len=shape.q_len,
        kv_len=shape.kv_len,
        mask=mask,
        align=shape.align,
        dtype=str(problem.dtype).removeprefix("torch."),
        device=str(problem.device),
        min_bytes=shape.min_bytes(itemsize, which),  # type: ignore[arg-type]
        materialised_bytes=shape.materialised_bytes(itemsize, which),  # type: ignore[arg-type]
        backend="",
        status="skipped",
        note="",
        **missing,
    )
