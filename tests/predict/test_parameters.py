"""Parameter counts against published totals, models built by transformers, and files on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqdiag.config import config_dir, parse_toml
from seqdiag.diagnostics.kvcache import KvcacheSpec, kvcache
from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.readers.spellings import NAMES
from seqdiag.predict.kv_cache.weights import weigh
from seqdiag.predict.parameters import COUNTED, count_parameters

BUILT = json.loads((Path(__file__).parents[1] / "data" / "parameters.json").read_text())

PUBLISHED = {
    "llama-3.1-8b": 8030261248,
    "llama-3.1-70b": 70553706496,
    "llama-3.1-405b": 405853388800,
    "llama-2-7b": 6738415616,
    "llama-2-13b": 13015864320,
    "llama-2-70b": 68976648192,
    "llama-3.2-1b": 1235814400,
    "llama-3.2-3b": 3212749824,
    "mixtral-8x7b": 46702792704,
    "mixtral-8x22b": 140630071296,
    "qwen3-0.6b": 596049920,
    "qwen3-1.7b": 1720574976,
    "qwen3-8b": 8190735360,
    "qwen3-32b": 32762123264,
    "qwen3-30b-a3b": 30532122624,
    "qwen3-235b-a22b": 235093634560,
    "qwen3-coder-480b": 480154875392,
    "gemma-2-2b": 2614341888,
    "gemma-2-9b": 9241705984,
    "gemma-2-27b": 27227128320,
    "gemma-3-1b": 999885952,
    "qwen2-0.5b": 494032768,
    "qwen2-1.5b": 1543714304,
    "qwen2-7b": 7615616512,
    "phi-3-mini-128k": 3821079552,
    "olmo-2-32b": 32234279936,
    "mamba-codestral-7b": 7285403648,
    "falcon-mamba-7b": 7272665088,
    "mistral-7b-v0.3": 7248023552,
    "qwen3-next-80b-a3b": 79674391296,
}
"""Totals of the tensors that the published checkpoints hold, tied heads counted once."""


@pytest.mark.parametrize("preset", PUBLISHED)
def test_presets_have_their_published_parameters(preset: str) -> None:
    config = parse_toml("", config_dir("models") / f"{preset}.toml")["config"]
    assert isinstance(config, dict)
    model_type = config["model_type"]
    counted = count_parameters(model_type, config, preset, NAMES.get(model_type, {}))
    assert counted == PUBLISHED[preset]


@pytest.mark.parametrize("name", BUILT)
def test_counts_are_those_of_the_built_model(name: str) -> None:
    """Recorded by `tests/data/record_parameters.py` with transformers 5.24.0."""
    config = BUILT[name]["config"]
    assert count_parameters(name, config, name, NAMES.get(name, {})) == BUILT[name]["parameters"]


def test_every_counted_type_was_built() -> None:
    assert set(COUNTED) - set(BUILT) == {"kimi_k2"}  # DeepSeek-V3 under another name


def llama(folder: Path, **more: Any) -> Path:
    config = dict(BUILT["llama"]["config"], dtype="float16", **more)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_without_files_parameters_are_counted_in_the_own_dtype(tmp_path: Path) -> None:
    count = BUILT["llama"]["parameters"]
    size, how = weigh(str(llama(tmp_path)), "float16")
    assert (size, how) == (2 * count, f"{count} parameters in float16")


def test_files_win_over_counting(tmp_path: Path) -> None:
    folder = llama(tmp_path, quantization_config={"bits": 4})
    header = b'{"w":{}}   '
    for name, tensors in (("a", 100), ("b", 23)):
        data = len(header).to_bytes(8, "little") + header + bytes(tensors)
        (folder / f"{name}.safetensors").write_bytes(data)
    assert weigh(str(folder), "float16") == (123, "safetensors files")
    (folder / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 456}}')
    assert weigh(str(folder), "float16") == (456, "safetensors index")


def test_parts_of_a_gguf_count_together(tmp_path: Path) -> None:
    for i in (1, 2, 3):
        (tmp_path / f"m-{i:05d}-of-00003.gguf").write_bytes(bytes(10 * i))
    assert weigh(str(tmp_path / "m-00001-of-00003.gguf"), "float16") == (60, "size of 3 files")
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(UsageError, match="00002-of-00003"):
        weigh(str(tmp_path / "m-00001-of-00003.gguf"), "float16")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"model.safetensors.index.json": b"{}"}, "names no metadata.total_size"),
        ({"model.safetensors": b"\xff" * 20}, "is not a whole safetensors file"),
        ({"model.safetensors": b""}, "is not a whole safetensors file"),
    ],
)
def test_broken_files_are_said(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    llama(tmp_path)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=message):
        weigh(str(tmp_path), "float16")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"quantization_config": {"bits": 4}}, "is quantised"),
        ({"model_type": "bamba"}, "'bamba' cannot be counted"),
        ({"vocab_size": None}, "'vocab_size' is missing"),
    ],
)
def test_what_cannot_be_counted_is_asked_for(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        weigh(str(llama(tmp_path, **more)), "float16")
    assert "give --weights SIZE" in caught.value.hint
    with pytest.raises(UsageError, match="describes a cache only"):
        weigh("gqa-32l", "float16")


def test_planning_with_counted_weights() -> None:
    spec = KvcacheSpec(
        models=("llama-3.1-8b",), ctx=(8192,), memory=80 * 2**30, weights="auto", reserve=0.0
    )
    (row,) = kvcache(spec).run().records
    weights = 2 * PUBLISHED["llama-3.1-8b"]
    assert row["weight_bytes"] == weights
    assert row["max_ctx_tokens"] == (80 * 2**30 - weights) // 131072
    assert row["max_batch"] == (80 * 2**30 - weights) // (8192 * 131072)
    assert "weights: 8030261248 parameters in bfloat16" in row["note"]
    spec = KvcacheSpec(models=("llama-3.1-405b",), memory=80 * 2**30, weights="auto")
    row = kvcache(spec).run().records[0]
    assert (row["max_ctx_tokens"], row["max_batch"]) == (0, 0)
    assert "the weights alone, 756.0 GiB, do not fit" in row["note"]
    with pytest.raises(UsageError, match="auto needs a MODEL"):
        kvcache(KvcacheSpec(layers=2, kv_heads=1, head_dim=8, memory=2**30, weights="auto"))
