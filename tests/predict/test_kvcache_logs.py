"""Sizes that engines printed in public logs, each with its source, against what is computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqdiag.diagnostics.kvcache import KvcacheSpec, kvcache

LOGS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "kvcache_logs.jsonl").read_text().splitlines()
]
ENGINE = {"vLLM": "vllm", "vLLM-ascend": "vllm"}
MIB, GIB = 2**20, 2**30

FLAGS: dict[str, dict[str, Any]] = {
    "ik242_r1_full": {"mla": "expanded"},
    "ik258_g3_12b_full": {"swa_full": True},
    "oss20_hexagon_swa": {"ubatch": 128},
    "lmc4094_q35_08b_pad": {},
    "syv102_q38_27b_spec15_block": {"spec_tokens": 15, "state_dtype": "bfloat16"},
    "syv102_q38_27b_spec15_pad": {"spec_tokens": 15, "state_dtype": "bfloat16"},
    "ascend7393_q35_35b_tp8_ssm": {"tp": 8},
}
"""Engine flags that the log or its `quirks` name."""

VALUES: dict[str, float] = {
    # No byte count in the log: a page of 1,941,504 B against attention of 4,096 B a token.
    "syv102_q38_27b_spec15_block": 480,
    "syv102_q38_27b_spec15_pad": 100 * (480 * 4096 / 1_941_504 - 1),
    # Conv 6,144 x 3 bf16 and state 16 x 128 x 128 float32 against 2,048 B a token.
    "lmc4094_q35_08b_pad": 100 * (34 * 16 * 2048 / (6144 * 3 * 2 + 16 * 128 * 128 * 4) - 1),
}


def row(case: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(case["config"]))
    spec: dict[str, Any] = dict(FLAGS.get(case["id"], {}))
    if case["engine"] == "llama.cpp" and case["logged_quantity"] != "rs":
        words = (case["dtype"] or "").split()
        spec |= {"k_dtype": words[1], "v_dtype": words[4]}
    layers = case["logged_quantity"].endswith("per layer")
    records = kvcache(
        KvcacheSpec(
            models=(str(path),),
            ctx=(max(case["ctx"], 1),),
            batch=case["batch"],
            engine=(ENGINE.get(case["engine"], case["engine"]),),
            per_layer=layers,
            **spec,
        )
    )
    return records.run().records[0]


def printed(case: dict[str, Any], got: dict[str, Any]) -> float:
    """Returns the computed figure in the log's unit."""
    quantity = case["logged_quantity"]
    if quantity.startswith("attention block"):
        return float(got["block_tokens"])
    if quantity.startswith("mamba page padding"):
        return 100 * float(got["page_padding_ratio"])
    names = {
        "kv": "kv_bytes",
        "swa": "window_bytes",
        "rs": "state_bytes",
        "kv cross": "cross_bytes",
        "ssm page bytes per layer": "recurrent_bytes",
    }
    value = float(got[names.get(quantity, "kv_bytes")])
    if quantity == "kv self":
        value -= got["cross_bytes"]
    return value / {"MiB": MIB, "GiB": GIB, "MB": 1e6, "B": 1}[case["unit"]]


@pytest.mark.parametrize("case", LOGS, ids=[case["id"] for case in LOGS])
def test_logged_value(case: dict[str, Any], tmp_path: Path) -> None:
    expected = VALUES.get(case["id"])
    if expected is None:
        scale = {"MiB": MIB, "GiB": GIB, "MB": 1e6, "B": 1}[case["unit"]]
        expected = case["expected_mib"] or case["expected_bytes"] / scale
    got = printed(case, row(case, tmp_path))
    assert got == pytest.approx(expected, abs=case["tolerance"] + 1e-9)
