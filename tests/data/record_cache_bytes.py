"""Measures anew the cache bytes of every model type in `transformers_cache_bytes.json`.

    python tests/data/record_cache_bytes.py [MODEL_TYPE ...]

Needs torch and transformers, and seqdiag on the path. Each type is built tiny and random from its
recorded config, run over 8 and 40 tokens in bfloat16, and the bytes of its cache tensors are held
against the record and against `--engine transformers`, layer by layer. Exit status 1 if any
differs, or if a causal or encoder-decoder type of the installed transformers can be neither read
nor named among the exceptions. The file was recorded with transformers 5.24.0 and torch 2.13.0 on a
CPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
)

from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.engines import ENGINES
from seqdiag.predict.kv_cache.layout import dtypes_for
from seqdiag.predict.kv_cache.readers import read_config
from seqdiag.predict.kv_cache.readers.table import READERS

RECORD = Path(__file__).parent / "transformers_cache_bytes.json"


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.numel() > 1 else []
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors(item)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors(item)]
    return []


def size(value: Any) -> int:
    held = {id(t): t.numel() * t.element_size() for t in tensors(vars(value))}
    return sum(held.values())


UNREAD = {
    "blt": "its cache holds patches, whose number depends on the text",
    "canary": "a decoder of Canary is not read",
    "cohere_asr": "its decoder is not read",
    "dia": "its decoder is not read",
    "encoder-decoder": "wraps any two models: size its decoder",
    "gemma4_assistant": "attends to the cache of the model that it assists",
    "gemma4_unified_assistant": "attends to the cache of the model that it assists",
    "moonshine_streaming": "its decoder is not read",
    "musicgen": "wraps a text encoder and a decoder: size its decoder",
    "musicgen_melody": "wraps a text encoder and a decoder: size its decoder",
    "openai-gpt": "keeps no cache",
    "reformer": "keeps hashed buckets of hidden states",
    "speech-encoder-decoder": "wraps any two models: size its decoder",
    "voxtral_realtime": "its decoder runs on audio only",
    "xlm": "fills a cache but does not return it",
}


def unread() -> list[str]:
    """Returns the installed types that can be neither read nor named among the exceptions."""
    installed = {
        *MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        *MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    }
    return sorted(name for name in installed - set(UNREAD) if not is_read(name))


def is_read(name: str) -> bool:
    if name in READERS:
        return True
    whole = json.loads(CONFIG_MAPPING[name]().to_json_string(use_diff=False))
    try:  # a wrapper's language model is read
        read_config(name, whole, name, enc_len=100)
    except UsageError as error:
        return "unknown model_type" not in error.message
    return True


def build(config: Any, encoder: bool) -> Any:
    classes = (AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq) if encoder else ()
    for auto in (*classes, AutoModelForCausalLM, AutoModel):
        try:
            model = auto.from_config(config, dtype=torch.bfloat16)
        except ValueError as error:
            if "Unrecognized configuration" not in str(error):
                raise
            continue
        # Some models keep parameters in float32 on purpose; XLNet makes one without its dtype.
        return model.to(torch.bfloat16) if config.model_type == "xlnet" else model
    raise ValueError(f"no model of {config.model_type}")


def measure(entry: dict[str, Any], length: int) -> list[int]:
    """Returns the bytes of each layer's cache after `length` tokens."""
    given = {k: v for k, v in entry["config"].items() if k not in ("model_type", "dtype")}
    config = CONFIG_MAPPING[entry["config"]["model_type"]](**given)
    torch.manual_seed(0)
    encoded = entry["encoder_tokens"]
    model = build(config, encoded is not None).eval()
    ids = torch.randint(3, 60, (1, length))
    inputs: dict[str, torch.Tensor] = {"input_ids": ids}
    if encoded is not None:
        inputs = {"decoder_input_ids": ids, "input_ids": torch.randint(3, 60, (1, encoded))}
        if model.main_input_name == "input_features":
            bins = getattr(config, "num_mel_bins", None) or config.input_feat_per_channel
            frames = (1, bins, 80) if config.model_type == "whisper" else (1, 80, bins)
            inputs["input_features"] = torch.zeros(frames, dtype=torch.bfloat16)
            del inputs["input_ids"]
        if config.model_type in ("moonshine", "speecht5"):
            inputs["input_values"] = torch.zeros((1, 6400), dtype=torch.bfloat16)
            del inputs["input_ids"]
        if config.model_type == "udop":
            inputs["bbox"] = torch.zeros((1, encoded, 4))
    with torch.no_grad():
        out = model(**inputs, use_cache=True)
    names = ("past_key_values", "cache_params", "state", "mems", "cache")
    cache = next(out[name] for name in names if out.get(name) is not None)
    if hasattr(cache, "self_attention_cache"):
        pairs = zip(
            cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True
        )
        return [size(own) + size(cross) for own, cross in pairs]
    if hasattr(cache, "layers"):
        return [size(layer) for layer in cache.layers]
    return [sum(tensor.numel() * tensor.element_size() for tensor in tensors(cache))]


def predict(name: str, entry: dict[str, Any], length: int) -> list[int]:
    layout = read_config(name, entry["config"], name, enc_len=entry["encoder_tokens"])
    engine, dtypes = ENGINES["transformers"](), dtypes_for(layout, None, None)
    return [engine.allocate(layer.parts, length, 1, dtypes).total_bytes for layer in layout.layers]


def main() -> int:
    record = json.loads(RECORD.read_text())
    wrong = 0
    for name in sys.argv[1:] or record:
        for length in (8, 40):
            measured = measure(record[name], length)
            predicted = predict(name, record[name], length)
            if len(measured) == 1:
                predicted = [sum(predicted)]
            recorded = record[name]["bytes"][str(length)]
            # Layers that share a cache, at the end, have no entry of their own.
            shorter = predicted[: len(measured)]
            if not measured == recorded == shorter or any(predicted[len(measured) :]):
                wrong += 1
                sys.stdout.write(
                    f"{name}, {length} tokens: {measured} measured, {predicted} predicted\n"
                )
    missing = unread()
    if missing:
        sys.stdout.write(f"not read and no exception: {', '.join(missing)}\n")
    sys.stdout.write(f"{wrong} of {2 * len(sys.argv[1:] or record)} measurements differ\n")
    return int(wrong > 0 or bool(missing))


if __name__ == "__main__":
    raise SystemExit(main())
