"""Time-invariant recurrences as convolutions, by FFT padded to twice the length.

h = kernel * b with the kernel a^t. Shows that the three forms are one function; on a CPU the
chunked form is faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqdiag.ops.scan import ScanProblem


def why_not(problem: ScanProblem, device: torch.device) -> str | None:
    return None if problem.time_invariant else "a convolution needs a transition fixed over time"


def linear_fft(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """Returns h (B, T, ...) for a (1, 1, ...): sum_s a^(t-s) b_s + a^(t+1) h0."""
    steps = b.shape[1]
    powers = powers_of(a[0, 0], steps + 1)  # (T + 1, ...)
    free = powers[1:].unsqueeze(0) * h0.unsqueeze(1)
    return convolve(powers[:-1].unsqueeze(0), b) + free


def selective_fft(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns y (B, T, D) and the last state for delta, B, C that are the same at every step.

    The kernel of each channel is C . (exp(delta A)^t) delta B, so states need not be held.
    """
    steps = u.shape[1]
    delta, B, C = delta[:, 0], B[:, 0], C[:, 0]  # (B, D), (B, N), (B, N)
    decay = torch.exp(delta.unsqueeze(-1) * A)  # (B, D, N)
    powers = powers_of(decay, steps + 1)  # (T + 1, B, D, N)
    written = delta.unsqueeze(-1) * B.unsqueeze(1)
    kernel = torch.einsum("tbdn,bdn,bn->btd", powers[:-1], written, C)
    y = convolve(kernel, u) + torch.einsum("tbdn,bdn,bn->btd", powers[1:], h0, C)
    last = powers[-1] * h0 + torch.einsum("tbdn,bdn,btd->bdn", powers[:-1].flip(0), written, u)
    return y, last


def powers_of(a: Tensor, count: int) -> Tensor:
    """Returns a^0 ... a^(count - 1), by doubling: rounding grows with log t rather than t."""
    powers = torch.ones_like(a).unsqueeze(0)
    factor = a
    while powers.shape[0] < count:
        powers = torch.cat([powers, powers * factor])
        factor = factor * factor
    return powers[:count]


def convolve(kernel: Tensor, b: Tensor) -> Tensor:
    """Returns the causal convolution over dimension 1, zero-padded so that it does not wrap."""
    steps = b.shape[1]
    if b.is_complex() or kernel.is_complex():
        product = torch.fft.fft(kernel, 2 * steps, dim=1) * torch.fft.fft(b, 2 * steps, dim=1)
        whole: Tensor = torch.fft.ifft(product, dim=1)
    else:
        product = torch.fft.rfft(kernel, 2 * steps, dim=1) * torch.fft.rfft(b, 2 * steps, dim=1)
        whole = torch.fft.irfft(product, 2 * steps, dim=1)
    return whole[:, :steps]
