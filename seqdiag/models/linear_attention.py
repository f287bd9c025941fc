"""Layers around the linear memories: linear attention, retention, GLA, the delta rules.

Each head keeps a matrix S (K x V) that the input writes to and reads from; the write rules are
those of `ops.memory`. State: S, and for normalised linear attention the sum of its keys.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqdiag.models.mixer import Mixer, State
from seqdiag.ops.memory import additive, delta, feature_map, memory_step


class MemoryMixer(Mixer):
    """Projects to q, k, v of several heads, writes and reads, projects back."""

    def __init__(self, width: int, heads: int = 4, key_dim: int | None = None) -> None:
        super().__init__(width)
        self.heads = heads
        self.key_dim = key_dim or width // heads
        self.value_dim = width // heads
        self.q_proj = nn.Linear(width, heads * self.key_dim, bias=False)
        self.k_proj = nn.Linear(width, heads * self.key_dim, bias=False)
        self.v_proj = nn.Linear(width, heads * self.value_dim, bias=False)
        self.out_proj = nn.Linear(heads * self.value_dim, width, bias=False)

    @abstractmethod
    def rule(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Returns the log decay and the write strength at x (B, T, D), None where there is none."""

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns q and k (B, H, T, K)."""
        return self._split(self.q_proj(x)) * self.key_dim**-0.5, self._split(self.k_proj(x))

    def init_state(self, batch: int) -> State:
        return (self._zeros(batch, self.heads, self.key_dim, self.value_dim),)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        q, k = self.keys(x)
        v = self._split(self.v_proj(x))
        log_g, beta = self.rule(x)
        if beta is None:
            read, memory = additive(q, k, v, state[0], log_g)
        else:
            read, memory = delta(q, k, v, beta, state[0], log_g)
        return self._join(read), (memory,)

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        x = x_t.unsqueeze(1)
        q, k = (t.squeeze(2) for t in self.keys(x))
        v = self._split(self.v_proj(x)).squeeze(2)
        log_g, beta = (None if t is None else t.squeeze(2) for t in self.rule(x))
        read, memory = memory_step(q, k, v, state[0], log_g, beta)
        return self._join(read.unsqueeze(2)).squeeze(1), (memory,)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def _join(self, read: Tensor) -> Tensor:
        """Returns the reads (B, H, T, V) normalised for each head and projected, (B, T, D)."""
        normal = F.rms_norm(read, read.shape[-1:], eps=1e-5)
        out: Tensor = self.out_proj(normal.transpose(1, 2).flatten(2))
        return out


class LinearAttention(MemoryMixer):
    """y_t = phi(q_t) S_t / (phi(q_t) . z_t), z_t = sum phi(k) (Katharopoulos 2020).

    The sum of keys is one more value channel that is always 1, so numerator and denominator are
    one memory.
    """

    def __init__(self, width: int, heads: int = 4, feature: str = "elu1") -> None:
        super().__init__(width, heads)
        self.phi = feature_map(feature)
        self.features = self.phi(torch.zeros(1, self.key_dim)).shape[-1]

    def rule(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return None, None

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.phi(self._split(self.q_proj(x))), self.phi(self._split(self.k_proj(x)))

    def init_state(self, batch: int) -> State:
        return (self._zeros(batch, self.heads, self.features, self.value_dim + 1),)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        q, k = self.keys(x)
        v = F.pad(self._split(self.v_proj(x)), (0, 1), value=1.0)
        read, memory = additive(q, k, v, state[0])
        return self._join(read), (memory,)

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        x = x_t.unsqueeze(1)
        q, k = (t.squeeze(2) for t in self.keys(x))
        v = F.pad(self._split(self.v_proj(x)).squeeze(2), (0, 1), value=1.0)
        read, memory = memory_step(q, k, v, state[0])
        return self._join(read.unsqueeze(2)).squeeze(1), (memory,)

    def _join(self, read: Tensor) -> Tensor:
        total = read[..., -1:]
        tiny = torch.finfo(read.dtype).tiny
        out: Tensor = self.out_proj(
            (read[..., :-1] / total.clamp(min=tiny)).transpose(1, 2).flatten(2)
        )
        return out


class Retention(MemoryMixer):
    """S_t = g S_{t-1} + k v^T, g = 1 - 2^(-5-h) for head h (Sun 2023, arXiv 2307.08621)."""

    def __init__(self, width: int, heads: int = 4, key_dim: int | None = None) -> None:
        super().__init__(width, heads, key_dim)
        decay = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))
        self.register_buffer("log_g", decay.log())

    def rule(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        log_g = self.get_buffer("log_g").to(x.dtype)
        return log_g[None, :, None].expand(x.shape[0], -1, x.shape[1]), None


class GatedLinearAttention(MemoryMixer):
    """S_t = diag(g_t) S_{t-1} + k v^T, g for each key entry (GLA, Yang 2023, arXiv 2312.06635).

    g = sigmoid(W2 W1 x + b)^(1/16), close to one at the start.
    """

    def __init__(self, width: int, heads: int = 4, key_dim: int | None = None) -> None:
        super().__init__(width, heads, key_dim)
        self.gate = nn.Sequential(
            nn.Linear(width, 16, bias=False), nn.Linear(16, heads * self.key_dim)
        )

    def rule(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return self._split(F.logsigmoid(self.gate(x)) / 16), None


class DeltaNet(MemoryMixer):
    """S_t = (I - b k k^T) S_{t-1} + b k v^T with unit k and b = sigmoid(W x) (arXiv 2406.06484)."""

    def __init__(self, width: int, heads: int = 4, key_dim: int | None = None) -> None:
        super().__init__(width, heads, key_dim)
        self.beta_proj = nn.Linear(width, heads, bias=False)

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (self._split(proj(x)) for proj in (self.q_proj, self.k_proj))
        return F.normalize(F.silu(q), dim=-1), F.normalize(F.silu(k), dim=-1)

    def rule(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return None, torch.sigmoid(self.beta_proj(x)).transpose(1, 2)


class GatedDeltaNet(DeltaNet):
    """The delta rule with a decay: S_t = a (I - b k k^T) S_{t-1} + b k v^T (arXiv 2412.06464).

    log a = -exp(A_log) softplus(W x + dt_bias), as Mamba-2 makes its decay.
    """

    def __init__(self, width: int, heads: int = 4, key_dim: int | None = None) -> None:
        super().__init__(width, heads, key_dim)
        self.a_proj = nn.Linear(width, heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.full((heads,), -4.0))

    def rule(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rates = F.softplus(self.a_proj(x) + self.dt_bias)
        log_a = (-self.A_log.exp() * rates).transpose(1, 2)
        return log_a, super().rule(x)[1]
