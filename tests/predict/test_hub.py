"""A model of the Hub: by way of a cache on disk where the package is there, and what can fail."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqdiag.errors import UnavailableError, UsageError
from seqdiag.predict.kv_cache.subjects import load_subject

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "dtype": "float16",
}


def test_without_the_package_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnavailableError, match="needs huggingface_hub") as caught:
        load_subject("some-owner/some-model")
    assert "seqdiag[hub]" in caught.value.hint


@pytest.mark.parametrize("name", ["tests/no-such-model", "a/b/c", "../no/such", "/no/such"])
def test_what_looks_like_a_path_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(UsageError, match="no such file or folder"):
        load_subject(name)


@pytest.mark.skipif(
    importlib.util.find_spec("huggingface_hub") is None, reason="huggingface_hub is not installed"
)
def test_a_cached_model_is_read_offline(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--owner--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "snapshots" / "abc" / "config.json").write_text(json.dumps(CONFIG))

    def run(model: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "seqdiag", "kvcache", model, "--ctx", "10", "--csv"],
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
            check=False,
        )

    ran = run("owner/model")
    assert ran.returncode == 0
    assert ran.stdout.splitlines()[1].startswith("owner/model,ideal,10,1,float16,1280,0,1280,")
    absent = run("owner/other")
    assert absent.returncode == 3
    assert "the Hub cannot be reached, and owner/other is not in its cache" in absent.stderr
