"""The state space dual form on the Triton kernels: launch shapes, schedules, autograd."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from seqdiag.ops.scan import ScanProblem
from seqdiag.ops.triton_support import launched_on, why_not_triton

Schedule = Literal["fused", "chunks"]
CHUNK = 64
CHUNKS = (16, 32, 64, 128)
_PROGRAMS = 128
"""Heads that keep a large GPU busy walking over chunks alone."""
_LARGEST = 128
FUSED_STATES = 64
"""A state with more rows does not fit into registers beside a chunk."""
BACKWARD_CHUNK = 32
_SMALL_STATE = 512


def why_not(problem: ScanProblem, device: torch.device) -> str | None:
    if problem.chunk not in (None, *CHUNKS):
        return f"the kernels take a chunk of {', '.join(map(str, CHUNKS))}"
    if max(problem.d_state, problem.head_dim) > _LARGEST:
        return f"the kernels hold up to {_LARGEST} states and channels of a head on chip"
    return why_not_triton(problem.dtype, device)


def chunked(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    chunk: int | None = None,
    schedule: Schedule | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, H, P) and the last state (B, H, P, N), float32; differentiable.

    `schedule` is `fused` (a program walks over the chunks of a head) or `chunks` (all chunks at
    once, then the states, then the outputs); None chooses by the number of heads and states.
    """
    if schedule is None:
        busy = x.shape[0] * x.shape[2] >= _PROGRAMS or x.shape[1] <= CHUNK
        schedule = "fused" if busy and B.shape[-1] <= FUSED_STATES else "chunks"
    args = (x, dt, A, B, C, h0, chunk or CHUNK, schedule)
    with launched_on(x.device):
        y, last = _SSD.apply(*args)  # type: ignore[no-untyped-call]
    return y, last


def channels_of(n: int, p: int) -> int:
    """Returns the channels of a head that a program of the forward pass takes.

    With these and the warps of `constants` no kernel spills registers on sm_80 or sm_90 in 16 bits
    for heads of 64 channels, as published, and up to 128 states; the fused one up to 64.
    """
    return min(_padded(p), 64 if n <= 64 else 32)


def constants(n: int, p: int, chunk: int, channels: int | None) -> dict[str, Any]:
    """Returns what the kernels are specialised on; `channels` None takes a whole head."""
    return {
        "N": n,
        "BN": _padded(n),
        "BP": channels or _padded(p),
        "Q": chunk,
        "num_warps": 8 if _padded(n) * _padded(p) > _SMALL_STATE else 4,
        "num_stages": 1,
    }


class _Launch:
    """The operands as the kernels take them, and the launches over them."""

    def __init__(self, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk: int) -> None:
        self.batch, self.steps, self.heads, self.width = x.shape
        self.groups, self.n = B.shape[2:]
        self.chunk = chunk
        self.chunks = -(-self.steps // chunk)
        self.x, self.B, self.C = (_dense(t, 2) for t in (x, B, C))
        self.dt, self.A = _dense(dt, 1), A.float().contiguous()
        self.lines = self.batch * self.heads

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        return self.steps, self.heads, self.heads // self.groups, self.width

    @property
    def _strides(self) -> tuple[int, ...]:
        return (
            *self.x.stride()[:2], *self.dt.stride()[:2], *self.B.stride()[:3],
            *self.C.stride()[:3],
        )  # fmt: skip

    def _constants(self, channels: int | None = None) -> dict[str, Any]:
        return constants(self.n, self.width, self.chunk, channels)

    def fused(self, h0: Tensor) -> tuple[Tensor, Tensor]:
        """Returns y and the last state (B, H, N, P), chunk after chunk."""
        y = self.x.new_empty(self.batch, self.steps, self.heads, self.width)
        last = torch.empty_like(h0)
        channels = channels_of(self.n, self.width)
        _kernels().fused_kernel[(self.lines, -(-self.width // channels))](
            self.x, self.dt, self.A, self.B, self.C, h0, y, last,
            *self._shape, *self._strides, **self._constants(channels),
        )  # fmt: skip
        return y, last

    def outputs(self, starts: Tensor) -> Tensor:
        """Returns y from the states before each chunk."""
        y = self.x.new_empty(self.batch, self.steps, self.heads, self.width)
        channels = channels_of(self.n, self.width)
        _kernels().outputs_kernel[(self.lines, self.chunks, -(-self.width // channels))](
            self.x, self.dt, self.A, self.B, self.C, starts, y,
            *self._shape, *self._strides, **self._constants(channels),
        )  # fmt: skip
        return y

    def states(self, boundary: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the state before each chunk (B, H, T/Q, N, P), and the last one."""
        return self._join(boundary, self.x, self.B, reverse=False)

    def adjoints(self, d_last: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the adjoint of the state after each chunk, and of the one before all."""
        return self._join(d_last, dy, self.C, reverse=True)

    def _join(
        self, boundary: Tensor, x: Tensor, weight: Tensor, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        ends = boundary.new_empty(self.lines, self.chunks, self.n, self.width)
        totals = boundary.new_empty(self.lines, self.chunks)
        _kernels().ends_kernel[(self.lines, self.chunks)](
            x, self.dt, self.A, weight, ends, totals, *self._shape,
            *x.stride()[:2], *self.dt.stride()[:2], *weight.stride()[:3],
            REVERSE=reverse, **self._constants(),
        )  # fmt: skip
        entering, final = torch.empty_like(ends), torch.empty_like(boundary)
        size, block = self.n * self.width, 256
        _kernels().join_kernel[(-(-size // block), self.lines)](
            boundary, ends, totals, entering, final, self.chunks, size,
            BLOCK=block, REVERSE=reverse,
        )  # fmt: skip
        return entering, final

    def backward(self, starts: Tensor, dy: Tensor, carries: Tensor) -> tuple[Tensor, ...]:
        """Returns the gradients of x, dt, A, B and C."""
        dx, ddt = self.x.new_empty(dy.shape), self.dt.new_empty(dy.shape[:3])
        dA = starts.new_empty(self.batch, self.heads, self.chunks)
        shape = (self.batch, self.steps, self.heads, self.n)
        dB, dC = starts.new_empty(shape), starts.new_empty(shape)
        read = starts.new_empty(shape[:3])
        operands = (self.x, self.dt, self.A, self.B, self.C, starts, dy)
        scalars = (*self._shape, *self._strides, *dy.stride()[:2])
        grid, constants = (self.lines, self.chunks), self._constants()
        _kernels().readers_kernel[grid](*operands, dC, read, *scalars, **constants)
        _kernels().writers_kernel[grid](
            *operands, carries, read, dx, ddt, dA, dB, *scalars, **constants
        )
        grouped = (self.batch, self.steps, self.groups, -1, self.n)
        return dx, ddt, dA.sum((0, 2)), dB.view(grouped).sum(3), dC.view(grouped).sum(3)


class _SSD(torch.autograd.Function):
    """The kernels with their adjoint."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        h0: Tensor,
        chunk: int,
        schedule: Schedule,
    ) -> tuple[Tensor, Tensor]:
        launch = _Launch(x, dt, A, B, C, chunk)
        start = h0.float().transpose(2, 3).contiguous()
        if schedule == "fused":
            y, last = launch.fused(start)
        else:
            starts, last = launch.states(start)
            y = launch.outputs(starts)
        ctx.save_for_backward(x, dt, A, B, C, h0)
        return y, last.transpose(2, 3).contiguous()

    @staticmethod
    def backward(ctx: Any, dy: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        x, dt, A, B, C, h0 = ctx.saved_tensors
        launch = _Launch(x, dt, A, B, C, BACKWARD_CHUNK)
        dy = _dense(dy, 2)
        # The states are computed anew: kept from the forward pass they would outweigh the inputs.
        starts, _ = launch.states(h0.float().transpose(2, 3).contiguous())
        carries, dh0 = launch.adjoints(d_last.float().transpose(2, 3).contiguous(), dy)
        gradients = (*launch.backward(starts, dy, carries), dh0.transpose(2, 3))
        typed = [g.to(t.dtype) for g, t in zip(gradients, ctx.saved_tensors, strict=True)]
        return (*typed, None, None)


def _kernels() -> Any:
    """Returns the kernels; Triton is imported when the first is launched."""
    from seqdiag.ops.scan import ssd_kernels

    return ssd_kernels


def _padded(size: int) -> int:
    """Returns the tile that holds `size`: a power of two, 16 at least for a matrix unit."""
    return max(16, 1 << (size - 1).bit_length())


def _dense(x: Tensor, trailing: int) -> Tensor:
    """Returns `x` with its last dimensions contiguous, as the kernels index them."""
    expected = 1
    for size, stride in zip(
        x.shape[: -trailing - 1 : -1], x.stride()[: -trailing - 1 : -1], strict=True
    ):
        if size > 1 and stride != expected:
            return x.contiguous()
        expected *= size
    return x
