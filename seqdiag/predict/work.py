"""The work of attention in closed form: visible pairs, floating-point operations, bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Align = Literal["bottom-right", "top-left"]
Pass = Literal["fwd", "bwd", "both"]

ITEMSIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One attention problem by its sizes.

    Query i stands at position i + kv_len - q_len (bottom-right) or i (top-left). `causal` hides the
    keys after it; `window` W leaves the W keys up to and including its own.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    causal: bool = True
    window: int | None = None
    align: Align = "bottom-right"

    @property
    def offset(self) -> int:
        """The position of query 0."""
        return self.kv_len - self.q_len if self.align == "bottom-right" else 0

    def keys_of(self, query: int) -> tuple[int, int]:
        """Returns the visible keys of a query as a half-open range."""
        if not self.causal:
            return 0, self.kv_len
        last = _clamp(query + self.offset + 1, self.kv_len)
        first = 0 if self.window is None else query + self.offset + 1 - self.window
        return min(_clamp(first, self.kv_len), last), last

    @property
    def pairs(self) -> int:
        """How many (query, key) pairs of one head are visible, exactly."""
        if not self.causal:
            return self.q_len * self.kv_len
        seen = _clamped_series(self.offset + 1, self.q_len, self.kv_len)
        if self.window is None:
            return seen
        return seen - _clamped_series(self.offset + 1 - self.window, self.q_len, self.kv_len)

    def flops(self, which: Pass = "fwd") -> int:
        """Returns the operations of the matrix products over visible pairs, 2 a multiply-add.

        The forward pass has two products (q k^T and p v), the backward pass five (q k^T again,
        dO v^T, p^T dO, dS k, dS^T q), as Dao 2023 (arXiv 2307.08691, section 4) counts them.
        """
        heads_pairs = 2 * self.batch * self.heads * self.pairs
        forward = heads_pairs * (self.head_dim + self.v_head_dim)
        backward = heads_pairs * (3 * self.head_dim + 2 * self.v_head_dim)
        return {"fwd": forward, "bwd": backward, "both": forward + backward}[which]

    def tensor_bytes(self, itemsize: int) -> dict[str, int]:
        """Returns the bytes of q, k, v and out."""
        queries = self.batch * self.heads * self.q_len
        keys = self.batch * self.kv_heads * self.kv_len
        return {
            "q": queries * self.head_dim * itemsize,
            "k": keys * self.head_dim * itemsize,
            "v": keys * self.v_head_dim * itemsize,
            "out": queries * self.v_head_dim * itemsize,
        }

    def min_bytes(self, itemsize: int, which: Pass = "fwd") -> int:
        """Returns the bytes that must cross the memory bus if every tensor crosses it once.

        Forward: q, k, v read, out and the float32 log-sum-exp written. Backward: those and dO read,
        dq, dk, dv written. Keys that no query sees are not counted.
        """
        size = self.tensor_bytes(itemsize)
        seen = self.seen_keys / self.kv_len
        inputs = size["q"] + round((size["k"] + size["v"]) * seen)
        lse = 4 * self.batch * self.heads * self.q_len
        forward = inputs + size["out"] + lse
        backward = inputs + 2 * size["out"] + lse + size["q"] + size["k"] + size["v"]
        return {"fwd": forward, "bwd": backward, "both": forward + backward}[which]

    @property
    def seen_keys(self) -> int:
        """How many keys at least one query sees."""
        first = self.keys_of(max(0, -self.offset))[0] if self.offset < 0 else self.keys_of(0)[0]
        return max(0, self.keys_of(self.q_len - 1)[1] - first)

    def materialised_bytes(self, itemsize: int, which: Pass = "fwd") -> int:
        """Returns the bytes that cross the bus when every score matrix goes through memory.

        Unfused, as PyTorch's eager operators do it, each on the whole (Lq, Lk) matrix: scores
        written, masked (read, write), softmax (read, write), weights read by the second product:
        six times its bytes forward, besides `min_bytes`. Backward: the weights read by two
        products, dP written, the softmax's gradient (two reads, a write), dS read by two products:
        eight times.
        """
        scores = self.batch * self.heads * self.q_len * self.kv_len * itemsize
        times = {"fwd": 6 if self.causal else 4, "bwd": 8}
        times["both"] = times["fwd"] + times["bwd"]
        return self.min_bytes(itemsize, which) + times[which] * scores


def _clamp(value: int, highest: int) -> int:
    return min(max(value, 0), highest)


def _clamped_series(start: int, count: int, highest: int) -> int:
    """Returns the sum of min(max(start + i, 0), highest) over i = 0 .. count - 1."""
    first = min(max(-start, 0), count)
    full = min(max(highest - start, first), count)
    rising = full - first
    return rising * (2 * start + first + full - 1) // 2 + (count - full) * highest
