"""Configs with a field or three that are wrong: a value or one clear error, at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiag.diagnostics.kvcache import KvcacheSpec
from seqdiag.diagnostics.kvcache.subject import subject_of
from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.readers import read_config

CONFIGS = {
    name: entry["config"]
    for name, entry in json.loads(
        (Path(__file__).parents[1] / "data" / "transformers_cache_bytes.json").read_text()
    ).items()
}
JUNK: list[Any] = [
    None, -1, 0, 1, 3, 7, 10**7, 2**40, 2**63, 10**30, 1.5, float("nan"), float("inf"), "", "12",
    "auto", True, False, [], [1], [0, 0], ["full_attention"], {}, {"a": 1}, [[1]], [None], "MM*-",
    [[["global"], 10**9]],
]  # fmt: skip


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_wrong_fields_are_read_or_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(CONFIGS)))
    config = dict(CONFIGS[name])
    for field in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        if field == "model_type":
            continue
        if data.draw(st.booleans()):
            config[field] = data.draw(st.sampled_from(JUNK))
        else:
            config.pop(field, None)
    try:
        layout = read_config(name, config, "config.json", enc_len=data.draw(st.none() | st.just(5)))
        for engine in ("ideal", "transformers", "vllm", "llama.cpp"):
            sized = subject_of(layout, engine, KvcacheSpec(engine=(engine,)))
            assert sized.unsupported or sized.total(1000) >= 0
    except UsageError as error:
        assert "\n" not in error.message
        assert len(error.message) < 500


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "gpt2", "n_layer": 2, "num_hidden_layers": 3}, "n_layer = 2 wins over"),
        ({"model_type": "llama", "dtype": "float16", "torch_dtype": "bfloat16"}, "dtype = float16"),
        ({"model_type": "chatglm", "num_hidden_layers": 2, "num_layers": 3}, "= 2 wins over num_l"),
        ({"model_type": "rwkv6", "head_size": 64, "head_dim": 32}, "head_size = 64 wins over head"),
    ],
)
def test_of_two_spellings_it_is_said_which_won(fields: dict[str, Any], said: str) -> None:
    plain = {
        "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256, "n_embd": 64,
        "n_head": 4,
    }  # fmt: skip
    layout = read_config("m", {**plain, **fields}, "config.json")
    assert any(said in conflict for conflict in layout.conflicts)
