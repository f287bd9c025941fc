"""Mechanisms of single families: sizes that rise and fall, and who refuses them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from seqdiag.diagnostics.kvcache import KvcacheSpec, kvcache
from seqdiag.diagnostics.kvcache.planning import plan
from seqdiag.diagnostics.kvcache.subject import Subject, subject_of
from seqdiag.predict.kv_cache.layout import Layer, Layout
from seqdiag.predict.kv_cache.readers import read_config
from seqdiag.predict.kv_cache.special import CompressedAttention

V4 = {"model_type": "deepseek_v4", "num_hidden_layers": 4, "dtype": "bfloat16"}
"""Layers: three with entries of 128 tokens, one with entries of 4."""


def subject(engine: str = "ideal", **spec: Any) -> Subject:
    layout = read_config("v4", V4, "config.json")
    return subject_of(layout, engine, KvcacheSpec(engine=(engine,), **spec))


@pytest.mark.parametrize(
    ("tokens", "entries", "waiting"), [(127, 0, 127), (128, 1, 0), (300, 2, 44)]
)
def test_entries_and_what_waits_for_one(tokens: int, entries: int, waiting: int) -> None:
    """DeepSeek-V4: 512 numbers an entry, two vectors for each token that waits."""
    part = CompressedAttention(512, 128, 128)
    layout = Layout("m", (Layer((part,)),), "bfloat16")
    held = subject_of(layout, "ideal", KvcacheSpec()).total(tokens)
    assert held == 2 * 512 * (min(tokens, 128) + entries + 2 * waiting)


def test_the_size_falls_and_the_peak_does_not() -> None:
    sized = subject()
    totals = [sized.total(t) for t in range(1, 700)]
    peaks = [sized.peak(t) for t in range(1, 700)]
    assert any(b < a for a, b in itertools.pairwise(totals))
    assert peaks == [max(totals[:n]) for n in range(1, 700)]


def test_what_fits_fits_at_every_context_on_the_way() -> None:
    sized = subject()
    for memory in (10**6, 1_234_567, 5 * 10**6):
        spec = KvcacheSpec(memory=memory, weights=0, reserve=0.0)
        room, _ = plan(spec, sized, 100)
        assert room.max_ctx
        assert max(sized.total(t) for t in range(1, room.max_ctx + 1)) <= memory
        assert sized.total(room.max_ctx + 1) > memory


def test_the_rate_is_of_a_whole_period() -> None:
    """An entry of 512 in three layers of 128 tokens, and of 512 + 128 for every 4."""
    rate = (3 * 512 / 128 + (512 + 128) / 4) * 2
    assert subject().per_token(1024) == int(rate)


def test_other_engines_refuse_what_they_are_not_known_to_keep(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(V4))
    spec = KvcacheSpec(models=(str(path),), engine=("vllm", "llama.cpp", "sglang"), ctx=(1024,))
    rows = kvcache(spec).run().records
    assert {row["status"] for row in rows} == {"unsupported"}
    assert "how vllm keeps a layer of the kind compressed is not known" in str(rows[0]["note"])


def test_a_chosen_few_are_read() -> None:
    """MiniMax-M3: 16 blocks of 128 tokens, and the indexer's key of every token."""
    config = {
        "model_type": "minimax_m3_vl_text", "num_hidden_layers": 1, "num_attention_heads": 64,
        "hidden_size": 6144, "dtype": "bfloat16", "layer_types": ["minimax_m3_sparse"],
    }  # fmt: skip
    layout = read_config("m3", config, "config.json")
    read = subject_of(layout, "ideal", KvcacheSpec()).allocate(10_000).kv_read_bytes
    assert read == 2 * (2048 * 2 * 4 * 128 + 10_000 * 128)
