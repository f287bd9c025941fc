"""The selective scan on the Triton kernels: launch shapes, autograd, one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqdiag.ops.scan import ScanProblem
from seqdiag.ops.triton_support import launched_on, why_not_triton

SEGMENT = 64
"""Steps between the states that the forward pass keeps for the backward pass."""
_PROGRAMS = 1024
"""Programs that keep a large GPU busy; below this, time is split into spans."""
_LEAST_SPAN = 4 * SEGMENT
UNROLL = 8
_LARGEST_STATE = 128


@dataclass(frozen=True, slots=True)
class Tile:
    """How a kernel is launched: state rows, channels, warps."""

    states: int
    channels: int
    warps: int


def tile_of(n: int, backward: bool = False) -> Tile:
    """Returns the tile for N states; no shipped one spills registers on sm_80 or sm_90."""
    states = 1 << (n - 1).bit_length()
    if not backward:
        return Tile(states, 32, 8 if states >= 64 else max(1, states // 16))
    if states <= 64:
        return Tile(states, 32, max(1, states // 8))
    # The mask of states that fill no power of two takes registers too.
    return Tile(states, 16 if n == states else 8, 8)


def prefix_block(states: int) -> dict[str, int]:
    """Returns channels and steps of a block of the parallel prefix: 4096 states at most."""
    return {"BD": 4, "BT": max(4, min(64, 1024 // states))}


def why_not(problem: ScanProblem, device: torch.device) -> str | None:
    if problem.d_state > _LARGEST_STATE:
        return f"the kernels hold up to {_LARGEST_STATE} states a channel in registers"
    return why_not_triton(problem.dtype, device)


def why_not_associative(problem: ScanProblem, device: torch.device) -> str | None:
    if problem.needs_gradient:
        return "forward only: a second algorithm, to compare with"
    return why_not(problem, device)


def fused(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    h0: Tensor,
    spans: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, D) and the last state (B, D, N), float32; differentiable in every tensor.

    `spans` is into how many spans time is split; None chooses by the number of channels.
    """
    args = (u, delta, A, B, C, D, z, delta_bias, h0, delta_softplus, spans)
    with launched_on(u.device):
        y, last = _Scan.apply(*args)  # type: ignore[no-untyped-call]
    return y, last


def spans_for(batch: int, width: int, steps: int, channels: int) -> int:
    """Returns into how many spans time is split, so that there are programs enough."""
    programs = batch * -(-width // channels)
    return max(1, min(-(-_PROGRAMS // programs), steps // _LEAST_SPAN))


class _Launch:
    """The operands as the kernels take them, and the launches over them."""

    def __init__(
        self,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        z: Tensor | None,
        bias: Tensor | None,
        softplus: bool,
        spans: int | None,
        backward: bool = False,
    ) -> None:
        self.batch, self.steps, self.width = u.shape
        self.n = A.shape[1]
        self.u, self.delta, self.B, self.C = map(_last_dense, (u, delta, B, C))
        self.z = None if z is None else _last_dense(z)
        self.D = None if D is None else D.contiguous()
        self.bias = None if bias is None else bias.contiguous()
        self.softplus = softplus
        self.exponent = (A.float().t() * 1.4426950408889634).contiguous()  # (N, D)
        self.tile = tile_of(self.n, backward)
        self.blocks = -(-self.width // self.tile.channels)
        wanted = spans or spans_for(self.batch, self.width, self.steps, self.tile.channels)
        self.span = -(-self.steps // wanted // SEGMENT) * SEGMENT if wanted > 1 else self.steps
        self.spans = -(-self.steps // self.span)
        self.grid = (self.batch * self.blocks, self.spans)

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        return self.steps, self.width, self.blocks, self.span

    @property
    def _constants(self) -> dict[str, Any]:
        return {
            "N": self.n,
            "BN": self.tile.states,
            "BD": self.tile.channels,
            "SOFTPLUS": self.softplus,
            "num_warps": self.tile.warps,
        }

    def forward(self, h0: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns y, the last state (B, N, D), and the states at segment edges if `keep`."""
        starts = self._entering(_transposed(h0), self.u, self.B, reverse=False)
        y = self.u.new_empty(self.batch, self.steps, self.width)
        last = starts.new_empty(self.batch, self.n, self.width)
        n_edges = -(-self.steps // SEGMENT)
        edges = starts.new_empty(self.batch, n_edges, self.n, self.width) if keep else None
        _kernels().forward_kernel[self.grid](
            *self._operands, starts, y, last, edges, *self._shape, *self._strides,
            SEGMENT=SEGMENT, UNROLL=UNROLL, **self._constants,
        )  # fmt: skip
        return y, last, edges

    def backward(self, edges: Tensor, dy: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of u, delta, A, B, C, D, z, the bias and h0."""
        dy = _last_dense(dy)
        carries = self._entering(_transposed(d_last), dy, self.C, reverse=True)
        batch, steps, width, n = self.batch, self.steps, self.width, self.n
        du, ddelta = (self.u.new_empty(batch, steps, width) for _ in range(2))
        dz = None if self.z is None else self.u.new_empty(batch, steps, width)
        scratch = carries.new_empty(
            self.grid[0] * self.spans * SEGMENT, self.tile.states * self.tile.channels
        )
        dA = carries.new_empty(batch, self.spans, n, width)
        dB, dC = (carries.new_empty(self.blocks, batch, steps, n) for _ in range(2))
        per_span = (batch, self.spans, width)
        dD = None if self.D is None else carries.new_empty(per_span)
        dbias = None if self.bias is None else carries.new_empty(per_span)
        dh0 = carries.new_empty(batch, n, width)
        _kernels().backward_kernel[self.grid](
            *self._operands, edges, dy, carries, scratch,
            du, ddelta, dz, dA, dB, dC, dD, dbias, dh0,
            *self._shape, *self._strides, dy.stride(0), dy.stride(1),
            SEGMENT=SEGMENT, **self._constants,
        )  # fmt: skip
        return (
            du,
            ddelta,
            dA.sum((0, 1)).t(),
            dB.sum(0),
            dC.sum(0),
            None if dD is None else dD.sum((0, 1)),
            dz,
            None if dbias is None else dbias.sum((0, 1)),
            dh0.transpose(1, 2),
        )

    def _entering(self, boundary: Tensor, x: Tensor, weight: Tensor, reverse: bool) -> Tensor:
        """Returns what enters each span (B, spans, N, D), from its side of time."""
        if self.spans == 1:
            return boundary.unsqueeze(1)
        ends = boundary.new_empty(self.batch, self.spans, self.n, self.width)
        totals = boundary.new_empty(self.batch, self.spans, self.width)
        z = self.z if reverse else None
        _kernels().ends_kernel[self.grid](
            x, self.delta, self.exponent, weight, z, self.bias, ends, totals, *self._shape,
            *_strides(x), *_strides(self.delta), *_strides(z), *_strides(weight),
            UNROLL=UNROLL, REVERSE=reverse, **self._constants,
        )  # fmt: skip
        entering = torch.empty_like(ends)
        block = 256
        _kernels().join_kernel[(-(-self.n * self.width // block), self.batch)](
            boundary, ends, totals, self.exponent, entering, self.spans, self.width,
            N=self.n, BLOCK=block, REVERSE=reverse,
        )  # fmt: skip
        return entering

    @property
    def _operands(self) -> tuple[Tensor | None, ...]:
        return self.u, self.delta, self.exponent, self.B, self.C, self.D, self.z, self.bias

    @property
    def _strides(self) -> list[int]:
        operands = (self.u, self.delta, self.z, self.B, self.C)
        return [stride for x in operands for stride in _strides(x)]


class _Scan(torch.autograd.Function):
    """The kernels with their adjoint."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        z: Tensor | None,
        bias: Tensor | None,
        h0: Tensor,
        softplus: bool,
        spans: int | None,
    ) -> tuple[Tensor, Tensor]:
        launch = _Launch(u, delta, A, B, C, D, z, bias, softplus, spans)
        y, last, edges = launch.forward(h0, keep=any(ctx.needs_input_grad))
        ctx.save_for_backward(u, delta, A, B, C, D, z, bias, h0, edges)
        ctx.settings = softplus, spans
        return y, last.transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, dy: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        *operands, edges = ctx.saved_tensors
        u, delta, A, B, C, D, z, bias, _ = operands
        softplus, spans = ctx.settings
        launch = _Launch(u, delta, A, B, C, D, z, bias, softplus, spans, backward=True)
        gradients = launch.backward(edges, dy, d_last)
        typed = [
            None if g is None else g.to(x.dtype) for g, x in zip(gradients, operands, strict=True)
        ]
        return (*typed, None, None)


def associative(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns y and the last state (float32) by `tl.associative_scan`; no gradients."""
    launch = _Launch(u, delta, A, B, C, None, None, None, False, 1)
    block = prefix_block(launch.tile.states)
    blocks = -(-launch.width // block["BD"])
    y = torch.empty_like(launch.u, memory_format=torch.contiguous_format)
    last = h0.new_empty(launch.batch, launch.n, launch.width, dtype=torch.float32)
    operands = (launch.u, launch.delta, launch.B, launch.C)
    with launched_on(u.device):
        _kernels().associative_kernel[(launch.batch * blocks,)](
            launch.u, launch.delta, launch.exponent, launch.B, launch.C, _transposed(h0), y, last,
            launch.steps, launch.width, blocks, *(s for x in operands for s in _strides(x)),
            N=launch.n, BN=launch.tile.states, num_warps=4, **block,
        )  # fmt: skip
    return y, last.transpose(1, 2).contiguous()


def step(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    state: Tensor,
) -> Tensor:
    """Returns y (B, D) of one step and advances the float32 `state` (B, D, N) in place.

    u, delta, z (B, D); A (D, N); B, C (B, N); D, delta_bias (D,).
    """
    batch, width = u.shape
    tile = tile_of(A.shape[1])
    u, delta, B, C = map(_last_dense, (u, delta, B, C))
    z = None if z is None else _last_dense(z)
    y = u.new_empty(batch, width)
    with launched_on(u.device):
        _kernels().step_kernel[(-(-width // tile.channels), batch)](
            u, delta, A.float().contiguous(), B, C, D, z, delta_bias, state, y,
            width, u.stride(0), delta.stride(0), 0 if z is None else z.stride(0),
            B.stride(0), C.stride(0),
            N=A.shape[1], BN=tile.states, BD=tile.channels, SOFTPLUS=delta_softplus,
            num_warps=tile.warps,
        )  # fmt: skip
    return y


def _kernels() -> Any:
    """Returns the kernels; Triton is imported when the first is launched."""
    from seqdiag.ops.scan import selective_kernels

    return selective_kernels


def _transposed(h: Tensor) -> Tensor:
    """Returns a state (B, D, N) as float32 (B, N, D)."""
    return h.float().transpose(1, 2).contiguous()


def _last_dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(x: Tensor | None) -> tuple[int, int]:
    return (0, 0) if x is None else (x.stride(0), x.stride(1))
