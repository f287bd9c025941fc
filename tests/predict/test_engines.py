"""What must hold of every engine, and rules of each against figures written down by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiag.config import config_names
from seqdiag.diagnostics.kvcache import KvcacheSpec, kvcache
from seqdiag.diagnostics.kvcache.subject import Subject, subject_of
from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.crossover import first_reach_of_steps
from seqdiag.predict.kv_cache.engines import ENGINES
from seqdiag.predict.kv_cache.layout import (
    Attention,
    ConvState,
    Latent,
    Layer,
    Layout,
    RecurrentState,
)
from seqdiag.predict.kv_cache.subjects import load_subject

MIB = 2**20
small = st.integers(min_value=1, max_value=16)
tokens = st.integers(min_value=1, max_value=5000)
parts = st.one_of(
    st.builds(Attention, small, small, small, st.none() | st.integers(2, 900)),
    st.builds(Latent, small, small),
    st.builds(ConvState, small, small),
    st.builds(RecurrentState, st.tuples(small, small)),
)
sparse = st.builds(Latent, small, small, st.just(128), topk=st.integers(0, 900))


def layouts_of(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Layout]:
    return st.builds(
        lambda layers: Layout("m", tuple(Layer(tuple(parts)) for parts in layers), "bfloat16"),
        st.lists(st.lists(parts, max_size=2), min_size=1, max_size=4),
    )


layouts = layouts_of(parts)
engines = st.sampled_from(["ideal", "transformers", "vllm", "llama.cpp", "sglang"])


def subject(layout: Layout, engine: str, **spec: Any) -> Subject:
    return subject_of(layout, engine, KvcacheSpec(engine=(engine,), **spec))


def row(*models: str, **spec: Any) -> dict[str, Any]:
    return kvcache(KvcacheSpec(models=models, **spec)).run().records[0]


@settings(deadline=None)
@given(layouts, engines, tokens, tokens)
def test_more_tokens_never_take_less(layout: Layout, engine: str, a: int, b: int) -> None:
    sized = subject(layout, engine)
    assert sized.total(min(a, b)) <= sized.total(max(a, b))


@settings(deadline=None)
@given(layouts, engines, tokens)
def test_layers_add_up(layout: Layout, engine: str, t: int) -> None:
    sized = subject(layout, engine)
    alone = [sized.allocate(t, layer.parts).total_bytes for layer in layout.layers]
    assert sum(alone) == sized.total(t)


@settings(deadline=None)
@given(layouts, engines, tokens, st.integers(1, 9))
def test_linear_in_the_batch(layout: Layout, engine: str, t: int, batch: int) -> None:
    one, two, many = (subject(layout, engine, batch=n).total(t) for n in (1, 2, batch))
    assert many == one + (batch - 1) * (two - one)
    if engine != "sglang":  # which has a slot more than sequences
        assert many == batch * one


@settings(deadline=None)
@given(layouts, st.sampled_from(["vllm", "llama.cpp", "sglang"]), tokens, st.integers(1, 4))
def test_engines_hold_at_least_the_need(layout: Layout, engine: str, t: int, batch: int) -> None:
    same = {"dtype": "bfloat16", "conv_dtype": "bfloat16", "state_dtype": "float32"}
    held = subject(layout, engine, batch=batch, **same).total(t)
    assert held >= subject(layout, "ideal", batch=batch, **same).total(t)


@settings(deadline=None)
@given(layouts_of(parts | sparse), engines, tokens, st.integers(1, 4))
def test_a_step_reads_no_more_than_is_held(layout: Layout, engine: str, t: int, batch: int) -> None:
    sized = subject(layout, engine, batch=batch)
    need = sized.allocate(t)
    if engine == "transformers":  # after the step a window has dropped a token that the step read
        assert need.kv_read_bytes <= subject(layout, "ideal", batch=batch).allocate(t).kv_bytes
    else:
        assert need.kv_read_bytes <= need.kv_bytes


@pytest.mark.parametrize("model", sorted(config_names("models")))
@pytest.mark.parametrize("engine", ["ideal", "vllm", "llama.cpp", "sglang"])
def test_presets_read_what_they_hold(model: str, engine: str) -> None:
    """All of a full page, but for a window's room for a prefill and what DSA does not choose."""
    sized = subject(load_subject(model), engine)
    if sized.unsupported:
        return
    t = 4096 * sized.engine.granule
    need = sized.allocate(t)
    chosen = any(isinstance(part, Latent) and part.topk for part in sized.layout.parts())
    if chosen:
        assert need.kv_read_bytes < need.kv_bytes
    elif not need.window_bytes and not need.cross_bytes:
        assert need.kv_read_bytes == need.kv_bytes


def test_an_expanded_latent_is_read_as_it_is_stored() -> None:
    """DeepSeek-V3, 61 layers: 128 heads x (192 + 128) against one row of 512 + 64."""
    options: dict[str, Any] = {"engine": ("llama.cpp",), "ctx": (32768,)}
    expanded = row("deepseek-v3", mla="expanded", **options)
    assert expanded["kv_read_bytes"] == 61 * 32768 * 128 * (192 + 128) * 2
    assert row("deepseek-v3", **options)["kv_read_bytes"] == 61 * 32768 * (512 + 64) * 2


def test_a_sparse_step_reads_the_chosen_latents_and_every_index_key() -> None:
    """DeepSeek-V3.2, 61 layers: 2048 of the tokens, each 512 + 64; a key of 128 of every token."""
    found = row("deepseek-v3.2", ctx=(32768,))
    assert found["kv_read_bytes"] == 61 * 2 * (2048 * (512 + 64) + 32768 * 128)
    scaled = row("deepseek-v3.2", ctx=(32768,), engine=("vllm",))
    assert scaled["kv_read_bytes"] == 61 * (2 * 2048 * (512 + 64) + 32768 * (128 + 4))


@settings(deadline=None)
@given(st.builds(Attention, small, small, small), st.integers(1, 20), tokens)
def test_ranks_hold_at_least_the_whole(part: Attention, tp: int, t: int) -> None:
    layout = Layout("m", (Layer((part,)),), "bfloat16")
    assert tp * subject(layout, "ideal", tp=tp).total(t) >= subject(layout, "ideal").total(t)


@settings(deadline=None)
@given(layouts, engines, st.integers(1, 3), st.integers(10**3, 10**8))
def test_one_token_more_than_planned_does_not_fit(
    layout: Layout, engine: str, batch: int, memory: int
) -> None:
    from seqdiag.diagnostics.kvcache.planning import plan

    spec = KvcacheSpec(engine=(engine,), batch=batch, memory=memory, weights=0, reserve=0.0)
    sized = subject_of(layout, engine, spec)
    room, note = plan(spec, sized, 100)
    if room.max_ctx is None:
        assert note
    else:
        assert room.max_ctx == 0 or sized.total(room.max_ctx) <= memory
        assert sized.total(room.max_ctx + 1) > memory
    assert room.max_batch is not None
    assert sized.of_batch(room.max_batch + 1).total(100) > memory or not sized.total(100)


@settings(deadline=None)
@given(layouts, layouts, engines)
def test_crossover_of_steps(a: Layout, b: Layout, engine: str) -> None:
    one, other = subject(a, engine), subject(b, engine)
    found = first_reach_of_steps(one.total, other.total)
    if found is None:
        assert one.total(3000) < other.total(3000)
    else:
        assert one.total(found) >= other.total(found)
        assert found == 1 or one.total(found - 1) < other.total(found - 1)


def test_vllm_raises_the_block_to_the_state() -> None:
    """Qwen3.5-27B: a page of 3,207,168 B against 4,096 B a token; logged as 784."""
    assert row("qwen3.5-27b", engine=("vllm",), ctx=(1024,))["block_tokens"] == 784
    half = row("qwen3.5-27b", engine=("vllm",), ctx=(1024,), dtype="fp8")
    assert half["block_tokens"] == 1568
    nano = row("nemotron-3-nano-30b-a3b", engine=("vllm",), ctx=(1024,), dtype="fp8")
    assert nano["block_tokens"] == 4176, "as logged"
    assert row("llama-3.1-8b", engine=("vllm",), ctx=(1,))["kv_bytes"] == 16 * 131072


def test_vllm_windows_make_room_for_a_prefill_step() -> None:
    got = row("gemma-3-27b", engine=("vllm",), ctx=(32768,), max_batched_tokens=2048)
    pages = -(-(1024 - 1 + 2048) // 16) + 1
    assert got["window_bytes"] == 52 * pages * 16 * 16 * 256 * 2


def test_llama_cpp() -> None:
    """Gemma 3 27B at 32k: 10 full layers, 52 of pad256(1024 + 512) cells."""
    got = row("gemma-3-27b", engine=("llama.cpp",), ctx=(32768,), ubatch=512)
    per_cell = 16 * 256 * 2
    assert got["window_bytes"] == 52 * 1536 * per_cell == 624 * MIB
    assert got["kv_bytes"] == 624 * MIB + 10 * 32768 * per_cell
    whole = row("gemma-3-27b", engine=("llama.cpp",), ctx=(32768,), swa_full=True)
    assert whole["kv_bytes"] == 62 * 32768 * per_cell
    slots = row("qwen3.5-27b", engine=("llama.cpp",), ctx=(1,), parallel=4, spec_tokens=1)
    assert slots["recurrent_bytes"] == 8 * 48 * 48 * 128 * 128 * 4
    two = row("llama-3.1-8b", engine=("llama.cpp",), ctx=(100,), batch=2)
    one = row("llama-3.1-8b", engine=("llama.cpp",), ctx=(100,), batch=2, unified=True)
    assert (two["kv_bytes"], one["kv_bytes"]) == (2 * 256 * 131072, 256 * 131072)


def test_latents_in_llama_cpp() -> None:
    forms = {
        form: row("deepseek-v3", engine=("llama.cpp",), ctx=(32768,), mla=form)["kv_bytes"]
        for form in ("latent", "latent-and-value", "expanded")
    }
    assert forms["latent"] == 2196 * MIB
    assert forms["latent-and-value"] * 576 == forms["latent"] * 1088
    assert forms["expanded"] * 576 == forms["latent"] * 128 * (192 + 128)
    assert int(forms["expanded"] / forms["latent"]) == 71


def test_quantised_rows() -> None:
    """Bytes of a key of 8 heads of 128: ggml blocks of 32, scales a head, 16-element groups."""
    each = {
        "float32": 4096, "q8_0": 1088, "q5_1": 768, "q5_0": 704, "q4_1": 640, "q4_0": 576,
        "iq4_nl": 576, "fp8": 1024, "int8": 1056, "nvfp4": 576,
    }  # fmt: skip
    for name, size in each.items():
        got = row("llama-3.1-8b", ctx=(1,), k_dtype=name, v_dtype="float32")
        assert got["kv_bytes"] == 32 * (size + 4096), name
    latent = row("deepseek-v3", ctx=(1,), dtype="fp8_ds_mla")
    assert latent["kv_bytes"] == 61 * 656
    with pytest.raises(UsageError, match="latent attention only"):
        row("llama-3.1-8b", ctx=(1,), dtype="fp8_ds_mla")
    with pytest.raises(UsageError, match="no multiple of its block"):
        row(layers=1, kv_heads=1, head_dim=20, dtype="q8_0")


def test_ranks_replicate_heads_and_latents() -> None:
    for tp, heads in ((1, 4), (2, 2), (4, 1), (8, 1)):
        got = row("qwen3-30b-a3b", engine=("vllm",), ctx=(16,), tp=tp)
        assert got["kv_bytes"] == 48 * 16 * heads * 256 * 2
    whole, shared = (
        row("deepseek-v3", engine=("vllm",), ctx=(16,), tp=tp)["kv_bytes"] for tp in (1, 8)
    )
    assert whole == shared


def test_sglang_keeps_a_slot_more() -> None:
    got = row("qwen3.5-27b", engine=("sglang",), ctx=(1,), batch=3)
    assert got["state_bytes"] == 4 * 48 * (10240 * 3 * 2 + 48 * 128 * 128 * 4)


def test_what_an_engine_cannot_hold_is_said() -> None:
    got = row("llama-3.1-8b", engine=("vllm",), ctx=(16,), dtype="q8_0")
    assert (got["status"], got["total_bytes"]) == ("unsupported", None)
    assert "has no q8_0 cache" in got["note"]
    assert row("llama-3.1-8b", engine=("whisper.cpp",), ctx=(16,))["status"] == "unsupported"


def test_every_engine_has_one_name() -> None:
    assert all(engine.name == name for name, engine in ENGINES.items())
    assert all(engine.conventions for engine in ENGINES.values())


def test_the_state_costs_more_below_the_crossover() -> None:
    spec = KvcacheSpec(models=("gqa-32l",), against="mamba-codestral-7b", ctx=(1024,))
    findings = kvcache(spec).run().findings
    assert any("Below 2078 tokens mamba-codestral-7b is the more expensive" in f for f in findings)


def test_the_floor_of_attention_grows_and_that_of_a_state_does_not() -> None:
    spec = KvcacheSpec(models=("gqa-32l", "mamba-32l"), ctx=(1024, 2048), bandwidth=2.0**30)
    first, second, *state = (r["decode_floor_ms"] for r in kvcache(spec).run().records)
    assert (first, second) == (125.0, 250.0)
    assert state == [1e3 / 128] * 2


def test_whisper_cpp_prints_a_pad_buffer(tmp_path: Path) -> None:
    """whisper base: 512 wide, 1500 audio positions in 1536 cells."""
    config = {"model_type": "whisper", "decoder_layers": 6, "d_model": 512}
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_source_positions": 1500}))
    got = row(str(tmp_path), engine=("whisper.cpp",), ctx=(448,))
    assert got["work_bytes"] == 2 * 512 * 1536 * 2
    assert got["cross_bytes"] == 6 * got["work_bytes"]


def test_an_indexer_key_has_a_scale() -> None:
    """DeepSeek-V3.2: 132 bytes a token and layer beside the latent."""
    for engine in ("vllm", "sglang"):
        got = row("deepseek-v3.2", engine=(engine,), ctx=(64,))
        assert got["kv_bytes"] == 61 * 64 * (576 * 2 + 132)


def test_rwkv(tmp_path: Path) -> None:
    """RWKV-7 keeps heads x head_dim^2, not more: 64 x 64 x 64 for a width of 4096."""
    config = {"model_type": "rwkv7", "num_hidden_layers": 2, "hidden_size": 4096, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    got = row(str(tmp_path), engine=("llama.cpp",), ctx=(1,))
    assert got["recurrent_bytes"] == 2 * 4096 * 64 * 4
    assert got["state_bytes"] - got["recurrent_bytes"] == 2 * 2 * 4096 * 4


def test_vllm_keeps_states_for_prefix_caching() -> None:
    options: dict[str, Any] = {"engine": ("vllm",), "ctx": (8000,)}
    none = row("qwen3.5-27b", **options)
    assert none["engine_version"] == "V1, 2026"
    states = none["state_bytes"]
    assert row("qwen3.5-27b", mamba_cache_mode="align", **options)["state_bytes"] == 2 * states
    pages = -(-8000 // 784)
    assert row("qwen3.5-27b", mamba_cache_mode="all", **options)["state_bytes"] == pages * states


def test_vllm_without_its_hybrid_manager_charges_windows_in_full() -> None:
    """Gemma 3 27B: 62 layers of 16 heads of 128, whatever their window."""
    options: dict[str, Any] = {"engine": ("vllm",), "ctx": (32768,)}
    found = row("gemma-3-27b", disable_hybrid_kv_cache_manager=True, **options)
    assert found["kv_bytes"] == 62 * 32768 * 2 * 16 * 128 * 2
    assert row("gemma-3-27b", **options)["kv_bytes"] < found["kv_bytes"]


def test_llama_cpp_may_keep_windows_in_another_type() -> None:
    options: dict[str, Any] = {"engine": ("llama.cpp",), "ctx": (8192,)}
    half, packed = row("gemma-3-27b", **options), row("gemma-3-27b", dtype="q8_0", **options)
    mixed = row("gemma-3-27b", dtype="q8_0", swa_dtype="f16", **options)
    assert mixed["window_bytes"] == half["window_bytes"]
    full = packed["kv_bytes"] - packed["window_bytes"]
    assert mixed["kv_bytes"] == full + half["window_bytes"]
    windows = mixed["kv_read_bytes"] - packed["kv_read_bytes"]
    assert windows == 52 * 1024 * 2 * 16 * (128 * 2 - 136)
