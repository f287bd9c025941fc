"""Needle probes: whether each key reaches exactly the queries that may see it.

On random inputs a key among thousands weighs next to nothing, so losing it hides below the rounding
of the dtype. A needle is a key made to outweigh all others for one query, with a marker as its
value: that query's output is the marker if it sees the key, at any length. The keys just outside a
query's view are needles for it too, with other markers: seeing one of them spoils the output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiag.diagnostics.attn_bench.problem import Problem
from seqdiag.ops.registry import Implementation
from seqdiag.predict.work import AttentionShape

_SCORE = 64.0
"""What a needle scores, in units of e: the others score about 0."""
_BACKGROUND = 0.1
_TOLERANCE = 0.25
_BLOCKS = (16, 32, 64, 128, 256, 512)
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Needles:
    """How many probes there were, and which failed first."""

    probed: int
    failed: int
    first: str = ""


def probe(problem: Problem, implementation: Implementation) -> Needles:
    """Returns which needles an implementation misses or should not have seen.

    Each query probed has a coordinate of its own in which it and its needle lie; the heads probe
    different keys of it: the newest and oldest visible, and those at block edges between.
    """
    failed, probed, first = 0, 0, ""
    for turn in range(_ROUNDS):
        q, k, v, expected = _inputs(problem, turn)
        with torch.no_grad():
            out = problem.call(implementation.run, q, k, v)
        for (head, query), (marker, what) in expected.items():
            found = out[:, head, query].float()
            probed += 1
            if not bool(((found - marker).abs() <= _TOLERANCE).all()):
                failed += 1
                first = first or f"query {query} {what}"
    return Needles(probed, failed, first)


def leaks(problem: Problem, implementation: Implementation) -> bool:
    """Returns whether NaN in keys and values reaches a query that cannot see them."""
    shape = problem.shape
    blind = [i for i in range(min(shape.q_len, 4)) if shape.keys_of(i)[1] < problem.kept_keys]
    if not blind:
        return False
    key = shape.keys_of(blind[-1])[1]  # the nearest: a block of keys holds it and visible ones
    q, k, v, _ = problem.inputs()
    k[:, :, key], v[:, :, key] = torch.nan, torch.nan
    with torch.no_grad():
        out = problem.call(implementation.run, q, k, v)
    return not bool(torch.isfinite(out[:, :, blind]).all())


Expected = dict[tuple[int, int], tuple[Tensor, str]]


def _inputs(problem: Problem, turn: int) -> tuple[Tensor, Tensor, Tensor, Expected]:
    """Returns q, k, v with needles, and by (head, query) the marker that must come out."""
    shape = problem.shape
    group = shape.heads // shape.kv_heads
    q, k, v, _ = (x.float() * _BACKGROUND for x in problem.inputs())
    generator = torch.Generator().manual_seed(problem.seed)
    v_markers = torch.randint(0, 2, v.shape, generator=generator) * 2.0 - 1.0
    heads = min(group, shape.head_dim)
    queries = _queries(shape, shape.head_dim // heads)
    size = (_SCORE / problem.scale) ** 0.5
    # The coordinates of the needles are free of everything else.
    used = len(queries) * heads
    k[..., :used] = 0.0
    expected: Expected = {}
    for index, query in enumerate(queries):
        for head in range(shape.heads):
            member = head % group
            if member >= heads:
                continue
            coordinate = index * heads + member
            kv_head = head // group
            target, others, what = _target(shape, query, turn, head, problem.kept_keys)
            q[:, head, query] = 0.0
            q[:, head, query, coordinate] = size
            for key in [target, *others]:
                if key is not None:
                    k[:, kv_head, key, coordinate] = size
                    v[:, kv_head, key] = v_markers[:, kv_head, key].to(v)
            marker = torch.zeros_like(v[:, kv_head, 0])
            if target is not None:
                marker = v_markers[:, kv_head, target].to(v)
            expected[head, query] = marker, what
    cast = (x.to(problem.dtype) for x in (q, k, v))
    return (*cast, expected)  # type: ignore[return-value]


def _queries(shape: AttentionShape, most: int) -> list[int]:
    """Returns the queries probed: the ends, block edges and the window's edge."""
    edges = [0, shape.q_len - 1, 1, shape.q_len // 2]
    edges += [at for block in _BLOCKS for at in (block - 1, block)]
    if shape.window is not None:
        edges += [shape.window - shape.offset - 1, shape.window - shape.offset]
    inside = (at for at in edges if 0 <= at < shape.q_len)
    return list(dict.fromkeys(inside))[: max(1, min(most, 16))]


def _target(
    shape: AttentionShape, query: int, turn: int, head: int, keys: int
) -> tuple[int | None, list[int], str]:
    """Returns the visible key to find, the hidden neighbours, and what it means to miss it."""
    first, last = shape.keys_of(query)
    others = [key for key in (first - 1, last) if 0 <= key < keys]
    if last <= first:
        return None, others, "sees a key where none is visible"
    between = [first + at for block in _BLOCKS for at in (block - 1, block)]
    between += [(first + last) // 2, last - 2]
    wanted = list(dict.fromkeys([last - 1, first, *(x for x in between if first <= x < last)]))
    target = wanted[(turn + head * _ROUNDS) % len(wanted)]
    seen = f"keys {first} to {last - 1}" if last - 1 > first else f"key {first}"
    return target, others, f"misses key {target} of its {seen}, or sees one beyond"
