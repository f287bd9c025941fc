"""Counts anew the parameters of every model type in `parameters.json`.

    python tests/data/record_parameters.py

Needs torch and transformers, and seqdiag on the path. Each type is built tiny, without memory, from
its recorded config; its count is held against the record and against
`seqdiag.predict.parameters`. Exit status 1 if any differs. The file was recorded with transformers
5.24.0.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from seqdiag.predict.kv_cache.readers.spellings import NAMES
from seqdiag.predict.parameters import count_parameters

RECORD = Path(__file__).parent / "parameters.json"


def main() -> int:
    record = json.loads(RECORD.read_text())
    wrong = 0
    for name, entry in record.items():
        given = {k: v for k, v in entry["config"].items() if k != "model_type"}
        config = CONFIG_MAPPING[name](**given)
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(config).num_parameters()
        # As save_pretrained writes it, every field of the class is there.
        saved = json.loads(config.to_json_string(use_diff=False))
        names = NAMES.get(name, {})
        counts = {
            "given": count_parameters(name, entry["config"], name, names),
            "saved": count_parameters(name, saved, name, names),
            "recorded": entry["parameters"],
        }
        if set(counts.values()) != {built}:
            wrong += 1
            sys.stdout.write(f"{name}: {built} built, {counts}\n")
    sys.stdout.write(f"{wrong} of {len(record)} counts differ\n")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
