"""The selective scan in bounded memory: the default on a CPU.

States live in time-major buffers of one chunk, (steps, B, N, D), reused from chunk to chunk: a
(B, T, D, N) tensor would spend more time in page faults than in arithmetic. N stands before D, so
that every broadcast has a long contiguous inner loop. Decays are powers of two (`exp2` of
delta A log2 e), since `exp` is slow where it underflows. Where a step has few numbers, many chunks
advance together and a second pass starts each from the right state. The backward pass keeps the
states between chunks, computes each chunk anew, and runs the adjoint
g_t = C_t dy_t + a_{t+1} g_{t+1}.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from seqdiag.ops.threads import one_thread

_BUFFER = 2**18
"""Numbers in one buffer of states: about a megabyte, which stays in a core's caches."""
_WIDE = 8192
"""Numbers that one small operation should have, by advancing many chunks together."""
_LOG2_E = 1.0 / math.log(2.0)
_FLOOR = -100.0
"""Exponents below this count as this in float32: 2^-100 of a state is beyond its precision, and
products with denormal numbers are slow."""


def chunked(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, D) and the last state (B, D, N). None chooses the chunk by its bytes."""
    y, last = _Scan.apply(u, delta, A, B, C, h0, chunk)  # type: ignore[no-untyped-call]
    return y, last


class _Scan(torch.autograd.Function):
    """The scan with its hand-written adjoint."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        h0: Tensor,
        chunk: int | None,
    ) -> tuple[Tensor, Tensor]:
        needs = any(ctx.needs_input_grad)
        with one_thread(u):
            chunks = _Chunks(u, delta, A, B, C, chunk)
            y, last, starts = chunks.forward(h0, keep=needs)
        ctx.chunk = chunk
        ctx.save_for_backward(u, delta, A, B, C, *starts)
        return y, last

    @staticmethod
    def backward(ctx: Any, dy: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        u, delta, A, B, C, *starts = ctx.saved_tensors
        with one_thread(u):
            chunks = _Chunks(u, delta, A, B, C, ctx.chunk)
            return (*chunks.backward(starts, dy, d_last), None)


class _Chunks:
    """The operands in time-major layout, and the two passes over them."""

    def __init__(
        self, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk: int | None
    ) -> None:
        self.batch, self.steps, self.width = u.shape
        self.n = A.shape[1]
        step = self.batch * self.n * self.width
        self.together = max(1, min(_WIDE // step, self.steps // 64))
        longest = chunk or (64 if self.together > 1 else max(8, min(256, _BUFFER // step)))
        self.length = min(longest, -(-self.steps // self.together))
        self.delta = _time_major(delta)  # (T, B, D)
        self.written = self.delta * _time_major(u)
        self.u = _time_major(u)
        self.B, self.C = _time_major(B), _time_major(C)  # (T, B, N)
        self.A = A.t().contiguous()  # (N, D)
        self.exponent = (self.A * _LOG2_E).contiguous()
        lowest = self.exponent.min() * self.delta.max() if self.delta.dtype == torch.float32 else 0
        self.clamp = bool(lowest < _FLOOR)

    def decay(self, delta: Tensor, out: Tensor) -> Tensor:
        """Writes exp(delta A) for delta (..., D) into `out` (..., N, D)."""
        torch.mul(delta.unsqueeze(-2), self.exponent, out=out)
        if self.clamp:
            out.clamp_(min=_FLOOR)
        return out.exp2_()

    def forward(self, h0: Tensor, keep: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Returns y, the last state, and the state before each chunk if `keep`."""
        h = h0.transpose(1, 2).contiguous()  # (B, N, D)
        y = self.delta.new_empty(self.steps, self.batch, self.width)
        starts = []
        together = 1 if keep else self.together
        span = self.length * together
        shape = (self.length, together, self.batch, self.n, self.width)
        a, x = h.new_empty(shape), h.new_empty(shape)
        for begin in range(0, self.steps, span):
            steps = min(span, self.steps - begin)
            if steps < span:  # a last piece that does not fill the buffers goes alone
                together, length = (1, steps) if steps < together else (together, self.length)
                if steps < length * together:
                    together, length = 1, min(self.length, steps)
                for at in range(begin, begin + steps, length):
                    size = min(length, begin + steps - at)
                    starts += [h] if keep else []
                    h = self._advance(a[:size, :1], x[:size, :1], at, size, h, y)
                break
            starts += [h] if keep else []
            h = self._advance(a, x, begin, span, h, y)
        return y.transpose(0, 1).contiguous(), h.transpose(1, 2).contiguous(), starts

    def _fill(self, a: Tensor, x: Tensor, begin: int, steps: int) -> None:
        """Writes the decays and inputs of `steps` steps, chunk by chunk side by side."""
        length, together = a.shape[:2]
        piece = slice(begin, begin + steps)

        def side_by_side(t: Tensor) -> Tensor:
            return t[piece].view(together, length, *t.shape[1:]).transpose(0, 1)

        self.decay(side_by_side(self.delta), a)
        torch.mul(
            side_by_side(self.written).unsqueeze(-2), side_by_side(self.B).unsqueeze(-1), out=x
        )

    def _advance(
        self, a: Tensor, x: Tensor, begin: int, steps: int, h: Tensor, y: Tensor
    ) -> Tensor:
        """Runs chunks that stand side by side, writes their y, returns the state after them."""
        self._fill(a, x, begin, steps)
        length, together = a.shape[:2]
        decays, states = a.unbind(0), x.unbind(0)
        start = h.unsqueeze(0) if together == 1 else self._starts(decays, states, begin, h)
        states[0].addcmul_(decays[0], start)
        for t in range(1, length):
            states[t].addcmul_(decays[t], states[t - 1])
        C = self.C[begin : begin + steps].view(together, length, self.batch, 1, self.n)
        read = torch.matmul(C.transpose(0, 1), x).squeeze(-2)  # (length, together, B, D)
        out = y[begin : begin + steps].view(together, length, self.batch, self.width)
        out.copy_(read.transpose(0, 1))
        return states[-1][-1].clone()

    def _starts(
        self, decays: tuple[Tensor, ...], inputs: tuple[Tensor, ...], begin: int, h: Tensor
    ) -> Tensor:
        """Returns the state before each of the chunks that stand side by side."""
        length, together = len(decays), inputs[0].shape[0]
        end, other = inputs[0].clone(), torch.empty_like(inputs[0])
        for t in range(1, length):
            torch.addcmul(inputs[t], decays[t], end, out=other)
            end, other = other, end
        spans = self.delta[begin : begin + length * together]
        total = spans.view(together, length, self.batch, self.width).sum(1)
        decay = self.decay(total, torch.empty_like(end))
        starts = torch.empty_like(end)
        starts[0] = h
        for w in range(1, together):
            torch.addcmul(end[w - 1], decay[w - 1], starts[w - 1], out=starts[w])
        return starts

    def backward(self, starts: list[Tensor], dy: Tensor, d_last: Tensor) -> tuple[Tensor, ...]:
        """Returns the gradients of u, delta, A, B, C and h0."""
        dy = _time_major(dy)
        d_written, d_delta = torch.empty_like(self.written), torch.empty_like(self.delta)
        dB, dC = torch.empty_like(self.B), torch.empty_like(self.C)
        dA = torch.zeros_like(self.A)
        carried = d_last.transpose(1, 2).contiguous()  # a_{t+1} g_{t+1} from the chunk after
        shape = (self.length, 1, self.batch, self.n, self.width)
        a, x, g = (dy.new_empty(shape) for _ in range(3))
        for index in reversed(range(len(starts))):
            begin = index * self.length
            steps = min(self.length, self.steps - begin)
            piece = slice(begin, begin + steps)
            decay, states, adjoint = a[:steps], x[:steps], g[:steps]
            self._fill(decay, states, begin, steps)
            decays, h = decay[:, 0].unbind(0), states[:, 0].unbind(0)
            h[0].addcmul_(decays[0], starts[index])
            for t in range(1, steps):
                h[t].addcmul_(decays[t], h[t - 1])
            states, adjoint, decay = states[:, 0], adjoint[:, 0], decay[:, 0]
            dC[piece] = torch.matmul(states, dy[piece].unsqueeze(-1)).squeeze(-1)
            torch.mul(self.C[piece].unsqueeze(-1), dy[piece].unsqueeze(-2), out=adjoint)
            gs = adjoint.unbind(0)
            gs[-1].add_(carried)
            for t in range(steps - 1, 0, -1):
                gs[t - 1].addcmul_(decays[t], gs[t])
            carried = decays[0] * gs[0]
            d_written[piece] = torch.matmul(self.B[piece].unsqueeze(-2), adjoint).squeeze(-2)
            dB[piece] = torch.matmul(adjoint, self.written[piece].unsqueeze(-1)).squeeze(-1)
            # d(delta A) = g_t a_t h_{t-1}; the states before the step shift by one.
            decay.mul_(adjoint)
            decay[1:].mul_(states[:-1])
            decay[0].mul_(starts[index])
            d_delta[piece] = torch.mul(decay, self.A, out=adjoint).sum(-2)
            dA += decay.mul_(self.delta[piece].unsqueeze(-2)).sum((0, 1))
        du = d_written * self.delta
        d_delta += d_written * self.u
        return (
            _batch_major(du),
            _batch_major(d_delta),
            dA.t().contiguous(),
            _batch_major(dB),
            _batch_major(dC),
            carried.transpose(1, 2).contiguous(),
        )


def _time_major(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous()


def _batch_major(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous()
