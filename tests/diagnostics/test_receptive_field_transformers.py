"""`receptive-field` on random modules of `transformers`; skipped where it is absent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import seqdiag

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
MAMBA = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
JAMBA = {**GROUPED, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
GPT2 = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}


@pytest.mark.parametrize(
    ("kind", "settings", "steps"),
    [
        ("llama", GROUPED, 64),
        ("gpt2", GPT2, 64),
        ("mistral", {**GROUPED, "sliding_window": 8}, 15),
        ("gemma3_text", {**GROUPED, "head_dim": 8, "sliding_window": 8}, 15),
        ("mamba", MAMBA, 64),
        ("jamba", {**JAMBA, "mamba_d_state": 4}, 64),
    ],
)
def test_causal_models(kind: str, settings: dict[str, Any], steps: int) -> None:
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**settings)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    found = seqdiag.receptive_field(model).records[0]
    assert (found["causal"], found["lookahead_steps"]) == (True, 0)
    assert found["measured_steps"] == steps
    assert "no prediction" in str(found["note"])


def test_bert_sees_everything() -> None:
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**SMALL))
    found = seqdiag.receptive_field(model).records[0]
    assert (found["causal"], found["lookahead_steps"]) == (False, 63)


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_wav2vec2_feature_encoder(norm: str) -> None:
    torch.manual_seed(0)
    config = transformers.Wav2Vec2Config(
        conv_dim=(8,) * 7, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
        feat_extract_norm=norm,
    )  # fmt: skip
    encoder = transformers.Wav2Vec2Model(config).feature_extractor
    found = seqdiag.receptive_field(encoder, input="samples", layout="bdt").records[0]
    assert found["stride"] == 320
    if norm == "layer":
        assert (found["predicted_steps"], found["measured_steps"]) == (400, 400)
    else:  # its group norm takes a mean over time: without it, 400
        assert found["predicted_steps"] is None
        assert "without it 400 steps" in str(found["note"])
