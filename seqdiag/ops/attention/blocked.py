"""Attention block by block in plain torch: bounded memory at any length.

A block of queries meets only the keys it can see: all up to its last for a causal mask, a band for
a window. Where the keys of one block are too many, they come in pieces joined by an online softmax
(Milakov and Gimelshein 2018, arXiv 1805.02867).
"""

from __future__ import annotations

import torch
from torch import Tensor

_QUERIES = 128
_SCORES = 2**20
"""Most scores held at once, over all heads of a batch element."""


def blocked(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Returns attention; the scores of one block are all that is held beside the output."""
    batch, heads, q_len, _ = q.shape
    kv_heads, kv_len = k.shape[1:3]
    group = heads // kv_heads
    rows = []
    for start in range(0, q_len, _QUERIES):
        stop = min(start + _QUERIES, q_len)
        # The queries of a group share their keys: they stand as rows of one matrix.
        block = q[:, :, start:stop].reshape(batch, kv_heads, group, stop - start, -1) * scale
        first, last = _keys_seen(start, stop, q_len, kv_len, causal, window)
        out = _one_block(block, k, v, start + kv_len - q_len, first, last, causal, window)
        rows.append(out.reshape(batch, heads, stop - start, -1))
    return torch.cat(rows, dim=2)


def _keys_seen(
    start: int, stop: int, q_len: int, kv_len: int, causal: bool, window: int | None
) -> tuple[int, int]:
    """Returns the range of keys that any query of a block sees."""
    offset = kv_len - q_len
    last = min(kv_len, max(0, stop + offset)) if causal else kv_len
    first = 0 if window is None else min(last, max(0, start + offset - window + 1))
    return first, last


def _one_block(
    block: Tensor,
    k: Tensor,
    v: Tensor,
    position: int,
    first: int,
    last: int,
    causal: bool,
    window: int | None,
) -> Tensor:
    """Returns the output of one block of scaled queries (B, Hkv, G, Q, D)."""
    batch, kv_heads, group, queries, _ = block.shape
    flat = block.reshape(batch, kv_heads, group * queries, -1)
    piece = max(queries, _SCORES // (kv_heads * group * queries))
    peak = flat.new_full((*flat.shape[:3], 1), -torch.inf)
    total = torch.zeros_like(peak)
    out = flat.new_zeros(*flat.shape[:3], v.shape[-1])
    for start in range(first, last, piece):
        stop = min(start + piece, last)
        scores = flat @ k[:, :, start:stop].transpose(-1, -2)
        seen = _seen(queries, position, start, stop, causal, window, block.device)
        if seen is not None:
            grouped = scores.view(batch, kv_heads, group, queries, -1)
            scores = grouped.masked_fill(~seen, -torch.inf).view_as(scores)
        highest = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        # A row that has seen no key yet has no peak: any finite one gives exp(-inf) = 0.
        level = highest.detach().nan_to_num(neginf=0.0)
        weights = torch.exp(scores - level)
        kept = torch.exp(peak - level)
        total = total * kept + weights.sum(dim=-1, keepdim=True)
        out = out * kept + weights @ v[:, :, start:stop]
        peak = highest.detach()
    return (out / total.masked_fill(total == 0, 1.0)).view(batch, kv_heads, group, queries, -1)


def _seen(
    queries: int,
    position: int,
    start: int,
    stop: int,
    causal: bool,
    window: int | None,
    device: torch.device,
) -> Tensor | None:
    """Returns the mask of a piece, or None where every query sees every key of it."""
    whole = not causal or stop - 1 <= position
    if window is not None:
        whole = whole and start > position + queries - 1 - window
    if whole:
        return None
    at = torch.arange(position, position + queries, device=device)[:, None]
    keys = torch.arange(start, stop, device=device)[None, :]
    seen = keys <= at
    return seen if window is None else seen & (keys > at - window)
