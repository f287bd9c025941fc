"""Tiny models of a dozen families, built and run here; skipped where transformers is absent.

`make hf-check` does this for every type.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

from tests.data.record_cache_bytes import RECORD, measure, predict, unread  # noqa: E402

FAMILIES = [
    "llama", "gemma3_text", "llama4_text", "deepseek_v3", "deepseek_v4", "mamba", "mamba2",
    "qwen3_next", "jamba", "lfm2", "t5", "whisper", "zamba2", "minimax_m3_vl_text",
]  # fmt: skip
ENTRIES = json.loads(Path(RECORD).read_text())


@pytest.mark.parametrize("length", [8, 40])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_live_cache_is_what_is_predicted(name: str, length: int) -> None:
    measured = measure(ENTRIES[name], length)
    predicted = predict(name, ENTRIES[name], length)
    assert measured == (predicted if len(measured) > 1 else [sum(predicted)])


def test_every_installed_type_is_read_or_has_a_reason() -> None:
    assert not unread()
