"""`torch.nn.functional.scaled_dot_product_attention`, each backend pinned by name."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from seqdiag.ops.attention import AttentionProblem
from seqdiag.ops.attention.reference import visible


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Returns attention by the backend that PyTorch picks: flash on the CPU where it can."""
    q_len, kv_len = q.shape[2], k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    plain = window is None or window >= kv_len
    if plain and (not causal or q_len == 1):
        return scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)
    if plain and q_len == kv_len:
        return scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=grouped
        )
    # PyTorch's own causal mask is aligned top-left, so a different length needs an explicit one.
    seen = visible(q_len, kv_len, causal, window, q.device)
    out = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=grouped)
    return out.masked_fill(~seen.any(dim=1)[:, None], 0.0) if q_len > kv_len else out


def _pinned(backend: SDPBackend, *args: Tensor, **kwargs: object) -> Tensor:
    with sdpa_kernel(backend):
        return sdpa(*args, **kwargs)  # type: ignore[arg-type]


def sdpa_math(q: Tensor, k: Tensor, v: Tensor, **kwargs: object) -> Tensor:
    return _pinned(SDPBackend.MATH, q, k, v, **kwargs)


def sdpa_flash(q: Tensor, k: Tensor, v: Tensor, **kwargs: object) -> Tensor:
    return _pinned(SDPBackend.FLASH_ATTENTION, q, k, v, **kwargs)


def sdpa_efficient(q: Tensor, k: Tensor, v: Tensor, **kwargs: object) -> Tensor:
    return _pinned(SDPBackend.EFFICIENT_ATTENTION, q, k, v, **kwargs)


def sdpa_cudnn(q: Tensor, k: Tensor, v: Tensor, **kwargs: object) -> Tensor:
    return _pinned(SDPBackend.CUDNN_ATTENTION, q, k, v, **kwargs)


def why_not_sdpa_flash(problem: AttentionProblem, device: torch.device) -> str | None:
    if problem.head_dim != problem.v_head_dim:
        return "the flash backend needs equal key and value dimensions"
    if device.type == "cpu":
        return None
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return "the flash backend on a GPU needs float16 or bfloat16"
    masked = problem.window is not None or (problem.causal and problem.q_len != problem.kv_len)
    return "the flash backend on a GPU takes no mask" if masked and problem.q_len > 1 else None


def why_not_sdpa_efficient(problem: AttentionProblem, device: torch.device) -> str | None:
    if device.type != "cuda":
        return "the efficient backend is for CUDA"
    return None if problem.heads == problem.kv_heads else "the efficient backend has no GQA"


def why_not_sdpa_cudnn(problem: AttentionProblem, device: torch.device) -> str | None:
    if device.type != "cuda":
        return "the cuDNN backend is for CUDA"
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return "the cuDNN backend needs float16 or bfloat16"
    return None
