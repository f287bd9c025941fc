"""Closed forms of work against counting by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiag.predict.work import AttentionShape

SIZES = st.integers(1, 70)


@settings(max_examples=300)
@given(
    SIZES, SIZES, st.booleans(), st.none() | SIZES, st.sampled_from(["bottom-right", "top-left"])
)
def test_pairs_are_those_a_loop_counts(
    q_len: int, kv_len: int, causal: bool, window: int | None, align: str
) -> None:
    window = window if causal else None
    shape = AttentionShape(2, 6, 3, q_len, kv_len, 8, 5, causal, window, align)  # type: ignore[arg-type]
    offset = kv_len - q_len if align == "bottom-right" else 0
    seen = [
        (i, j)
        for i in range(q_len)
        for j in range(kv_len)
        if not causal or (j <= i + offset and (window is None or j > i + offset - window))
    ]
    assert shape.pairs == len(seen)
    assert shape.seen_keys == len({j for _, j in seen})
    for i in range(q_len):
        assert list(range(*shape.keys_of(i))) == [j for q, j in seen if q == i]
    assert shape.flops("fwd") == 2 * 12 * len(seen) * (8 + 5)
    assert shape.flops("both") == shape.flops("fwd") + shape.flops("bwd")


def test_published_counts() -> None:
    """FlashAttention counts 4 B L^2 H D, the backward pass 2.5 times that."""
    full = AttentionShape(4, 16, 16, 4096, 4096, 64, 64, causal=False)
    assert full.flops() == 4 * 4 * 4096**2 * 16 * 64
    assert full.flops("bwd") == 2.5 * full.flops()
    causal = AttentionShape(4, 16, 16, 4096, 4096, 64, 64)
    assert causal.pairs == 4096 * 4097 // 2
    # Halving is right only for equal lengths: 1024 new queries on 4096 keys do 0.88 of the work.
    late = AttentionShape(1, 1, 1, 1024, 4096, 64, 64)
    assert round(late.pairs / (1024 * 4096), 2) == 0.88
    assert AttentionShape(1, 1, 1, 1, 2**20, 64, 64).pairs == 2**20
    windowed = AttentionShape(1, 1, 1, 8192, 8192, 128, 128, window=1024)
    assert round(causal.pairs * 4 / windowed.pairs, 1) == 4.3


def test_traffic_of_the_unfused_form() -> None:
    shape = AttentionShape(1, 1, 1, 4096, 4096, 64, 64)
    assert shape.min_bytes(2) == 4 * 4096 * 64 * 2 + 4 * 4096
    assert shape.materialised_bytes(2) - shape.min_bytes(2) == 6 * 4096**2 * 2
    assert shape.materialised_bytes(2) > 5 * shape.min_bytes(2)
    # A decode step reads each key head once, however many query heads share it.
    step = AttentionShape(1, 32, 8, 1, 8192, 128, 128)
    assert step.tensor_bytes(2)["k"] == 8 * 8192 * 128 * 2
    assert step.min_bytes(2) < 1.01 * 2 * step.tensor_bytes(2)["k"]
    # A window reads only the keys that some query sees.
    window = AttentionShape(1, 8, 8, 1, 8192, 128, 128, window=512)
    assert window.min_bytes(2) < 0.07 * AttentionShape(1, 8, 8, 1, 8192, 128, 128).min_bytes(2)
