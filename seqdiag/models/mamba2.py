"""Mamba-2 (Dao and Gu 2024, arXiv 2405.21060), section 7.

Differs from Mamba where it makes the scan a matrix product: one scalar A for each head of P
channels, B and C shared by groups of heads and made from the input rather than from x, the
convolution over x, B and C together, and a gated RMSNorm, group by group, before the output.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqdiag.models.mamba import inverse_softplus, log_uniform_steps
from seqdiag.models.mixer import Mixer, State, conv_tail
from seqdiag.ops.scan import ssd_scan


class Mamba2(Mixer):
    """The state space dual layer. State: the last K-1 inputs of the convolution, and h."""

    def __init__(
        self,
        width: int,
        d_state: int = 16,
        head_dim: int = 16,
        groups: int = 1,
        d_conv: int = 4,
        expand: int = 2,
        impl: str = "chunked",
    ) -> None:
        super().__init__(width)
        self.d_inner, self.d_state, self.d_conv = expand * width, d_state, d_conv
        self.head_dim, self.groups, self.impl = head_dim, groups, impl
        self.heads = self.d_inner // head_dim
        self.d_mixed = self.d_inner + 2 * groups * d_state  # x, B and C go through the convolution
        self.in_proj = nn.Linear(width, self.d_inner + self.d_mixed + self.heads, bias=False)
        self.conv1d = nn.Conv1d(self.d_mixed, self.d_mixed, d_conv, groups=self.d_mixed)
        self.dt_bias = nn.Parameter(inverse_softplus(log_uniform_steps(self.heads)))
        self.A_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = nn.RMSNorm(self.d_inner, eps=1e-5)
        self.out_proj = nn.Linear(self.d_inner, width, bias=False)

    def init_state(self, batch: int) -> State:
        return (
            self._zeros(batch, self.d_conv - 1, self.d_mixed),
            self._zeros(batch, self.heads, self.head_dim, self.d_state),
        )

    def scan(self, u: Tensor, state: State) -> tuple[Tensor, State]:
        tail, h = state
        z, mixed, dt = self._split_input(self.in_proj(u))
        convolved = self.conv1d(torch.cat([tail, mixed], dim=1).transpose(1, 2)).transpose(1, 2)
        x, B, C = self._split_mixed(F.silu(convolved))
        dt = F.softplus(dt + self.dt_bias)
        y, h = ssd_scan(x, dt, -torch.exp(self.A_log), B, C, self.D, h0=h, impl=self.impl)
        out = self._write(y, z)
        return out, (conv_tail(mixed, tail), h)

    def step(self, u_t: Tensor, state: State) -> tuple[Tensor, State]:
        tail, h = state
        z, mixed, dt = self._split_input(self.in_proj(u_t))
        window = torch.cat([tail, mixed.unsqueeze(1)], dim=1)
        convolved = (window * self.conv1d.weight.squeeze(1).t()).sum(dim=1)
        if self.conv1d.bias is not None:
            convolved = convolved + self.conv1d.bias
        x, B, C = self._split_mixed(F.silu(convolved))  # (B, H, P), (B, G, N) twice
        dt = F.softplus(dt + self.dt_bias)
        B, C = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (B, C))
        decay = torch.exp(dt * -torch.exp(self.A_log))[..., None, None]
        h = decay * h + (dt.unsqueeze(-1) * x).unsqueeze(-1) * B.unsqueeze(-2)
        y = (h @ C.unsqueeze(-1)).squeeze(-1) + self.D.unsqueeze(-1) * x
        return self._write(y, z), (window[:, 1:], h)

    def _write(self, y: Tensor, z: Tensor) -> Tensor:
        """Returns the output for y (..., H, P) and its gate z: gated, normalised within a group."""
        gated = (y.flatten(-2) * F.silu(z)).reshape(*z.shape[:-1], self.groups, -1)
        normal = F.rms_norm(gated, gated.shape[-1:], eps=1e-5).flatten(-2)
        out: Tensor = self.out_proj(normal * self.norm.weight)
        return out

    def _split_input(self, projected: Tensor) -> tuple[Tensor, ...]:
        return torch.split(projected, [self.d_inner, self.d_mixed, self.heads], dim=-1)

    def _split_mixed(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns x (..., H, P), B and C (..., G, N)."""
        shared = self.groups * self.d_state
        x, B, C = torch.split(mixed, [self.d_inner, shared, shared], dim=-1)
        lead = mixed.shape[:-1]
        return (
            x.reshape(*lead, self.heads, self.head_dim),
            B.reshape(*lead, self.groups, self.d_state),
            C.reshape(*lead, self.groups, self.d_state),
        )
