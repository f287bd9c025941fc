"""Scaled dot-product attention: softmax(scale q k^T + mask) v.

Shapes: q (B, H, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv) -> (B, H, Lq, Dv); H is a multiple of
Hkv, and each key head serves H / Hkv query heads. Query i stands at position i + Lk - Lq (aligned
bottom-right): `causal` hides the keys after it, `window` W shows W keys including its own. A query
that sees no key gives zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiag.ops.registry import load_implementation

IMPLEMENTATIONS = {
    "reference": "seqdiag.ops.attention.reference:reference",
    "naive": "seqdiag.ops.attention.reference:naive",
    "sdpa": "seqdiag.ops.attention.sdpa:sdpa",
    "sdpa-math": "seqdiag.ops.attention.sdpa:sdpa_math",
    "sdpa-flash": "seqdiag.ops.attention.sdpa:sdpa_flash",
    "sdpa-efficient": "seqdiag.ops.attention.sdpa:sdpa_efficient",
    "sdpa-cudnn": "seqdiag.ops.attention.sdpa:sdpa_cudnn",
    "blocked": "seqdiag.ops.attention.blocked:blocked",
    "flex": "seqdiag.ops.attention.external:flex",
    "flash-triton": "seqdiag.ops.attention.flash:flash",
    "flash-triton-interpret": "seqdiag.ops.attention.flash:flash_interpret",
    "flash-attn-2": "seqdiag.ops.attention.external:flash_attn_2",
    "flash-attn-3": "seqdiag.ops.attention.external:flash_attn_3",
    "xformers": "seqdiag.ops.attention.external:xformers",
}


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """The shape of one call."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    dtype: torch.dtype
    causal: bool
    window: int | None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    impl: str = "sdpa",
) -> Tensor:
    """Returns attention by the implementation `impl`; `scale` is 1/sqrt(D) unless given.

    Raises `ValueError` for shapes that do not fit and for a problem `impl` cannot run.
    """
    problem = _problem(q, k, v, causal, window)
    chosen = load_implementation(IMPLEMENTATIONS, impl)
    reason = chosen.why_not(problem, q.device)
    if reason is not None:
        raise ValueError(f"attention {impl}: {reason}")
    out: Tensor = chosen.run(
        q, k, v, causal=causal, window=window, scale=q.shape[-1] ** -0.5 if scale is None else scale
    )
    return out


def _problem(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None) -> AttentionProblem:
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len = k.shape[1:3]
    if min(batch, heads, kv_heads, kv_len, q_len) == 0:
        raise ValueError(f"attention of nothing: q {tuple(q.shape)}, k {tuple(k.shape)}")
    if k.shape != (batch, kv_heads, kv_len, head_dim) or v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"attention: q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit"
        )
    if heads % kv_heads:
        raise ValueError(f"attention: {heads} query heads are no multiple of {kv_heads} key heads")
    if window is not None and (window < 1 or not causal):
        raise ValueError(f"attention: window {window} must be 1 or more, and causal")
    return AttentionProblem(
        batch, heads, kv_heads, q_len, kv_len, head_dim, v.shape[-1], q.dtype, causal, window
    )
