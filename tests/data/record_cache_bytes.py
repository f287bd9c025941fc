"""Measures anew the cache bytes of every model type in `transformers_cache_bytes.json`.

    python tests/data/record_cache_bytes.py [MODEL_TYPE ...]

Needs torch and transformers, and seqdiag on the path. Each type is built tiny and random from its
recorded config, run over 8 and 40 tokens in bfloat16, and the bytes of its cache tensors are held
against the record and against `--engine transformers`, layer by layer. Exit status 1 if any
differs. The file was recorded with transformers 5.24.0 and torch 2.13.0 on a CPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
)

from seqdiag.predict.kv_cache.engines import ENGINES
from seqdiag.predict.kv_cache.layout import dtypes_for
from seqdiag.predict.kv_cache.readers import read_config

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


def build(config: Any, encoder: bool) -> Any:
    if not encoder:
        return AutoModelForCausalLM.from_config(config)
    try:
        return AutoModelForSeq2SeqLM.from_config(config)
    except ValueError:
        return AutoModelForSpeechSeq2Seq.from_config(config)


def measure(entry: dict[str, Any], length: int) -> list[int]:
    """Returns the bytes of each layer's cache after `length` tokens."""
    given = {k: v for k, v in entry["config"].items() if k not in ("model_type", "dtype")}
    config = CONFIG_MAPPING[entry["config"]["model_type"]](**given)
    torch.manual_seed(0)
    encoded = entry["encoder_tokens"]
    model = build(config, encoded is not None).to(torch.bfloat16).eval()
    ids = torch.randint(3, 60, (1, length))
    inputs: dict[str, torch.Tensor] = {"input_ids": ids}
    if encoded is not None:
        inputs = {"decoder_input_ids": ids, "input_ids": torch.randint(3, 60, (1, encoded))}
        if model.main_input_name == "input_features":
            bins = getattr(config, "num_mel_bins", None) or config.input_feat_per_channel
            frames = (1, bins, 80) if config.model_type == "whisper" else (1, 80, bins)
            inputs["input_features"] = torch.zeros(frames, dtype=torch.bfloat16)
            del inputs["input_ids"]
    with torch.no_grad():
        out = model(**inputs, use_cache=True)
    names = ("past_key_values", "cache_params", "state")
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
    sys.stdout.write(f"{wrong} of {2 * len(sys.argv[1:] or record)} measurements differ\n")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
