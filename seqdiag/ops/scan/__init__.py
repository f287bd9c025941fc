"""Linear recurrences with a diagonal or scalar transition, over time.

Four ops, each one function with many implementations:

- `linear_scan`: h_t = a_t h_{t-1} + b_t, elementwise.
- `invariant_scan`: a diagonal state of N numbers a channel, the same at every step (S4D).
- `selective_scan`: Mamba (arXiv 2312.00752), a diagonal state of N numbers a channel.
- `ssd_scan`: Mamba-2 (arXiv 2405.21060), one scalar decay a head, a state of P x N numbers.

Letters: B batch, T time, D channels, N state, H heads, P head width, G groups.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seqdiag.ops.registry import load_implementation

LINEAR = {
    "reference": "seqdiag.ops.scan.linear:reference",
    "loop": "seqdiag.ops.scan.linear:loop",
    "chunked": "seqdiag.ops.scan.linear:chunked",
    "associative": "seqdiag.ops.scan.linear:associative",
    "fft": "seqdiag.ops.scan.fft:linear_fft",
}
INVARIANT = {
    "reference": "seqdiag.ops.scan.invariant:reference",
    "loop": "seqdiag.ops.scan.invariant:loop",
    "chunked": "seqdiag.ops.scan.invariant:chunked",
    "associative": "seqdiag.ops.scan.invariant:associative",
    "fft": "seqdiag.ops.scan.invariant:fft",
}
SELECTIVE = {
    "reference": "seqdiag.ops.scan.selective:reference",
    "loop": "seqdiag.ops.scan.selective:loop",
    "chunked": "seqdiag.ops.scan.chunked:chunked",
    "associative": "seqdiag.ops.scan.selective:associative",
    "fft": "seqdiag.ops.scan.fft:selective_fft",
    "triton": "seqdiag.ops.scan.selective_triton:fused",
    "triton-associative": "seqdiag.ops.scan.selective_triton:associative",
    "mambapy": "seqdiag.ops.scan.external:mambapy",
    "mamba-ssm": "seqdiag.ops.scan.external:mamba_ssm",
}
SSD = {
    "reference": "seqdiag.ops.scan.ssd:reference",
    "loop": "seqdiag.ops.scan.ssd:loop",
    "chunked": "seqdiag.ops.scan.ssd:chunked",
    "triton": "seqdiag.ops.scan.ssd_triton:chunked",
    "mamba-ssm": "seqdiag.ops.scan.external:mamba_ssm_ssd",
    "fla": "seqdiag.ops.scan.external:fla",
}


FUSED = frozenset({"triton"})
"""Selective scans that take the bias, softplus, skip and gate in as well."""
_NATIVE = FUSED | {"triton-associative", "mamba-ssm", "fla"}
"""Scans that take half precision as it is; the others compute in float32 and round the result."""


@dataclass(frozen=True, slots=True)
class ScanProblem:
    """What an implementation needs to know to accept or refuse."""

    batch: int
    steps: int
    dtype: torch.dtype
    time_invariant: bool
    d_state: int = 1
    head_dim: int = 1
    chunk: int | None = None
    needs_gradient: bool = False
    has_state: bool = False
    """Whether the scan starts from a given state."""


def linear_scan(
    a: Tensor,
    b: Tensor,
    h0: Tensor | None = None,
    *,
    impl: str = "chunked",
    chunk: int | None = None,
) -> Tensor:
    """Returns h (B, T, ...) of h_t = a_t h_{t-1} + b_t for a, b (B, T, ...), h0 (B, ...).

    `a` may be (1, 1, ...), the same at every step, which `fft` needs. Real or complex.
    """
    _check_steps("linear_scan", b)
    problem = ScanProblem(b.shape[0], b.shape[1], b.dtype, a.shape[:2] == (1, 1), chunk=chunk)
    run = _load(LINEAR, impl, problem, b.device)
    start = b.new_zeros(b.shape[0], *b.shape[2:]) if h0 is None else h0
    whole = a if problem.time_invariant and impl == "fft" else a.expand(b.shape)
    if b.dtype in (torch.float16, torch.bfloat16):
        whole, wide, start = whole.float(), b.float(), start.float()
        return run(whole, wide, start, **_chunk(chunk)).to(b.dtype)  # type: ignore[no-any-return]
    h: Tensor = run(whole, b, start, **_chunk(chunk))
    return h


def invariant_scan(
    u: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    h0: Tensor | None = None,
    *,
    impl: str = "chunked",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, D) and the last state (B, D, N) of a filter fixed over time.

    h_t = a h_{t-1} + b u_t,  y_t = Re(c . h_t), channel by channel: u (B, T, D) real; a, b, c
    (D, N) real or complex; h0 (B, D, N). S4D (arXiv 2206.11893), after discretisation.
    """
    _check_steps("invariant_scan", u)
    problem = ScanProblem(u.shape[0], u.shape[1], u.dtype, True, a.shape[1], chunk=chunk)
    run = _load(INVARIANT, impl, problem, u.device)
    start = a.new_zeros(u.shape[0], *a.shape) if h0 is None else h0
    y, last = _in_float32(run, u.dtype, u, a, b, c, start, **_chunk(chunk))
    return y, last


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    *,
    delta_softplus: bool = False,
    h0: Tensor | None = None,
    impl: str = "chunked",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, D) and the last state (B, D, N) of the selective scan.

    h_t = exp(delta_t A) h_{t-1} + delta_t B_t u_t,  y_t = C_t . h_t + D u_t, times SiLU(z_t).

    u, delta, z (B, T, D); A (D, N); B, C (B, T, N); D, delta_bias (D,); h0 (B, D, N). For u in
    half precision states are float32. Mamba (arXiv 2312.00752), equations 2 and 4 with the
    simplified B of its code.
    """
    _check_steps("selective_scan", u)
    invariant = all(x.shape[1] == 1 or x.stride(1) == 0 for x in (delta, B, C))
    problem = ScanProblem(
        u.shape[0],
        u.shape[1],
        u.dtype,
        invariant,
        d_state=A.shape[1],
        chunk=chunk,
        needs_gradient=torch.is_grad_enabled()
        and any(x.requires_grad for x in (u, delta, A, B, C)),
        has_state=h0 is not None,
    )
    run = _load(SELECTIVE, impl, problem, u.device)
    start = u.new_zeros(u.shape[0], *A.shape) if h0 is None else h0
    B, C = (x.expand(u.shape[0], u.shape[1], -1) for x in (B, C))
    if impl in FUSED:
        more = (D, z, delta_bias, delta_softplus, start)
        y, last = run(u, delta.expand(u.shape), A, B, C, *more, **_chunk(chunk))
        return y, last
    operands = (u, delta, A, B, C, D, z, delta_bias, start)
    options: dict[str, Any] = {"run": run, "softplus": delta_softplus, **_chunk(chunk)}
    if impl in _NATIVE:
        y, last = _unfused(*operands, **options)
        return y.to(u.dtype), last
    y, last = _in_float32(_unfused, u.dtype, *operands, **options)
    return y, last


def _unfused(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    h0: Tensor,
    *,
    run: Callable[..., Any],
    softplus: bool,
    **chunk: int,
) -> tuple[Tensor, Tensor]:
    """Returns the selective scan of an implementation that is no more than the recurrence."""
    if delta_bias is not None:
        delta = delta + delta_bias
    if softplus:
        delta = F.softplus(delta)
    y, last = run(u, delta.expand(u.shape), A, B, C, h0, **chunk)
    if D is not None:
        y = y + D * u
    return (y if z is None else y * F.silu(z)), last


def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    h0: Tensor | None = None,
    impl: str = "chunked",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, H, P) and the last state (B, H, P, N) of the state space dual form.

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T,  y_t = h_t C_t + D x_t, for each head.

    x (B, T, H, P); dt (B, T, H); A, D (H,); B, C (B, T, G, N), each group for H / G heads;
    h0 (B, H, P, N). For x in half precision states are float32. Mamba-2 (arXiv 2405.21060),
    section 6.
    """
    _check_steps("ssd_scan", x)
    n = B.shape[-1]
    problem = ScanProblem(
        x.shape[0], x.shape[1], x.dtype, False, d_state=n, head_dim=x.shape[-1], chunk=chunk
    )
    run = _load(SSD, impl, problem, x.device)
    start = x.new_zeros(x.shape[0], *x.shape[2:], n) if h0 is None else h0
    if impl in _NATIVE:
        y, last = run(x, dt, A, B, C, start, **_chunk(chunk))
    else:
        y, last = _in_float32(run, x.dtype, x, dt, A, B, C, start, **_chunk(chunk))
    return (y if D is None else (y + D[:, None] * x).to(x.dtype)), last


def _in_float32(
    compute: Callable[..., tuple[Tensor, Tensor]],
    dtype: torch.dtype,
    *tensors: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Returns what `compute` returns; half precision is computed in float32 and y rounded back."""
    if dtype not in (torch.float16, torch.bfloat16):
        return compute(*tensors, **options)
    y, last = compute(*(None if t is None else t.float() for t in tensors), **options)
    return y.to(dtype), last


def _chunk(chunk: int | None) -> dict[str, int]:
    return {} if chunk is None else {"chunk": chunk}


def _check_steps(op: str, x: Tensor) -> None:
    if x.numel() == 0:
        raise ValueError(f"{op} of nothing: {tuple(x.shape)}")


def _load(
    table: dict[str, str], impl: str, problem: ScanProblem, device: torch.device
) -> Callable[..., Any]:
    chosen = load_implementation(table, impl)
    reason = chosen.why_not(problem, device)
    if problem.chunk is not None and "chunk" not in inspect.signature(chosen.run).parameters:
        reason = "has no chunks"
    if reason is not None:
        raise ValueError(f"{impl}: {reason}")
    return chosen.run
