"""What only a process of its own shows: pipes, signals, encodings, environment."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Spawn = Callable[..., "subprocess.CompletedProcess[str]"]
SEQDIAG = [sys.executable, "-m", "seqdiag"]


def shell(script: str) -> subprocess.CompletedProcess[str]:
    program = f'seqdiag() {{ "{sys.executable}" -m seqdiag "$@"; }}; {script}'
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    ["kvcache", "kvcache --csv -q", "kvcache --list", "kvcache --help", "--help", "kvcache --json"],
)
def test_head_ends_quietly(arguments: str) -> None:
    ran = shell(f"seqdiag {arguments} | head -1; echo ${{PIPESTATUS[0]}}")
    assert ran.stdout.splitlines()[-1] == "0"
    assert "rror" not in ran.stderr


def test_a_closed_pipe_keeps_the_verdict() -> None:
    ran = shell(
        "seqdiag kvcache --csv -q --fail-if 'total_bytes > 1' | true; echo ${PIPESTATUS[0]}"
    )
    assert ran.stdout == "1\n"
    assert "BrokenPipe" not in ran.stderr


@pytest.mark.parametrize("arguments", ["kvcache", "kvcache --csv", "--help", "kvcache --list"])
def test_closed_streams_do_not_change_the_verdict(arguments: str) -> None:
    assert shell(f"seqdiag {arguments} >&-").returncode == 0
    assert shell(f"seqdiag {arguments} 2>&-").returncode == 0
    assert shell(f"seqdiag {arguments} 2>/dev/full").returncode == 0
    assert shell("seqdiag kvcache nosuch 2>&-").returncode == 2
    assert shell("seqdiag kvcache nosuch 2>/dev/full").returncode == 2


def test_a_full_disk_is_said() -> None:
    ran = shell("seqdiag kvcache >/dev/full")
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: No space left on device")


def test_what_a_users_module_writes_below_python_is_no_result(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import os\nfrom torch import nn\n"
        "def make():\n    os.write(1, b'loud')\n    os.system('echo louder')\n"
        "    return nn.Identity()\n"
    )
    ran = spawn("gradflow", "--model", "loud.py:make", "--seq-len", 3, "--csv", cwd=tmp_path)
    assert ran.stdout.startswith("subject,")
    assert "loud" not in ran.stdout
    assert "louder" in ran.stderr


def test_a_piped_table_is_neither_cut_nor_coloured(spawn: Spawn) -> None:
    for env in ({}, {"GITHUB_ACTIONS": "true"}, {"FORCE_COLOR": "1"}, {"COLUMNS": "40"}):
        ran = spawn("kvcache", env=env)
        header, *lines = ran.stdout.splitlines()
        assert len(header.split()) >= 14
        assert lines[0].split()[:2] == ["gqa-32l", "ideal"]
        assert ran.stdout.isascii()
        assert "\x1b" not in ran.stdout


def test_json_is_valid_and_stdout_is_only_the_result(spawn: Spawn) -> None:
    ran = spawn("kvcache", "--json")
    assert json.loads(ran.stdout)["rows"]
    assert "gqa-32l first holds as much as mamba-32l at 64 tokens" in ran.stderr


def test_any_locale(spawn: Spawn, tmp_path: Path) -> None:
    folder = tmp_path / "modèle-µ"
    folder.mkdir()
    config = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "hidden_size": 8,
    }
    (folder / "config.json").write_text(json.dumps(config))
    out = tmp_path / "r.csv"
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    ran = spawn("kvcache", folder, "--csv", "-o", out, env=plain)
    assert ran.returncode == 0, ran.stderr
    assert "modèle-µ" in out.read_text(encoding="utf-8")


def test_csv_has_unix_line_ends(spawn: Spawn) -> None:
    ran = spawn("kvcache", "--csv", text=False)
    assert b"\r" not in ran.stdout
    assert ran.stdout.endswith(b"\n")


def test_on_a_terminal(tmp_path: Path) -> None:
    for env, bold in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        ours, theirs = pty.openpty()
        settings = {"TERM": "xterm", "COLUMNS": "200", **env}
        plain = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        subprocess.run(
            [*SEQDIAG, "kvcache", "--ctx", "1k"],
            stdout=theirs,
            env={**plain, **settings},
            check=True,
        )
        os.close(theirs)
        shown = os.read(ours, 65536).decode()
        os.close(ours)
        assert ("\x1b[1m" in shown) == bold
        assert "128.0 MiB" in shown


def test_interrupted(tmp_path: Path) -> None:
    out, screen = tmp_path / "r.csv", tmp_path / "screen"
    command = [*SEQDIAG, "gradflow", "--seeds", "100000", "--csv", "-o", str(out)]
    with (
        screen.open("w") as stdout,
        subprocess.Popen(
            command,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            # A job in the background of a shell inherits that it ignores the signal.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process,
    ):
        for _ in range(600):
            if screen.stat().st_size > 10_000:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "interrupted after" in errors
    assert "Traceback" not in errors
    kept = (tmp_path / "r.csv.partial").read_text().splitlines()
    shown = screen.read_text().splitlines()
    assert kept[0].startswith("subject,seed")
    assert len(kept) > 50
    assert abs(len(kept) - len(shown)) <= 1, "the signal may fall between the two"
    assert all(ours == theirs for ours, theirs in zip(kept, shown, strict=False))
    assert not out.exists()


def test_runs_from_anywhere(spawn: Spawn, tmp_path: Path) -> None:
    ran = spawn("kvcache", "llama-3.1-8b", "--ctx", "1k", "--csv", cwd=tmp_path)
    assert "llama-3.1-8b,ideal,1024,1,bfloat16,134217728" in ran.stdout
    (tmp_path / "mine.py").write_text("from torch import nn\nmake = nn.Identity\n")
    model = spawn("gradflow", "--model", "mine:make", "--seq-len", 3, "--csv", cwd=tmp_path)
    assert model.returncode == 0, model.stderr
