"""GGUF headers written here byte by byte: the same layout as the preset, and hostile files."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.layout import Layout
from seqdiag.predict.kv_cache.subjects import load_subject


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list) and isinstance(value[0], str):
        body = b"".join(map(text, value))
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + body
    if isinstance(value, list):
        return text(key) + struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return text(key) + struct.pack("<II", 4, value)


def write(path: Path, architecture: str, **fields: Any) -> Path:
    named = {f"{architecture}.{key.replace('__', '.')}": value for key, value in fields.items()}
    pairs = {
        "general.architecture": architecture,
        "tokenizer.ggml.tokens": ["a", "bc"] * 500,
        **named,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs))
    path.write_bytes(head + b"".join(pair(k, v) for k, v in pairs.items()) + b"\0" * 64)
    return path


def parts(layout: Layout) -> list[list[int]]:
    """Returns how many elements each layer keeps after 5000 tokens."""
    return [
        [sum(kept.elements for kept in part.tensors(5000)) for part in layer.parts]
        for layer in layout.layers
    ]


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-3.1-8b": (
        "llama",
        {
            "block_count": 32,
            "embedding_length": 4096,
            "attention__head_count": 32,
            "attention__head_count_kv": 8,
        },
    ),
    "qwen3-32b": (
        "qwen3",
        {
            "block_count": 64,
            "embedding_length": 5120,
            "attention__head_count": 64,
            "attention__head_count_kv": [8] * 64,
            "attention__key_length": 128,
            "attention__value_length": 128,
        },
    ),
    "gemma-3-27b": (
        "gemma3",
        {
            "block_count": 62,
            "embedding_length": 5376,
            "attention__head_count": 32,
            "attention__head_count_kv": 16,
            "attention__key_length": 128,
            "attention__value_length": 128,
            "attention__sliding_window": 1024,
        },
    ),
    "deepseek-v3": (
        "deepseek2",
        {
            "block_count": 61,
            "embedding_length": 7168,
            "attention__head_count": 128,
            "attention__head_count_kv": 1,
            "attention__key_length": 576,
            "attention__value_length": 512,
            "attention__key_length_mla": 192,
            "attention__value_length_mla": 128,
            "attention__kv_lora_rank": 512,
            "rope__dimension_count": 64,
        },
    ),
    "qwen3.5-27b": (
        "qwen35",
        {
            "block_count": 64,
            "embedding_length": 5120,
            "attention__head_count": 24,
            "attention__head_count_kv": 4,
            "attention__key_length": 256,
            "attention__value_length": 256,
            "ssm__conv_kernel": 4,
            "ssm__inner_size": 6144,
            "ssm__state_size": 128,
            "ssm__group_count": 16,
        },
    ),
    "jamba-v0.1": (
        "jamba",
        {
            "block_count": 32,
            "embedding_length": 4096,
            "attention__head_count": 32,
            "attention__head_count_kv": [8 if i % 8 == 4 else 0 for i in range(32)],
            "ssm__conv_kernel": 4,
            "ssm__inner_size": 8192,
            "ssm__state_size": 16,
        },
    ),
}


@pytest.mark.parametrize("preset", CASES)
def test_the_same_layout_as_the_config(preset: str, tmp_path: Path) -> None:
    architecture, fields = CASES[preset]
    path = write(tmp_path / "model.gguf", architecture, **fields)
    read, known = load_subject(str(path)), load_subject(preset)
    assert parts(read) == parts(known)
    assert read.query_heads == known.query_heads


def test_tensors_are_not_read(tmp_path: Path) -> None:
    """A file of 8 GiB, of which all but the header is a hole."""
    architecture, fields = CASES["llama-3.1-8b"]
    path = write(tmp_path / "model.gguf", architecture, **fields)
    with path.open("r+b") as file:
        file.truncate(8 * 2**30)
    assert len(load_subject(str(path)).layers) == 32


HEAD = b"GGUF" + struct.pack("<IQ", 3, 0)
KEY = struct.pack("<Q", 1) + b"k"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"GG", "is not GGUF"),
        (b"PK\3\4" + b"\0" * 40, "is not GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (HEAD, "truncated"),
        (HEAD + struct.pack("<Q", 2**63), "claims 9223372036854775808 metadata pairs"),
        (HEAD + struct.pack("<QQ", 1, 2**63) + b"\0" * 40, "bytes of a string"),
        (HEAD + struct.pack("<Q", 1) + KEY + struct.pack("<I", 99), "claims 99 kinds"),
        (HEAD + struct.pack("<Q", 1) + KEY + struct.pack("<IIQ", 9, 4, 2**62), "array entries"),
        (HEAD + struct.pack("<Q", 1) + KEY + struct.pack("<IIQ", 9, 8, 2**40), "strings"),
        (HEAD + struct.pack("<Q", 1) + KEY + struct.pack("<IIQQ", 9, 8, 1, 2**63), "truncated"),
        (HEAD + struct.pack("<Q", 1) + KEY + struct.pack("<IIQ", 9, 9, 1), "arrays of arrays"),
        (HEAD + struct.pack("<Q", 0), "general.architecture"),
    ],
)
def test_hostile_files(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        load_subject(str(path))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_count": 0}, "block_count = 0"),
        ({"block_count": 2**31}, "more than 100000"),
        ({"attention__head_count_kv": [8, 8]}, "lists 2 layers"),
        ({"attention__head_count_kv": [-8] * 32}, "lists -8"),
        ({"embedding_length": 4097}, "no multiple of 32 heads"),
        ({"wkv__head_size": 64}, "is not known"),
        ({"attention__head_count": 0}, "no multiple of 0 heads"),
    ],
)
def test_metadata_that_does_not_fit(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    architecture, fields = CASES["llama-3.1-8b"]
    path = write(tmp_path / "model.gguf", architecture, **{**fields, **change})
    with pytest.raises(UsageError) as caught:
        load_subject(str(path))
    assert message in caught.value.message
