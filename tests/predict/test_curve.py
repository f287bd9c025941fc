"""The size as straight pieces: they give every size back, and bend where windows are full."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiag.diagnostics.kvcache import KvcacheSpec, kvcache
from seqdiag.diagnostics.kvcache.subject import subject_of
from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.curve import MOST_PIECES, Piece, pieces
from seqdiag.predict.kv_cache.layout import Attention, ConvState, Latent, Layer, Layout

small = st.integers(min_value=1, max_value=16)
parts = st.one_of(
    st.builds(Attention, small, small, small, st.none() | st.integers(2, 3000)),
    st.builds(Latent, small, small),
    st.builds(ConvState, small, small),
)
layouts = st.builds(
    lambda parts: Layout("m", tuple(Layer((part,)) for part in parts), "bfloat16"),
    st.lists(parts, min_size=1, max_size=4),
)


def value(found: list[Piece], step: int, tokens: int) -> float:
    """Returns what the pieces say of a context."""
    piece = next(p for p in found if p.last is None or tokens <= p.last)
    assert piece.first <= tokens
    return piece.constant + piece.slope * step * -(-tokens // step)


@settings(deadline=None)
@given(
    layouts,
    st.sampled_from(["ideal", "transformers", "vllm", "llama.cpp", "sglang"]),
    st.integers(1, 3),
    st.lists(st.integers(1, 20000), min_size=1, max_size=8),
)
def test_pieces_give_every_size_back(
    layout: Layout, engine: str, batch: int, contexts: list[int]
) -> None:
    subject = subject_of(layout, engine, KvcacheSpec(engine=(engine,), batch=batch))
    step = subject.engine.granule
    found = pieces(subject.total, step)
    assert found[-1].last is None
    for tokens in (*contexts, 1, 2**40 // step * step):
        assert value(found, step, tokens) == subject.total(tokens)
    slopes = [piece.slope for piece in found]
    assert slopes == sorted(slopes, reverse=True)


def test_a_size_that_goes_on_bending_is_cut_off() -> None:
    found = pieces(lambda tokens: tokens // 10 * 7 + tokens % 10, 1)
    assert len(found) == MOST_PIECES
    assert found[-1].last is not None
    assert [piece.first for piece in found[:3]] == [1, 10, 20]


def test_gemma_bends_at_its_window() -> None:
    """Gemma 3 27B: 62 layers of 16 heads x 128 x 2 in bfloat16 up to 1024 tokens, then 10."""
    before, after = kvcache(KvcacheSpec(models=("gemma-3-27b",), curve=True)).run().records
    layer = 16 * 128 * 2 * 2
    assert (before["from_tokens"], before["to_tokens"]) == (1, 1024)
    assert (before["constant_bytes"], before["bytes_per_token"]) == (0, 62 * layer)
    assert (after["from_tokens"], after["to_tokens"]) == (1025, None)
    assert (after["constant_bytes"], after["bytes_per_token"]) == (52 * 1024 * layer, 10 * layer)
    assert (before["growing"], after["growing"]) == ("52 sliding, 10 attention", "10 attention")
    assert before["to_bytes"] == 62 * layer * 1024


@pytest.mark.parametrize(
    "also", [{"per_layer": True}, {"measure": True}, {"against": "gqa-32l"}, {"bandwidth": 1e12}]
)
def test_options_that_have_no_place_beside_the_curve(also: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--curve: is of every context; leave out --"):
        kvcache(KvcacheSpec(curve=True, **also))
