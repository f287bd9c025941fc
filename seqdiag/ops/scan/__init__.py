"""Linear recurrences with a diagonal or scalar transition, over time.

Four ops, each one function with many implementations:

- `linear_scan`: h_t = a_t h_{t-1} + b_t, elementwise.
- `invariant_scan`: a diagonal state of N numbers a channel, the same at every step (S4D).
- `selective_scan`: Mamba (arXiv 2312.00752), a diagonal state of N numbers a channel.
- `ssd_scan`: Mamba-2 (arXiv 2405.21060), one scalar decay a head, a state of P x N numbers.

Letters: B batch, T time, D channels, N state, H heads, P head width, G groups.
"""

from __future__ import annotations

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
}
FUSED = frozenset({"triton"})
"""Selective scans that take the bias, softplus, skip and gate in as well."""
SSD = {
    "reference": "seqdiag.ops.scan.ssd:reference",
    "loop": "seqdiag.ops.scan.ssd:loop",
    "chunked": "seqdiag.ops.scan.ssd:chunked",
}


@dataclass(frozen=True, slots=True)
class ScanProblem:
    """What an implementation needs to know to accept or refuse."""

    batch: int
    steps: int
    dtype: torch.dtype
    time_invariant: bool
    d_state: int = 1
    needs_gradient: bool = False


def linear_scan(a: Tensor, b: Tensor, h0: Tensor | None = None, *, impl: str = "chunked") -> Tensor:
    """Returns h (B, T, ...) of h_t = a_t h_{t-1} + b_t for a, b (B, T, ...), h0 (B, ...).

    `a` may be (1, 1, ...), the same at every step, which `fft` needs. Real or complex.
    """
    _check_steps("linear_scan", b)
    problem = ScanProblem(b.shape[0], b.shape[1], b.dtype, a.shape[:2] == (1, 1))
    run = _load(LINEAR, impl, problem, b.device)
    start = b.new_zeros(b.shape[0], *b.shape[2:]) if h0 is None else h0
    h: Tensor = run(
        a.expand(b.shape) if not problem.time_invariant or impl != "fft" else a, b, start
    )
    return h


def invariant_scan(
    u: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    h0: Tensor | None = None,
    *,
    impl: str = "chunked",
) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, D) and the last state (B, D, N) of a filter fixed over time.

    h_t = a h_{t-1} + b u_t,  y_t = Re(c . h_t), channel by channel: u (B, T, D) real; a, b, c
    (D, N) real or complex; h0 (B, D, N). S4D (arXiv 2206.11893), after discretisation.
    """
    _check_steps("invariant_scan", u)
    run = _load(INVARIANT, impl, ScanProblem(u.shape[0], u.shape[1], u.dtype, True), u.device)
    y, last = run(u, a, b, c, a.new_zeros(u.shape[0], *a.shape) if h0 is None else h0)
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
) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, D) and the last state (B, D, N) of the selective scan.

    h_t = exp(delta_t A) h_{t-1} + delta_t B_t u_t,  y_t = C_t . h_t + D u_t, times SiLU(z_t).

    u, delta, z (B, T, D); A (D, N); B, C (B, T, N); D, delta_bias (D,); h0 (B, D, N).
    Mamba (arXiv 2312.00752), equations 2 and 4 with the simplified B of its code.
    """
    _check_steps("selective_scan", u)
    invariant = all(x.shape[1] == 1 or x.stride(1) == 0 for x in (delta, B, C))
    grads = torch.is_grad_enabled() and any(x.requires_grad for x in (u, delta, A, B, C))
    problem = ScanProblem(u.shape[0], u.shape[1], u.dtype, invariant, A.shape[1], grads)
    run = _load(SELECTIVE, impl, problem, u.device)
    start = u.new_zeros(u.shape[0], *A.shape) if h0 is None else h0
    B, C = (x.expand(u.shape[0], u.shape[1], -1) for x in (B, C))
    if impl in FUSED:
        args = (D, z, delta_bias, delta_softplus, start)
        y, last = run(u, delta.expand(u.shape), A, B, C, *args)
        return y, last
    if delta_bias is not None:
        delta = delta + delta_bias
    if delta_softplus:
        delta = F.softplus(delta)
    y, last = run(u, delta.expand(u.shape), A, B, C, start)
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
) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, H, P) and the last state (B, H, P, N) of the state space dual form.

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T,  y_t = h_t C_t + D x_t, for each head.

    x (B, T, H, P); dt (B, T, H); A, D (H,); B, C (B, T, G, N), each group for H / G heads;
    h0 (B, H, P, N). Mamba-2 (arXiv 2405.21060), section 6.
    """
    _check_steps("ssd_scan", x)
    problem = ScanProblem(x.shape[0], x.shape[1], x.dtype, False)
    run = _load(SSD, impl, problem, x.device)
    start = x.new_zeros(x.shape[0], *x.shape[2:], B.shape[-1]) if h0 is None else h0
    y, last = run(x, dt, A, B, C, start)
    return (y if D is None else y + D[:, None] * x), last


def _check_steps(op: str, x: Tensor) -> None:
    if x.numel() == 0:
        raise ValueError(f"{op} of nothing: {tuple(x.shape)}")


def _load(
    table: dict[str, str], impl: str, problem: ScanProblem, device: torch.device
) -> Callable[..., Any]:
    chosen = load_implementation(table, impl)
    reason = chosen.why_not(problem, device)
    if reason is not None:
        raise ValueError(f"{impl}: {reason}")
    return chosen.run
