"""The columns of `ssm-bench`."""

from __future__ import annotations

from dataclasses import dataclass

from seqdiag.report.schema import Status, column


@dataclass(frozen=True, slots=True, kw_only=True)
class SsmBenchRow:
    """One implementation on one problem."""

    implementation: str = column("which form computes it", identity=True)
    kind: str = column("which recurrence, or what stands beside it", identity=True)
    pass_: str = column("fwd, bwd (of a forward pass done before), or both", identity=True)
    mode: str = column("scan, step, stream or selectivity", identity=True)
    batch: int = column("sequences at once", identity=True)
    d_model: int = column("channels", identity=True)
    d_state: int = column("numbers of state a channel", identity=True)
    n_heads: int = column("heads of ssd and of attention", identity=True)
    chunk: int | None = column("steps in a chunk; empty: its own choice or none", identity=True)
    seq_len: int | None = column("steps of the sequence", identity=True)
    position: int | None = column("steps that went by before this one", identity=True)
    dtype: str = column("dtype of inputs and outputs", identity=True)
    device: str = column("cpu, cuda, or cpu (interpreter)", identity=True)
    time_ms: float | None = column("median time of a call", unit="ms")
    time_ms_p10: float | None = column("10th percentile", unit="ms")
    time_ms_p90: float | None = column("90th percentile", unit="ms")
    repeats: int | None = column("samples")
    first_call_ms: float | None = column("first call, compilation included", unit="ms")
    tokens_per_s: float | None = column("steps of all sequences a second")
    time_per_token_us: float | None = column("time a step of one sequence", unit="us")
    gb_per_s: float | None = column("operands and results crossing memory once, a second (1e9)")
    flop_count: int | None = column("operations of this form, forward; exp not counted")
    min_flop_count: int | None = column("operations of the bare recurrence, forward")
    peak_bytes: int | None = column("most memory beyond the inputs", unit="bytes")
    state_bytes: int | None = column("what is kept from step to step", unit="bytes")
    max_abs_error: float | None = column("largest difference to float64")
    rel_rms_error: float | None = column("||result - float64|| / ||float64||, the worst tensor's")
    dual_max_error: float | None = column(
        "largest difference to the step-by-step form in the same dtype, over the largest output"
    )
    first_divergent_step: int | None = column("first step that is not finite, or not the same")
    speedup_ratio: float | None = column("time of the loop over this one's")
    status: Status = column("ok, or why there is no speed")
    note: str = column("what limits the numbers")
