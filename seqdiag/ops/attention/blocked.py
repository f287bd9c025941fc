"""Attention block by block in plain torch: bounded memory at any length.

A block of queries meets only the keys it can see: all up to its last for a causal mask, a band for
a window. Where the keys of one block are too many, they come in pieces joined by an online softmax
(Milakov and Gimelshein 2018, arXiv 1805.02867).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiag.ops.threads import one_thread

_QUERIES = 128
_SCORES = 2**19
"""Most scores held at once: 2 MiB in float32, which stays in the cache."""


def blocked(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Returns attention; the scores of one block are all that is held beside the output."""
    batch, heads, q_len, dim = q.shape
    kv_heads, kv_len = k.shape[1:3]
    # The queries of a group share their keys: they stand as rows of one matrix.
    queries = q.reshape(batch * kv_heads, heads // kv_heads, q_len, dim)
    keys, values = k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1)
    out = []
    with one_thread(q):
        for start in range(0, q_len, _QUERIES):
            block = queries[:, :, start : start + _QUERIES]
            mask = _Mask(start + kv_len - q_len, block.shape[2], kv_len, causal, window)
            rows = _some_heads(block.flatten(1, 2) * scale, keys, values, mask)
            out.append(rows.view(batch, heads, block.shape[2], -1))
    return torch.cat(out, dim=2)


@dataclass(frozen=True, slots=True)
class _Mask:
    """What the queries of one block see, the first of which stands at `position`."""

    position: int
    queries: int
    kv_len: int
    causal: bool
    window: int | None

    def reach(self) -> tuple[int, int]:
        """Returns the range of keys that any of the queries sees."""
        end = self.position + self.queries
        last = min(self.kv_len, max(0, end)) if self.causal else self.kv_len
        if self.window is None:
            return 0, last
        return min(last, max(0, self.position - self.window + 1)), last

    def hide(self, scores: Tensor, start: int) -> None:
        """Masks scores (H, G * Q, S) of the keys from `start` in place; only edges need a look."""
        scores = scores.view(len(scores), -1, self.queries, scores.shape[-1])
        end, stop = self.position + self.queries, start + scores.shape[-1]
        at = torch.arange(self.position, end, device=scores.device)[:, None]
        keys = torch.arange(start, stop, device=scores.device)[None, :]
        late = max(0, self.position + 1 - start)
        if self.causal and late < stop - start:
            scores[..., late:].masked_fill_(keys[:, late:] > at, -torch.inf)
        early = 0 if self.window is None else end - self.window - start
        if self.window is not None and early > 0:
            scores[..., :early].masked_fill_(keys[:, :early] <= at - self.window, -torch.inf)


def _some_heads(block: Tensor, keys: Tensor, values: Tensor, mask: _Mask) -> Tensor:
    """Returns the output (H, G * Q, Dv), as many heads at once as the scores leave room for."""
    first, last = mask.reach()
    at_once = max(1, _SCORES // max(1, block.shape[1] * (last - first)))
    parts = [
        _one_block(block[i : i + at_once], keys[i : i + at_once], values[i : i + at_once], mask)
        for i in range(0, len(block), at_once)
    ]
    return torch.cat(parts)


def _one_block(block: Tensor, keys: Tensor, values: Tensor, mask: _Mask) -> Tensor:
    """Returns the output of scaled queries (H, G * Q, D), keys (H, D, S), values (H, S, Dv)."""
    first, last = mask.reach()
    piece = max(mask.queries, _SCORES // block.shape[1])
    every_row_sees = not mask.causal or mask.position >= 0
    if last - first <= piece and every_row_sees:
        scores = block @ keys[:, :, first:last]
        mask.hide(scores, first)
        return torch.softmax(scores, dim=-1) @ values[:, first:last]
    peak = block.new_full((*block.shape[:2], 1), -torch.inf)
    total = torch.zeros_like(peak)
    out = block.new_zeros(*block.shape[:2], values.shape[-1])
    for start in range(first, last, piece):
        stop = min(start + piece, last)
        scores = block @ keys[:, :, start:stop]
        mask.hide(scores, start)
        highest = torch.maximum(peak, scores.detach().amax(dim=-1, keepdim=True))
        # A row that has seen no key yet has no peak: any finite one gives exp(-inf) = 0.
        level = highest.nan_to_num(neginf=0.0)
        weights = scores.sub_(level).exp_()
        kept = torch.exp(peak - level)
        total = total * kept + weights.sum(dim=-1, keepdim=True)
        out = out * kept + weights @ values[:, start:stop]
        peak = highest
    return out / total.masked_fill(total == 0, 1.0)
