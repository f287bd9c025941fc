"""The article's table, the crossover, the views and the measurement."""

from __future__ import annotations

from typing import Any

import pytest

from seqdiag.diagnostics.kvcache import KvcacheSpec, kvcache
from seqdiag.errors import UsageError


def rows(**spec: Any) -> list[dict[str, Any]]:
    return kvcache(KvcacheSpec(**spec)).run().records


def test_article_table() -> None:
    """The printed output of "Sequence models before transformers"."""
    records = rows()
    attention = [r for r in records if r["model"] == "gqa-32l"]
    state = [r for r in records if r["model"] == "mamba-32l"]
    assert [r["ctx_tokens"] for r in attention] == [1024, 8192, 32768, 131072, 1048576]
    assert [r["kv_bytes"] for r in attention] == [
        134217728,
        1073741824,
        4294967296,
        17179869184,
        137438953472,
    ]
    assert {r["kv_bytes_per_token"] for r in attention} == {131072}
    assert {r["crossover_tokens"] for r in attention} == {64}
    assert {r["state_bytes"] for r in state} == {8388608}
    assert {(r["kv_bytes"], r["crossover_tokens"]) for r in state} == {(0, None)}


def test_batch_multiplies_bytes_but_not_the_rate_of_one_sequence() -> None:
    one, many = (
        rows(models=("gemma-3-27b",), ctx=(512,)),
        rows(models=("gemma-3-27b",), ctx=(512,), batch=7),
    )
    assert many[0]["total_bytes"] == 7 * one[0]["total_bytes"]
    assert many[0]["kv_bytes_per_token"] == one[0]["kv_bytes_per_token"]


def test_the_rate_is_marginal_at_the_context() -> None:
    """Gemma 3 27B: 62 layers grow until the window of 1024 is full, then 10 do."""
    records = rows(models=("gemma-3-27b",), ctx=(1023, 1024, 32768))
    per_layer = 16 * 256 * 2
    assert [r["kv_bytes_per_token"] for r in records] == [
        62 * per_layer,
        10 * per_layer,
        10 * per_layer,
    ]


def test_the_state_is_told_in_tokens_of_cache() -> None:
    """Qwen3.5 27B: 48 x (48 x 128 x 128 float32 + 10240 x 3 bfloat16) over 16 x 2 x 4 x 256 x 2."""
    spec = KvcacheSpec(models=("qwen3.5-27b", "llama-3.1-8b"), ctx=(32768,), batch=2)
    findings = kvcache(spec).run().findings
    assert [line for line in findings if "state of" in line] == [
        "The state of qwen3.5-27b, 293.6 MiB, is the cache of 2349 tokens."
    ]


def test_crossover_against_any_model() -> None:
    (row,) = rows(models=("gqa-32l",), against="jamba-v0.1", ctx=(1024,))
    state = 28 * (3 * 8192 * 2 + 8192 * 16 * 4)
    slope = 131072 - 4 * 8 * 128 * 2 * 2
    assert row["crossover_tokens"] == -(-state // slope)
    (never,) = rows(models=("mamba-32l",), against="falcon-mamba-7b", ctx=(1024,))
    assert never["crossover_tokens"] is None
    assert "never reaches falcon-mamba-7b" in never["note"]


def test_layers_sum_to_the_model() -> None:
    for model in ("gpt-oss-20b", "jamba-v0.1", "falcon-h1-7b"):
        (whole,) = rows(models=(model,), ctx=(5000,), batch=2)
        layers = rows(models=(model,), ctx=(5000,), batch=2, per_layer=True)
        assert [r["layer"] for r in layers] == list(range(len(layers)))
        for name in ("kv_bytes", "state_bytes", "total_bytes", "kv_bytes_per_token"):
            assert sum(r[name] for r in layers) == whole[name]
    kinds = [r["kind"] for r in rows(models=("jamba-v0.1",), ctx=(1,), per_layer=True)]
    assert [i for i, kind in enumerate(kinds) if kind == "attention"] == [4, 12, 20, 28]


def test_explain_puts_the_numbers_in() -> None:
    diagnosis = kvcache(KvcacheSpec(models=("gpt-oss-20b",), ctx=(1024, 32768), explain=True))
    text = "\n".join(diagnosis.run().findings)
    assert (
        "12 x attention: 8 kv heads x (64 key + 64 value) x 32768 tokens; "
        "held 1x8x32768x64 + "
        "1x8x32768x64 bfloat16"
    ) in text
    assert "min(32768 tokens, window 128)" in text
    assert "total = 808452096 B" in text
    assert "sliding_window = 128" in text
    assert "K-1 columns" in text


def test_a_model_of_your_own() -> None:
    (row,) = rows(layers=4, kv_heads=2, head_dim=8, v_head_dim=4, window=10, ctx=(100,))
    assert row["model"] == "custom"
    assert row["kv_bytes"] == 4 * 2 * 12 * 10 * 2
    both = rows(models=("gqa-32l",), layers=4, kv_heads=2, head_dim=8, ctx=(100,))
    assert [r["model"] for r in both] == ["gqa-32l", "custom"]


def test_measured_bytes_are_the_predicted_ones() -> None:
    models = ("gqa-32l", "mamba-32l", "jamba-v0.1", "deepseek-v3")
    for dtype in ("float32", "float16", "float8"):
        records = rows(models=models, ctx=(100,), dtype=dtype, measure=True, device="cpu")
        assert [r["measured_bytes"] for r in records] == [r["total_bytes"] for r in records]
        assert {r["status"] for r in records} == {"ok"}
    layers = rows(models=("jamba-v0.1",), ctx=(9,), per_layer=True, measure=True, device="cpu")
    assert [r["measured_bytes"] for r in layers] == [r["total_bytes"] for r in layers]


def test_measuring_above_the_limit_is_skipped() -> None:
    small, large = rows(
        models=("gqa-32l",), ctx=(8, 1048576), measure=True, device="cpu", limit=2**21
    )
    assert small["measured_bytes"] == 2**20
    assert (large["measured_bytes"], large["status"]) == (None, "skipped")
    assert "128.0 GiB is above --limit 2.0 MiB" in large["note"]
    (default,) = rows(models=("gqa-32l",), ctx=(32768,), measure=True, device="cpu")
    assert default["status"] == "skipped"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"engine": ("vlm",)}, "--engine"),
        ({"ubatch": 3}, "--ubatch: ideal has no such setting"),
        ({"enc_len": 3}, "has no encoder"),
        ({"models": ("mamba-codestral-7b",), "tp": 3}, "--tp"),
        ({"dtype": "int4"}, "--dtype"),
        ({"state_dtype": "int4"}, "--state-dtype"),
        ({"layers": 3}, "give all three"),
        ({"window": 3}, "give all three"),
        ({"models": ("gqa-33l",)}, "MODEL"),
        ({"against": "gqa-33l"}, "--against"),
    ],
)
def test_options_that_do_not_fit(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        kvcache(KvcacheSpec(**spec))
    assert message in caught.value.message


@pytest.mark.parametrize("also", [{"against": "mamba-32l"}, {"bandwidth": 1e12}, {"memory": 2**30}])
def test_a_layer_has_no_place_for_what_is_of_a_model(also: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is of a whole model; leave out --per-layer"):
        rows(per_layer=True, **also)


def test_a_cache_alone_may_be_planned() -> None:
    (found,) = rows(models=("llama-3.1-8b",), ctx=(1024,), memory=2**30, weights=0, reserve=0.0)
    assert (found["max_ctx_tokens"], found["max_batch"]) == (2**30 // 131072, 8)


def test_a_packed_cache_is_planned_by_its_peak() -> None:
    options: dict[str, Any] = {"models": ("llama-3.1-8b",), "dtype": "kivi-2"}
    memory = 50 * 2**20
    (plan,) = rows(ctx=(1024,), memory=memory, weights=0, reserve=0.0, **options)
    most = plan["max_ctx_tokens"]
    sizes = [r["total_bytes"] for r in rows(ctx=tuple(range(most - 200, most + 2)), **options)]
    assert max(sizes[:-1]) <= memory < sizes[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "kivi-2", "kv_group": 48}, "--kv-group 48 does not divide --kv-residual of 128"),
        ({"dtype": "kivi-2", "kv_group": 256, "kv_residual": 256}, "does not divide a head of 128"),
        ({"kv_group": 32}, "--kv-group: is of --dtype kivi-2 and kivi-4"),
        ({"dtype": "kivi-4", "models": ("deepseek-v3",)}, "keys and values of attention only"),
    ],
)
def test_what_kivi_does_not_take(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rows(**{"models": ("llama-3.1-8b",), "ctx": (1024,), **options})
