"""Every implementation against the reference, forward and gradients, on awkward shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from seqdiag.ops.attention import IMPLEMENTATIONS, AttentionProblem, attention, blocked
from seqdiag.ops.registry import load_implementation

# batch, heads, kv heads, query length, key length, head_dim, v_head_dim, causal, window
SHAPES = [
    (1, 1, 1, 1, 1, 8, 8, True, None),
    (2, 4, 2, 63, 63, 16, 16, True, None),
    (1, 4, 1, 130, 130, 32, 24, True, None),
    (2, 2, 2, 65, 65, 8, 8, False, None),
    (1, 2, 2, 5, 100, 16, 16, True, None),
    (1, 4, 2, 1, 77, 16, 16, True, None),
    (1, 2, 1, 300, 300, 8, 8, True, 7),
    (1, 2, 2, 129, 129, 8, 8, True, 1),
    (1, 2, 2, 33, 200, 8, 12, True, 50),
    (1, 2, 2, 40, 25, 8, 8, True, None),
    (1, 1, 1, 20, 20, 8, 8, True, 400),
    (1, 2, 2, 7, 300, 8, 8, False, None),
]


def inputs(shape: tuple[Any, ...], dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    b, h, hkv, lq, lk, d, dv, _, _ = shape
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(*size, generator=generator, dtype=dtype)
        for size in ((b, h, lq, d), (b, hkv, lk, d), (b, hkv, lk, dv))
    )


def by_hand(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None) -> Tensor:
    """Returns attention one query at a time."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    group, offset = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                last = i + offset + 1 if causal else k.shape[2]
                first = 0 if window is None else max(0, i + offset + 1 - window)
                if last > first:
                    keys = k[b, h // group, first:last]
                    weights = torch.softmax(keys @ q[b, h, i] / q.shape[-1] ** 0.5, 0)
                    out[b, h, i] = weights @ v[b, h // group, first:last]
    return out


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reference_is_the_definition(shape: tuple[Any, ...]) -> None:
    q, k, v = inputs(shape)
    causal, window = shape[-2:]
    out = attention(q, k, v, causal=causal, window=window, impl="reference")
    torch.testing.assert_close(out, by_hand(q, k, v, causal, window), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_keys_in_pieces_give_the_same(
    shape: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "_SCORES", 64)
    monkeypatch.setattr(blocked, "_QUERIES", 3)
    test_forward_and_gradients("blocked", shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_forward_and_gradients(impl: str, shape: tuple[Any, ...]) -> None:
    b, h, hkv, lq, lk, d, dv, causal, window = shape
    problem = AttentionProblem(b, h, hkv, lq, lk, d, dv, torch.float64, causal, window)
    reason = load_implementation(IMPLEMENTATIONS, impl).why_not(problem, torch.device("cpu"))
    results = []
    for name in (impl, "naive"):
        leaves = [x.requires_grad_() for x in inputs(shape)]
        if reason is not None and name == impl:
            with pytest.raises(ValueError, match=impl):
                attention(*leaves, causal=causal, window=window, impl=name)
            return
        out = attention(*leaves, causal=causal, window=window, impl=name)
        weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        results.append((out, *torch.autograd.grad((out * weight).sum(), leaves)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The online softmax joins pieces whose peaks differ by hundreds."""
    monkeypatch.setattr("seqdiag.ops.attention.blocked._SCORES", 1)
    monkeypatch.setattr("seqdiag.ops.attention.blocked._QUERIES", 8)
    for shape in SHAPES:
        q, k, v = inputs(shape)
        k = k * torch.logspace(0, 2.5, k.shape[2], dtype=k.dtype)[:, None]
        causal, window = shape[-2:]
        out = attention(q, k, v, causal=causal, window=window, impl="blocked")
        expected = attention(q, k, v, causal=causal, window=window, impl="reference")
        torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("impl", ["naive", "sdpa", "blocked"])
def test_hidden_slots_do_not_leak(impl: str) -> None:
    q, k, v = inputs((1, 2, 2, 50, 50, 8, 8, True, None))
    clean = attention(q, k, v, impl=impl)
    k[:, :, 30:], v[:, :, 30:] = 1e6, 1e6
    torch.testing.assert_close(attention(q, k, v, impl=impl)[:, :, :30], clean[:, :, :30])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(1, 2, 5, 4)}, "do not fit"),
        ({"v": torch.zeros(1, 2, 6, 8)}, "do not fit"),
        ({"q": torch.zeros(0, 2, 5, 8)}, "attention of nothing"),
        ({"q": torch.zeros(1, 3, 5, 8)}, "no multiple"),
        ({"window": 0}, "window 0"),
        ({"window": 3, "causal": False}, "window 3"),
    ],
)
def test_wrong_shapes_are_refused(change: dict[str, Any], message: str) -> None:
    given = {"q": torch.zeros(1, 2, 5, 8), "k": torch.zeros(1, 2, 5, 8), **change}
    given.setdefault("v", torch.zeros_like(given["k"]))
    with pytest.raises(ValueError, match=message):
        attention(**given)
