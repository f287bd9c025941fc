"""A diagonal state space that is the same at every step: four forms of one linear filter.

y_t = Re(c . h_t), h_t = a h_{t-1} + b u_t, channel by channel; a, b, c (D, N) real or complex.
The same filter is a convolution with the kernel k_r = Re(c . a^r b), which is what the `fft` and
the chunked form use (S4D, Gu 2022, arXiv 2206.11893).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seqdiag.ops.scan import linear
from seqdiag.ops.scan.fft import convolve, powers_of
from seqdiag.ops.threads import one_thread

_CHUNK = 32
"""Steps in a chunk: its products grow with the chunk, the carries with their number."""


def loop(u: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, D) and the last state (B, D, N), one step at a time."""
    h, outputs = h0, []
    for u_t in u.unbind(1):
        h = a * h + b * u_t.unsqueeze(-1)
        outputs.append(_real((c * h).sum(-1)))
    return torch.stack(outputs, dim=1), h


def reference(u: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the loop computed in double precision."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    y, last = loop(u.double(), *(t.to(wide) for t in (a, b, c, h0)))
    return y.to(u.dtype), last.to(h0.dtype)


def associative(u: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the filter by a parallel prefix over the whole (B, T, D, N) tensor of states."""
    written = b * u.unsqueeze(-1)
    states = linear.associative(a.expand_as(written), written, h0)
    return _real((c * states).sum(-1)), states[:, -1]


def fft(u: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the filter as a convolution over the whole sequence; states are not held."""
    batch, steps, width = u.shape
    size = math.isqrt(steps - 1) + 1  # a^(q S + r) = (a^S)^q a^r: T powers from 2 sqrt(T)
    count = -(-steps // size)
    near = powers_of(a, size + 1)
    far = powers_of(near[size], count)  # (T/S, D, N)
    near = near[:size]
    kernel = _sums(b * c, near, far)[:, :steps]  # (D, T)
    y = convolve(kernel.t().unsqueeze(0), u)
    free = torch.stack([_sums(h * c * a, near, far)[:, :steps].t() for h in h0])
    # The last state: what step t wrote, T - 1 - t steps ago.
    back = torch.cat([u.flip(1), u.new_zeros(batch, count * size - steps, width)], dim=1)
    back = back.view(batch * count, size, width).permute(2, 0, 1).contiguous()
    held = _bmm_real(back, near.transpose(0, 1).contiguous()).view(width, batch, count, -1)
    written = b * (held * far.permute(1, 0, 2).unsqueeze(1)).sum(2).transpose(0, 1)
    return y + free, a**steps * h0 + written


def _sums(weight: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """Returns Re(sum_n w_n a_n^t) as (D, T) for the powers of a split into near and far."""
    left, right = (far * weight).permute(1, 0, 2), near.permute(1, 2, 0)
    return torch.bmm(*_real_product(left, right)).flatten(1)


def chunked(
    u: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor, chunk: int = _CHUNK
) -> tuple[Tensor, Tensor]:
    """Returns the filter as matrix products: inside a chunk a Toeplitz matrix, between them h.

    With U the chunks of a channel (T/Q, Q): y = U K + H W, where K_ji = k_{i-j}, the rows of H are
    the states before each chunk, and W_qn = c_n a_n^(q+1). Only powers of a up to Q are formed.
    """
    with one_thread(u):
        return _chunked(u, a, b, c, h0, chunk)


def _chunked(
    u: Tensor, a: Tensor, b: Tensor, c: Tensor, h0: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    batch, steps, width = u.shape
    size = min(chunk, steps)
    count = -(-steps // size)
    whole, rest = steps // size, steps % size
    powers = powers_of(a, size + 1)  # (Q + 1, D, N)
    padded = u if rest == 0 else torch.cat([u, u.new_zeros(batch, size - rest, width)], dim=1)
    # (D, B T/Q, Q): the channels are the batch of the products.
    chunks = padded.reshape(batch * count, size, width).permute(2, 0, 1).contiguous()
    y = torch.bmm(chunks, _toeplitz(_real((powers[:-1] * (b * c)).sum(-1))))
    write = powers[:-1].flip(0) * b  # (Q, D, N)
    ends = _bmm_real(chunks, write.transpose(0, 1)).view(width, batch, count, -1)
    decay = powers[size].unsqueeze(1)  # (D, 1, N)
    starts, last = _carry(ends.permute(2, 0, 1, 3), decay, h0.transpose(0, 1), whole)
    if rest:  # what the last, shorter chunk wrote, at its own distance
        tail = _bmm_real(
            chunks.view(width, batch, count, size)[:, :, -1, :rest],
            write[size - rest :].transpose(0, 1),
        )
        last = powers[rest].unsqueeze(1) * last + tail
    read = (powers[1:] * c).permute(1, 2, 0)  # (D, N, Q)
    held = starts.permute(1, 2, 0, 3).reshape(width, batch * count, -1)
    y = torch.baddbmm(y, *_real_product(held, read))
    out = y.view(width, batch, count * size).permute(1, 2, 0)[:, :steps]
    return out.contiguous(), last.transpose(0, 1).contiguous()


def _carry(ends: Tensor, decay: Tensor, h0: Tensor, whole: int) -> tuple[Tensor, Tensor]:
    """Returns the state before each chunk (T/Q, D, B, N) and the one after `whole` chunks."""
    count = ends.shape[0]
    if torch.is_grad_enabled() and (ends.requires_grad or decay.requires_grad):
        written = ends.unsqueeze(0)
        states = linear.chunked(decay.expand_as(written), written, h0.unsqueeze(0))[0]
        starts = torch.cat([h0.unsqueeze(0), states])
    else:
        starts = ends.new_empty(count + 1, *ends.shape[1:])
        starts[0] = h0
        starts[1:] = ends
        held = starts.unbind(0)
        for k in range(count):
            held[k + 1].addcmul_(held[k], decay)
    return starts[:count], starts[whole]


def _toeplitz(kernel: Tensor) -> Tensor:
    """Returns (D, Q, Q) with k_{i-j} at (j, i) and zero below, for a kernel (Q, D)."""
    size = kernel.shape[0]
    lag = torch.arange(size) - torch.arange(size).unsqueeze(1)
    wide = torch.cat([kernel, kernel.new_zeros(1, kernel.shape[1])]).t().contiguous()
    return wide[:, lag.masked_fill(lag < 0, size).to(kernel.device)]


def _bmm_real(real: Tensor, other: Tensor) -> Tensor:
    """Returns the batched product of a real and a real or complex tensor, as real products."""
    if not other.is_complex():
        return torch.bmm(real, other)
    parts = torch.view_as_real(other.resolve_conj().contiguous()).flatten(-2)  # (.., 2 N)
    product = torch.bmm(real, parts)
    return torch.view_as_complex(product.view(*product.shape[:-1], -1, 2))


def _real_product(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Returns two real tensors whose product is the real part of `left @ right`."""
    if not left.is_complex():
        return left, right
    return torch.cat([left.real, left.imag], -1), torch.cat([right.real, -right.imag], -2)


def _real(x: Tensor) -> Tensor:
    return x.real if x.is_complex() else x
