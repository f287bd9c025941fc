"""`--engine transformers` against cache tensors of real tiny models, layer by layer.

The record holds what `tests/data/record_cache_bytes.py` measured with transformers 5.24.0: model
types, their configs, and the bytes of each layer after 8 and 40 tokens, in bfloat16.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqdiag.predict.kv_cache.engines import ENGINES
from seqdiag.predict.kv_cache.layout import dtypes_for
from seqdiag.predict.kv_cache.readers import read_config
from seqdiag.predict.kv_cache.readers.table import READERS

MEASURED = json.loads(
    (Path(__file__).parents[1] / "data" / "transformers_cache_bytes.json").read_text()
)
UNMEASURED = {
    "chameleon": "its tiny model does not run",
    "chatglm": "not in transformers",
    "dbrx": "its tiny model does not run",
    "deci": "not in transformers",
    "emu3_text_model": "has no causal model of its own; the cache is Llama's",
    "ernie4_5_vl_moe_text": "has no model without images; the cache is ernie4_5_moe's",
    "granite4_vision_text": "has no model without images; the cache is Granite's",
    "helium": "its tiny model does not run",
    "hunyuan_vl_text": "its tiny model does not run",
    "hy_v4_vl_text": "its tiny model does not run; the cache is hy_v4's",
    "kimi_k2": "not in transformers; the cache is deepseek_v3's",
    "kimi_linear": "its tiny model does not run; the states are bailing_hybrid's",
    "kyutai_speech_to_text": "its tiny model does not run",
    "longcat_flash": "its tiny model does not run",
    "minimax": "linear states lie beside the layers, the last without a layer of its own",
    "mistral4": "has no causal model of its own",
    "mllama_text_model": "has no model without images",
    "musicgen_decoder": "has no model without a text encoder; the cache is GPT-2's",
    "musicgen_melody_decoder": "has no model without a text encoder; the cache is GPT-2's",
    "nemotron-nas": "not in transformers",
    "paddleocr_vl_text": "has no model without images; the cache is ernie4_5's",
    "qwen2_5_omni_text": "has no model without audio; the cache is Qwen2's",
    "qwen2_5_vl": "as qwen2_5_vl_text, which published configs spell flat",
    "qwen2_vl": "as qwen2_vl_text, which published configs spell flat",
    "qwen3_omni_moe_text": "has no model without audio; the cache is Qwen3's",
    "recurrent_gemma": "its states lie in the modules, not in the cache",
    "rwkv5": "not in transformers",
    "rwkv6": "not in transformers",
    "rwkv7": "not in transformers",
    "switch_transformers": "its encoder refuses a cache; the decoder is T5's",
    "xglm": "its tiny config spells fields another way; the cache is GPT-2's",
    "xlstm": "its cache also holds a position of 8 bytes",
    "zamba": "its tiny model does not load",
}


def test_every_type_is_measured_or_has_a_reason() -> None:
    assert set(MEASURED) | set(UNMEASURED) == set(READERS)
    assert not set(MEASURED) & set(UNMEASURED)


@pytest.mark.parametrize("name", MEASURED)
def test_bytes_are_what_transformers_holds(name: str) -> None:
    entry = MEASURED[name]
    layout = read_config(name, entry["config"], name, enc_len=entry["encoder_tokens"])
    engine, dtypes = ENGINES["transformers"](), dtypes_for(layout, None, None)
    for tokens, measured in entry["bytes"].items():
        held = [
            engine.allocate(layer.parts, int(tokens), 1, dtypes).total_bytes
            for layer in layout.layers
        ]
        if len(measured) == 1:
            held = [sum(held)]
        # Layers that share a cache, at the end, have no entry of their own.
        assert held[: len(measured)] == measured
        assert not any(held[len(measured) :])
