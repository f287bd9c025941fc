"""Mamba (Gu and Dao 2023, arXiv 2312.00752), the layer of figure 3.

    x, z = W_in u                              two streams of E = expand x D channels
    x = SiLU(conv1d(x))                        depthwise, causal, kernel K
    delta, B, C = W_x x                        what the input decides: step size, write, read
    delta = softplus(W_dt delta + b_dt)
    h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t        a state of N numbers for each channel
    y_t = C_t h_t + D x_t,   out = W_out (y SiLU(z))

A is negative and diagonal, started at -1 ... -N (S4D-real); b_dt so that delta is log-uniform in
[1e-3, 1e-1]: channel memories from a step to a thousand.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqdiag.models.mixer import Mixer, State, conv_tail
from seqdiag.ops.scan import selective_scan


class Mamba(Mixer):
    """The selective state space layer. State: the last K-1 inputs of the convolution, and h."""

    def __init__(
        self,
        width: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        impl: str = "chunked",
    ) -> None:
        super().__init__(width)
        self.d_inner, self.d_state, self.d_conv = expand * width, d_state, d_conv
        self.dt_rank = dt_rank or math.ceil(width / 16)
        self.impl = impl
        self.in_proj = nn.Linear(width, 2 * self.d_inner, bias=False)
        self.conv1d = nn.Conv1d(self.d_inner, self.d_inner, d_conv, groups=self.d_inner)
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner)
        start = torch.arange(1, d_state + 1, dtype=torch.float32).repeat(self.d_inner, 1)
        self.A_log = nn.Parameter(start.log())
        self.D = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, width, bias=False)
        with torch.no_grad():
            nn.init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
            self.dt_proj.bias.copy_(inverse_softplus(log_uniform_steps(self.d_inner)))

    def init_state(self, batch: int) -> State:
        return (
            self._zeros(batch, self.d_conv - 1, self.d_inner),
            self._zeros(batch, self.d_inner, self.d_state),
        )

    def scan(self, u: Tensor, state: State) -> tuple[Tensor, State]:
        tail, h = state
        x, z = self.in_proj(u).chunk(2, dim=-1)
        convolved = self.conv1d(torch.cat([tail, x], dim=1).transpose(1, 2)).transpose(1, 2)
        tail = conv_tail(x, tail)
        x = F.silu(convolved)
        delta, B, C = self._selection(x)
        y, h = selective_scan(
            x,
            delta,
            -torch.exp(self.A_log),
            B,
            C,
            self.D,
            z,
            self.dt_proj.bias,
            delta_softplus=True,
            h0=h,
            impl=self.impl,
        )
        return self.out_proj(y), (tail, h)

    def step(self, u_t: Tensor, state: State) -> tuple[Tensor, State]:
        tail, h = state
        x, z = self.in_proj(u_t).chunk(2, dim=-1)
        window = torch.cat([tail, x.unsqueeze(1)], dim=1)  # (B, K, E)
        x = (window * self.conv1d.weight.squeeze(1).t()).sum(dim=1)
        x = F.silu(x if self.conv1d.bias is None else x + self.conv1d.bias)
        delta, B, C = self._selection(x)
        delta = F.softplus(delta + self.dt_proj.bias).unsqueeze(-1)  # (B, E, 1)
        h = torch.exp(delta * -torch.exp(self.A_log)) * h
        h = h + delta * x.unsqueeze(-1) * B.unsqueeze(1)
        y = (h @ C.unsqueeze(-1)).squeeze(-1) + self.D * x
        return self.out_proj(y * F.silu(z)), (window[:, 1:], h)

    def _selection(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns delta before its bias and softplus (..., E), B and C (..., N)."""
        delta, B, C = torch.split(
            self.x_proj(x), [self.dt_rank, self.d_state, self.d_state], dim=-1
        )
        return F.linear(delta, self.dt_proj.weight), B, C


def log_uniform_steps(count: int, low: float = 1e-3, high: float = 1e-1) -> Tensor:
    """Returns step sizes drawn log-uniformly from [low, high]."""
    return torch.exp(torch.rand(count) * (math.log(high) - math.log(low)) + math.log(low))


def inverse_softplus(y: Tensor) -> Tensor:
    """Returns x with softplus(x) = y."""
    return y + torch.log(-torch.expm1(-y))
