"""Attention of other packages, and PyTorch's compiled flex attention: rows where they are there.

The packages take (B, L, H, D); all align a causal mask bottom-right.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

from seqdiag.ops.attention import AttentionProblem
from seqdiag.ops.attention.reference import expand_heads

_HALF = (torch.float16, torch.bfloat16)


def flash_attn_2(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Returns attention by `flash_attn_func` of the package flash-attn."""
    run = importlib.import_module("flash_attn").flash_attn_func
    return _by_length_first(run, q, k, v, causal, window, scale)


def flash_attn_3(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Returns attention by `flash_attn_func` of FlashAttention-3 (module flash_attn_interface)."""
    run = importlib.import_module("flash_attn_interface").flash_attn_func
    return _by_length_first(run, q, k, v, causal, window, scale)


def _by_length_first(
    run: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None, scale: float
) -> Tensor:
    out = run(
        *(x.transpose(1, 2) for x in (q, k, v)),
        softmax_scale=scale,
        causal=causal,
        window_size=(-1, -1) if window is None else (window - 1, 0),
    )
    first: Tensor = out[0] if isinstance(out, tuple) else out
    return first.transpose(1, 2)


def xformers(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Returns attention by `memory_efficient_attention` of the package xformers."""
    ops: Any = importlib.import_module("xformers.ops")
    bias = ops.fmha.attn_bias.LowerTriangularFromBottomRightMask() if causal else None
    k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
    out: Tensor = ops.memory_efficient_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_bias=bias, scale=scale
    )
    return out.transpose(1, 2)


def flex(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Returns attention by `flex_attention`, compiled for the mask."""
    run, block_mask = _flex(causal, window, q.shape[2], k.shape[2], str(q.device))
    grouped = q.shape[1] != k.shape[1]
    out: Tensor = run(q, k, v, block_mask=block_mask, scale=scale, enable_gqa=grouped)
    return out


@functools.lru_cache(maxsize=8)
def _flex(
    causal: bool, window: int | None, q_len: int, kv_len: int, device: str
) -> tuple[Any, Any]:
    from torch.nn.attention import flex_attention as module

    offset = kv_len - q_len

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = key <= query + offset
        return near if window is None else near & (key > query + offset - window)

    mask = module.create_block_mask(seen, None, None, q_len, kv_len, device) if causal else None
    return torch.compile(module.flex_attention), mask


def why_not_flash_attn_2(problem: AttentionProblem, device: torch.device) -> str | None:
    return _why_not_package("flash_attn", "flash-attn", problem, device)


def why_not_flash_attn_3(problem: AttentionProblem, device: torch.device) -> str | None:
    name = "flash-attn 3, built from its repository's hopper folder"
    return _why_not_package("flash_attn_interface", name, problem, device)


def why_not_xformers(problem: AttentionProblem, device: torch.device) -> str | None:
    if problem.window is not None:
        return "its row takes no window"
    return _why_not_package("xformers", "xformers", problem, device)


def why_not_flex(problem: AttentionProblem, device: torch.device) -> str | None:
    if device.type != "cuda":
        return "flex attention is compiled for CUDA here"
    return None if problem.head_dim == problem.v_head_dim else "its row needs equal head dimensions"


def _why_not_package(
    module: str, package: str, problem: AttentionProblem, device: torch.device
) -> str | None:
    if importlib.util.find_spec(module) is None:
        return f"not installed: {package}"
    if device.type != "cuda":
        return f"{package} runs on CUDA only"
    if problem.dtype not in _HALF:
        return f"{package} takes float16 or bfloat16"
    if max(problem.head_dim, problem.v_head_dim) > 256:
        return f"{package} takes head dimensions up to 256"
    return None
