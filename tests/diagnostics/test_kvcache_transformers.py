"""A measured module of `transformers` against its config, read; skipped where it is absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import seqdiag
from seqdiag.errors import UsageError

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "dtype": "float32",
}
WINDOW = {**SMALL, "num_hidden_layers": 6, "head_dim": 8, "sliding_window": 20, "pad_token_id": 0}
MAMBA = {k: SMALL[k] for k in ("vocab_size", "hidden_size", "num_hidden_layers", "dtype")}
LATENT = {
    **SMALL, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "n_group": 1, "topk_group": 1, "num_key_value_heads": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", SMALL),
        ("gemma3_text", WINDOW),
        ("mamba", {**MAMBA, "state_size": 8}),
        ("mamba2", {**MAMBA, "state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1}),
        ("rwkv", {**MAMBA, "attention_hidden_size": 32}),
        ("deepseek_v3", LATENT),
    ],
)
def test_measured_is_what_the_config_says(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    config = transformers.CONFIG_MAPPING[kind](**settings)
    config.save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    options: dict[str, Any] = {"ctx": [64, 256], "batch": 3}
    found = seqdiag.kvcache(model, **options).records
    read = seqdiag.kvcache(tmp_path, engine=["transformers"], **options).records
    for name in ("kv_bytes", "state_bytes"):
        assert [r[name] for r in found] == [r[name] for r in read]


def test_a_cache_that_the_call_drops_is_not_guessed() -> None:
    """RecurrentGemma has its states in modules and its keys in a cache that it does not return."""
    config = transformers.RecurrentGemmaConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1,
        head_dim=8, intermediate_size=48, vocab_size=64, lru_width=32, attention_window_size=20,
    )  # fmt: skip
    with pytest.raises(UsageError, match="takes cache but returns no cache"):
        seqdiag.kvcache(transformers.RecurrentGemmaForCausalLM(config))
