"""Causal self-attention: multi-head, grouped or multi-query, with a window, RoPE and a KV cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqdiag.errors import UnavailableError
from seqdiag.models.mixer import Mixer, State
from seqdiag.models.positions import Rope
from seqdiag.ops.attention import attention


class Attention(Mixer):
    """softmax(q k^T / sqrt(d)) v over the past, for each head.

    H query heads share Hkv key heads. With a window W a step sees W keys, its own included. The
    state is the KV cache, (B, Hkv, T, d) twice, and how many steps went by; a window keeps the
    W - 1 keys that the next step can still see. `impl` names one of `ops.attention`; `scan` raises
    `UnavailableError` where it cannot run.
    """

    def __init__(
        self,
        width: int,
        heads: int = 4,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        window: int | None = None,
        rope: Rope | None = None,
        bias: bool = False,
        qk_norm: bool = False,
        scale: float | None = None,
        impl: str = "sdpa",
    ) -> None:
        super().__init__(width)
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_dim = head_dim or width // heads
        self.window, self.rope, self.scale, self.impl = window, rope, scale, impl
        self.q_proj = nn.Linear(width, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.out_proj = nn.Linear(self.heads * self.head_dim, width, bias=bias)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=1e-6) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(self.head_dim, eps=1e-6) if qk_norm else nn.Identity()

    def init_state(self, batch: int) -> State:
        cache = self._zeros(batch, self.kv_heads, 0, self.head_dim)
        return cache, cache.clone(), torch.zeros((), dtype=torch.int64)

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        past_k, past_v, seen = state
        q, k, v = self._project(x, int(seen))
        k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
        try:
            out = attention(
                q, k, v, causal=True, window=self.window, scale=self.scale, impl=self.impl
            )
        except ValueError as error:  # the layer's own shapes fit: it is the choice that cannot run
            raise UnavailableError(f"--attn-impl: {error}") from None
        y = self.out_proj(out.transpose(1, 2).flatten(2))
        return y, (self._kept(k), self._kept(v), seen + x.shape[1])

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        past_k, past_v, seen = state
        q, k, v = self._project(x_t.unsqueeze(1), int(seen))
        k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
        # One query sees all that is kept: no mask. Its group's heads stand as rows of one matrix.
        grouped = q.view(q.shape[0], self.kv_heads, -1, self.head_dim)
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        weights = torch.softmax(grouped @ k.transpose(-1, -2) * scale, dim=-1)
        y = self.out_proj((weights @ v).flatten(1))
        return y, (self._kept(k), self._kept(v), seen + 1)

    def _project(self, x: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q (B, H, T, d) and k, v (B, Hkv, T, d), normalised and rotated."""
        q = self.q_norm(self._split(self.q_proj(x)))
        k = self.k_norm(self._split(self.k_proj(x)))
        v = self._split(self.v_proj(x))
        if self.rope is not None:
            q, k = self.rope.rotate(q, first), self.rope.rotate(k, first)
        return q, k, v

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)

    def _kept(self, cache: Tensor) -> Tensor:
        if self.window is None:
            return cache
        return cache[:, :, max(0, cache.shape[2] - self.window + 1) :]
