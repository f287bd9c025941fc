"""Time-invariant diagonal state spaces: S4D and the linear recurrent unit."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqdiag.models.mamba import log_uniform_steps
from seqdiag.models.mixer import Mixer, State
from seqdiag.ops.scan import invariant_scan, linear_scan


class S4D(Mixer):
    """A diagonal complex state space for each channel (Gu 2022, arXiv 2206.11893), S4D-Lin.

    h_t = exp(dt A) h_{t-1} + (exp(dt A) - 1)/A x_t (zero-order hold, B = 1), y = 2 Re(C h) + D x,
    with A_n = -1/2 + i pi n and N/2 complex numbers a channel. State: h, as real pairs.
    """

    def __init__(self, width: int, d_state: int = 16) -> None:
        super().__init__(width)
        half = d_state // 2
        self.log_dt = nn.Parameter(log_uniform_steps(width).log())
        self.log_decay = nn.Parameter(torch.full((width, half), math.log(0.5)))
        self.frequency = nn.Parameter((math.pi * torch.arange(half)).repeat(width, 1))
        self.C = nn.Parameter(torch.randn(width, half, 2) * 0.5**0.5)
        self.D = nn.Parameter(torch.ones(width))
        self.out_proj = nn.Linear(width, width)

    def _discrete(self) -> tuple[Tensor, Tensor]:
        """Returns the transition and the input weight of a step, (D, N/2) complex."""
        A = torch.complex(-self.log_decay.exp(), self.frequency)
        decay = torch.exp(self.log_dt.exp().unsqueeze(-1) * A)
        return decay, (decay - 1) / A

    def init_state(self, batch: int) -> State:
        return (self._zeros(batch, self.width, self.C.shape[1], 2),)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        decay, weight = self._discrete()
        C = 2 * torch.view_as_complex(self.C)
        y, h = invariant_scan(x, decay, weight, C, torch.view_as_complex(state[0]))
        return self._write(y, x), (torch.view_as_real(h),)

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        decay, weight = self._discrete()
        h = decay * torch.view_as_complex(state[0]) + x_t.unsqueeze(-1) * weight
        y = 2 * (h * torch.view_as_complex(self.C)).sum(-1).real
        return self._write(y, x_t), (torch.view_as_real(h),)

    def _write(self, y: Tensor, x: Tensor) -> Tensor:
        out: Tensor = self.out_proj(F.gelu(y + self.D * x))
        return out


class LRU(Mixer):
    """The linear recurrent unit (Orvieto 2023, arXiv 2303.06349).

    h_t = lambda h_{t-1} + gamma B x_t, y = Re(C h) + D x, with |lambda| drawn from a ring and
    gamma = sqrt(1 - |lambda|^2), so that h keeps the scale of x. State: h, as real pairs.
    """

    def __init__(
        self, width: int, d_state: int | None = None, r_min: float = 0.9, r_max: float = 0.999
    ) -> None:
        super().__init__(width)
        n = d_state or width
        radius = torch.sqrt(torch.rand(n) * (r_max**2 - r_min**2) + r_min**2)
        self.nu_log = nn.Parameter((-radius.log()).log())
        self.theta_log = nn.Parameter((torch.rand(n) * 2 * math.pi).log())
        self.B = nn.Parameter(torch.randn(n, width, 2) / (2 * width) ** 0.5)
        self.C = nn.Parameter(torch.randn(width, n, 2) / n**0.5)
        self.D = nn.Parameter(torch.randn(width))

    def _transition(self) -> tuple[Tensor, Tensor]:
        """Returns lambda (N,) complex and gamma (N,)."""
        nu = self.nu_log.exp()
        decay = torch.polar(torch.exp(-nu), self.theta_log.exp())
        return decay, torch.sqrt(-torch.expm1(-2 * nu))

    def init_state(self, batch: int) -> State:
        return (self._zeros(batch, self.B.shape[0], 2),)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        decay, gamma = self._transition()
        h = linear_scan(
            decay.expand(1, 1, -1), self._write(x, gamma), torch.view_as_complex(state[0])
        )
        return self._read(h, x), (torch.view_as_real(h[:, -1].contiguous()),)

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        decay, gamma = self._transition()
        h = decay * torch.view_as_complex(state[0]) + self._write(x_t, gamma)
        return self._read(h, x_t), (torch.view_as_real(h),)

    def _write(self, x: Tensor, gamma: Tensor) -> Tensor:
        real, imaginary = (F.linear(x, part) * gamma for part in self.B.unbind(-1))
        return torch.complex(real, imaginary)

    def _read(self, h: Tensor, x: Tensor) -> Tensor:
        real, imaginary = self.C.unbind(-1)
        return F.linear(h.real, real) - F.linear(h.imag, imaginary) + self.D * x
