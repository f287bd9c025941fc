"""Memories that write values under keys and read them back: one state, many write rules.

Shapes: q, k (B, H, T, K), v (B, H, T, V); the state S is (B, H, K, V), so a read is q S.

    S_t = diag(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,   y_t = q_t S_t

- additive (linear attention, Katharopoulos 2020): g = 1, no erasing;
- decayed (retention, Sun 2023): a scalar g a head; gated (GLA, Yang 2023): a g for each key entry;
- delta rule (Schlag 2021, Yang 2024): erase what the key holds, then write; gated delta with a g.

`g` is given as its logarithm, 0 or less. Keys of the delta rule have unit length.
"""

from __future__ import annotations

from seqdiag.ops.memory.chunked import additive, delta
from seqdiag.ops.memory.features import FEATURE_MAPS, feature_map
from seqdiag.ops.memory.recurrent import memory_loop, memory_step
from seqdiag.ops.memory.softmax import softmax_read

__all__ = [
    "FEATURE_MAPS",
    "additive",
    "delta",
    "feature_map",
    "memory_loop",
    "memory_step",
    "softmax_read",
]
