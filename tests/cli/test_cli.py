"""The command line in this process: options, exit codes, errors of one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqdiag.cli.app import COMMANDS

MODELS = "tests/data/models.py"
Run = Callable[..., Any]


def test_must_show_kvcache(run: Run) -> None:
    ran = run("kvcache", "--ctx", "1k,8k,32k,128k,1M", "--csv")
    assert ran.code == 0
    columns = (
        "model,engine,ctx_tokens,batch,dtype,kv_bytes,state_bytes,total_bytes,kv_bytes_per_token,"
        "kv_read_bytes,crossover_tokens,measured_bytes,window_bytes,cross_bytes,recurrent_bytes,"
        "work_bytes,block_tokens,page_padding_ratio,decode_read_bytes,decode_flops,decode_floor_ms,"
        "weight_bytes,max_ctx_tokens,max_batch,engine_version,status,note"
    )
    assert ran.out.splitlines()[0] == columns
    kv = [row["kv_bytes"] for row in ran.rows() if row["model"] == "gqa-32l"]
    assert kv == ["134217728", "1073741824", "4294967296", "17179869184", "137438953472"]


def test_must_show_presets(run: Run) -> None:
    names = ["llama-3.1-8b", "deepseek-v3", "gemma-3-27b", "gpt-oss-20b", "jamba-v0.1"]
    ran = run("kvcache", *names, "--ctx", "32k", "--csv")
    mib = [int(row["total_bytes"]) / 2**20 for row in ran.rows()]
    assert mib == [4096, 2196, 2976, 771, 512 + 15.3125]


def test_must_show_attn_bench(run: Run) -> None:
    ran = run("attn-bench", "--seq-len", "64", "--budget", "200ms", "--csv")
    assert ran.code == 0
    assert ran.out.splitlines()[0] == (
        "implementation,pass,mode,batch,n_heads,n_kv_heads,head_dim,head_dim_v,seq_len,kv_len,mask,"
        "align,dtype,device,time_ms,time_ms_p10,time_ms_p90,repeats,first_call_ms,tflop_per_s,"
        "gb_per_s,peak_ratio,peak_bytes,min_bytes,materialised_bytes,max_abs_error,rel_rms_error,"
        "error_vs_naive_ratio,needles_failed,speedup_ratio,backend,status,note"
    )
    assert sum(row["status"] == "ok" for row in ran.rows()) >= 5
    assert all(row["note"] for row in ran.rows() if row["status"] == "unavailable")
    assert "Fastest correct at 64" in ran.err


def test_must_show_gradflow(run: Run) -> None:
    ran = run(
        "gradflow", "--arch", "rnn,lstm,gru", "--seq-len", 60, "--hidden", 32, "--seed", 0,
        "--dtype", "float32", "--csv",
    )  # fmt: skip
    columns = (
        "subject,seed,seq_len,step,steps_back,grad_norm,grad_log10_norm,grad_ratio,status,note"
    )
    assert ran.out.splitlines()[0] == columns
    last = [float(r["grad_norm"]) for r in ran.rows() if r["steps_back"] == "0"]
    assert [f"{norm:.3e}" for norm in last] == ["2.084e+00", "6.649e-01", "1.309e+00"]
    assert ran.err.count("g[-50]") == 1


def test_must_show_summary_columns(run: Run) -> None:
    one = run("gradflow", "--arch", "rnn", "--by", "summary", "--csv")
    assert one.out.splitlines()[0] == (
        "subject,seed,seq_len,decay_per_step_ratio,horizon_steps,lyapunov_per_step,reaches_start,"
        "status,note"
    )
    many = run("gradflow", "--arch", "rnn", "--by", "summary", "--csv", "--seeds", 2)
    header = many.out.splitlines()[0].split(",")
    for name in ("decay_per_step_ratio", "horizon_steps", "lyapunov_per_step"):
        assert {name, f"{name}_p05", f"{name}_p95"} <= set(header)


def test_must_show_receptive_field(run: Run) -> None:
    chain = ("receptive-field", "--kernel", 2, "--dilations", "1,2,4,8")
    ran = run(*chain, "--csv")
    assert ran.out.splitlines()[0] == (
        "subject,seq_len,position,predicted_steps,predicted_count,measured_steps,measured_count,"
        "structural_steps,first_input,last_input,lookahead_steps,causal,stride,latency_steps,"
        "latency_ms,effective_steps_p50,effective_steps_p90,effective_steps_p99,probe,status,note"
    )
    (row,) = ran.rows()
    names = ("predicted_steps", "measured_steps", "first_input", "last_input", "seq_len")
    assert [row[name] for name in names] == ["16", "16", "48", "63", "64"]
    (predicted,) = run(*chain, "--predict-only", "--csv").rows()
    assert [predicted[name] for name in names] == ["16", "", "48", "63", "64"]


@pytest.mark.parametrize("more", [[], ["--predict-only"]])
def test_needs(more: list[str], run: Run) -> None:
    ran = run("receptive-field", "--kernel", 2, "--dilations", "1,2,4,8", "--needs", 40, *more)
    assert ran.code == 1
    (line,) = [line for line in ran.err.splitlines() if "--needs" in line]
    assert "16 < 40" in line
    assert "--dilations 1,2,4,8,16,32 would see 64" in line
    dilations = "1,2,4,8,16,32"
    reached = run("receptive-field", "--kernel", 2, "--dilations", dilations, "--needs", 40, *more)
    assert (reached.code, reached.err) == (0, "")


def test_fail_on_leak(run: Run, tmp_path: Path) -> None:
    leaks, result = tmp_path / "leaks.csv", tmp_path / "r.json"
    ran = run(
        "receptive-field", "--kernel", 3, "--padding", "same", "--fail-on-leak", "--csv",
        "--leaks-csv", leaks, "-o", result,
    )  # fmt: skip
    assert ran.code == 1
    assert "--fail-on-leak: conv k=3 x1 sees 1 steps ahead" in ran.err
    assert ran.rows()[0]["causal"] == "False"
    lines = leaks.read_text().splitlines()
    assert lines[0] == "subject,output,input,lookahead_steps,change_ratio,leak"
    assert len(lines) == 1 + 64 * 3 - 2
    assert sum(line.endswith("True") for line in lines) == 63
    assert json.loads(result.read_text())["verdict"]["passed"] is False
    assert run("receptive-field", "--fail-on-leak").code == 0
    assert run("receptive-field", "--arch", "attention", "--fail-on-leak").code == 0


def test_gate_on_gradients(run: Run) -> None:
    gate = ("--fail-if", "steps_back >= 40 and grad_ratio < 1e-6")
    tripped = run("gradflow", "--arch", "rnn", *gate, "--csv")
    assert tripped.code == 1
    assert "holds for 20 of 60 rows" in tripped.err
    assert len(tripped.rows()) == 60
    assert run("gradflow", "--model", f"{MODELS}:RunningSum", *gate).code == 0
    # The identity function sees its own step only: no gradient reaches back, and the gate says so.
    assert run("gradflow", "--model", "torch.nn:Identity", *gate).code == 1


def test_a_users_module(run: Run) -> None:
    ran = run("gradflow", "--model", f"{MODELS}:tiny_lm", "--csv")
    assert ran.code == 0
    assert {row["subject"] for row in ran.rows()} == {"tiny_lm"}
    assert all(float(row["grad_norm"]) > 0 for row in ran.rows())
    wide = run("gradflow", "--model", f"{MODELS}:tiny_lm", "--model-arg", "width=8", "--csv")
    assert wide.out != ran.out


@pytest.mark.parametrize("command", COMMANDS)
def test_json_replays(command: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    options = {
        "kvcache": ["gemma-3-27b", "--ctx", "3k,5k", "--batch", 3, "--against", "gqa-32l"],
        "gradflow": ["--seq-len", 9, "--seeds", 2],
        "recall": ["--memory", "delta:2,decay", "--state-dim", "4,8", "--trials", 9, "--seed", 3],
        "receptive-field": ["--kernel", 3, "--dilations", "1,2,1,2", "--needs", 13, "--seed", 3],
        "attn-bench": ["--impl", "naive,blocked", "--seq-len", "9,20", "--pass", "fwd,bwd",
                       "--mask", "window:4", "--check-only"],
        "ssm-bench": ["--seq-len", 9, "--d-model", 12, "--pass", "fwd,both", "--check-only"],
    }  # fmt: skip
    first = run(command, *options[command], "-o", path, "--csv")
    assert first.code == 0
    again = run(command, "--config", path, "--csv")
    assert untimed(again) == untimed(first)
    envelope = json.loads(path.read_text())
    assert envelope["command"] == command
    assert envelope["argv"][0] == command
    assert str(Path.home()) not in json.dumps(envelope["environment"])


def untimed(ran: Any) -> list[dict[str, str]]:
    """Returns the rows without what a clock said."""
    return [{k: v for k, v in row.items() if not k.endswith("_ms")} for row in ran.rows()]


def test_config_files(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('models = ["gqa-32l"]\nctx = [1024, "2k"]\nformat = "csv"\nper-layer = false\n')
    assert [row["ctx_tokens"] for row in run("kvcache", "--config", path).rows()] == [
        "1024",
        "2048",
    ]
    over = run("kvcache", "--config", path, "--ctx", "5", "mamba-32l").rows()
    assert [(row["model"], row["ctx_tokens"]) for row in over] == [("mamba-32l", "5")]
    named = run("kvcache", "--config", "article-kv-cache", "--csv")
    assert named.out == run("kvcache", "--csv").out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ctxx = 1", "unknown name 'ctxx'"),
        ("config = 'other'", "unknown name 'config'"),
        ("command = 'gradflow'", "is for the command 'gradflow'"),
        ("ctx = 0", "--ctx: '0' is out of range"),
        ("ctx =", "is not TOML"),
        ("ctx = {a = 1}", "--ctx"),
        ("per_layer = 'maybe'", "per-layer"),
    ],
)
def test_a_wrong_config_file(text: str, message: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    ran = run("kvcache", "--config", path)
    assert ran.code == 2
    assert message in ran.err


BAD = {
    "attn-bench": [
        ["--impl", "flash"],
        ["--impl", ""],
        ["--against", "nothing"],
        ["--seq-len", "0"],
        ["--kv-len", "x"],
        ["--heads", "6", "--kv-heads", "4"],
        ["--kv-heads", "3"],
        ["--head-dim", "0"],
        ["--head-dim", "5000"],
        ["--mask", "window:0"],
        ["--mask", "window:"],
        ["--mask", "banded"],
        ["--pass", "forward"],
        ["--mode", "train"],
        ["--mode", "decode", "--pass", "bwd"],
        ["--ctx", "1k"],
        ["--align", "middle"],
        ["--align", "top-left", "--seq-len", "64", "--kv-len", "16"],
        ["--dtype", "int8"],
        ["--device", "tpu"],
        ["--budget", "soon"],
        ["--budget", "0"],
        ["--l2", "warm", "--device", "cpu"],
        ["--batch", "2", "--tokens", "1k"],
        ["--preset", "llama-3"],
        ["--inspect", "sm_70"],
        ["--fail-if", "time > 1"],
    ],
    "kvcache": [
        ["--ctx", "0"],
        ["--ctx", "-1"],
        ["--ctx", "abc"],
        ["--ctx", "1k:"],
        ["--ctx", ""],
        ["--batch", "0"],
        ["--batch", "1.5"],
        ["--kv-heads", "0", "--layers", "1", "--head-dim", "1"],
        ["--layers", "2"],
        ["--dtype", "int3"],
        ["--engine", "vlm"],
        ["--limit", "lots"],
        ["--format", "xml"],
        ["--csv", "--json"],
        ["llama-3.1-8"],
        ["missing/config.json"],
        ["--against", "nothing"],
        ["--output", "missing/folder/r.csv"],
        ["--output", "r.xlsx"],
        ["--plot", "p.pdf"],
        ["--plot", "p.png", "--per-layer"],
        ["--fail-if", "total_bytes >"],
        ["--fail-if", "totl_bytes > 1"],
        ["--fail-if", "measured_bytes > 1"],
        ["--baseline", "missing.json"],
        ["--config", "missing.toml"],
        ["--config", "no-such-study"],
        ["--device", "tpu"],
        ["--no-such-option"],
        ["--ctx"],
    ],
    "gradflow": [
        ["--arch", "foo"],
        ["--arch", ""],
        ["--seq-len", "0"],
        ["--seq-len", "1", "--steps-back", "5"],
        ["--hidden", "0"],
        ["--batch", "x"],
        ["--by", "layerz"],
        ["--seeds", "0"],
        ["--seed", "-1"],
        ["--dtype", "int8"],
        ["--multiplier", "nan"],
        ["--multiplier", "1,,2"],
        ["--horizon-ratio", "0"],
        ["--init", "zeros"],
        ["--nonlinearity", "gelu"],
        ["--forget-bias", "1", "--arch", "rnn"],
        ["--forget-bias", "inf"],
        ["--arch", "rnn", "--model", "x.py:y"],
        ["--model", "missing.py:factory"],
        ["--model", f"{MODELS}:missing"],
        ["--model", f"{MODELS}:raises"],
        ["--model", f"{MODELS}:LastOnly"],
        ["--model", f"{MODELS}:TwoOutputs"],
        ["--model", f"{MODELS}:tiny_lm", "--model-arg", "vocab"],
        ["--model", f"{MODELS}:tiny_lm", "--model-arg", "depth=3"],
        ["--model", f"{MODELS}:tiny_lm", "--vocab", "99"],
        ["--plot", "p.png", "--by", "summary"],
        ["extra"],
    ],
    "receptive-field": [
        ["--kernel", "0"],
        ["--dilations", "0"],
        ["--dilations", "1,0"],
        ["--dilations", "1,,2"],
        ["--dilations", "1M,1G"],
        ["--kernel", "2,2,2", "--dilations", "1,2"],
        ["--strides", "0"],
        ["--padding", "left"],
        ["--kernel", "2", "--arch", "tcn"],
        ["--model", f"{MODELS}:tiny_lm", "--arch", "tcn"],
        ["--arch", "tcm"],
        ["--pattern", "x?"],
        ["--arch", "linear"],
        ["--depth", "3"],
        ["--seq-len", "0"],
        ["--seq-len", "32k"],
        ["--position", "first"],
        ["--position", "64"],
        ["--position", "-1"],
        ["--needs", "0"],
        ["--needs", "x"],
        ["--sample-rate", "0"],
        ["--dtype", "bfloat16"],
        ["--predict-only", "--fail-on-leak"],
        ["--predict-only", "--plot", "p.png"],
        ["--predict-only", "--leaks-csv", "l.csv"],
        ["--leaks-csv", "missing/folder/l.csv"],
        ["--align", "middle"],
        ["--model", "tests/data/zoo.py:Noisy"],
        ["--model", "tests/data/zoo.py:LearnedPositions"],
        ["--model", f"{MODELS}:LastOnly"],
        ["--model", f"{MODELS}:TwoOutputs"],
        ["--hf", "missing"],
    ],
}


@pytest.mark.parametrize(
    "arguments",
    [[command, *rest] for command, cases in BAD.items() for rest in cases],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in ran.err
    assert len([line for line in ran.err.splitlines() if line.startswith("hint: ")]) <= 1
    if "measured_bytes > 1" not in arguments:  # only the rows can tell that none has a value
        assert ran.out == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "holds a list"),
        ('{"model_type": "llama"}', "'num_hidden_layers' is missing"),
        ('{"model_type": "llama", "num_hidden_layers": NaN}', "NaN"),
        ('{"model_type": "retnet", "num_hidden_layers": 3}', "unknown model_type 'retnet'"),
    ],
)
def test_a_bad_config_json(text: str, message: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    ran = run("kvcache", path)
    assert ran.code == 2
    assert message in ran.err
    assert ran.out == ""


def test_each_output_needs_a_file_of_its_own(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for options in (("-o", path), ("--leaks-csv", path)):
        ran = run("receptive-field", "--arch", "gru", "--seq-len", 8, "-o", path, *options)
        assert (ran.code, ran.out) == (2, "")
        assert "is named twice" in ran.err
    assert not list(tmp_path.iterdir())


def test_an_existing_file_needs_force(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("mine")
    assert run("kvcache", "-o", path).code == 2
    assert path.read_text() == "mine"
    assert run("kvcache", "-o", path, "--force").code == 0
    assert path.read_text().startswith("model,")


def test_debug_shows_the_traceback(run: Run) -> None:
    ran = run("gradflow", "--model", f"{MODELS}:raises", "--debug")
    assert ran.code == 2
    assert "ValueError: no such checkpoint" in ran.err
    assert "Traceback" in ran.err


@pytest.mark.parametrize(
    "arguments", [["attn-bench"], ["gradflow"], ["kvcache"], ["kvcache", "--measure"]]
)
def test_a_gpu_that_is_not_there_is_exit_3(arguments: list[str], run: Run) -> None:
    import torch

    device = f"cuda:{torch.cuda.device_count()}"
    ran = run(*arguments, "--device", device)
    assert ran.code == 3
    assert ran.err.startswith(f"error: --device: {device} is not there")


def test_a_missing_extra_is_exit_3(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = run("kvcache", "--plot", tmp_path / "p.png")
    assert ran.code == 3
    assert "pip install 'seqdiag[plot]'" in ran.err


def test_a_bug_of_ours_is_exit_4(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(spec: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr("seqdiag.diagnostics.kvcache.kvcache", broken)
    ran = run("kvcache")
    assert ran.code == 4
    assert ran.err.startswith("error: internal error: RuntimeError: oops\nhint: --debug")


@pytest.mark.parametrize("command", COMMANDS)
def test_list(command: str, run: Run) -> None:
    ran = run(command, "--list", "--csv")
    assert ran.code == 0
    names = {row["name"] for row in ran.rows()}
    expected = {
        "attn-bench": {"naive", "flash-triton", "flash-attn-2"},
        "gradflow": {"rnn"},
        "kvcache": {"llama-3.1-8b", "gpt_oss", "ideal"},
        "recall": {"delta"},
        "receptive-field": {"tcn", "wavenet-stacks", "wav2vec2-encoder"},
        "ssm-bench": {"loop", "mambapy", "scan-triton"},
    }
    assert names >= expected[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_plots(command: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.svg"
    options = ["--seq-len", "16,64", "--budget", "100ms"] if command.endswith("bench") else []
    assert run(command, *options, "--plot", path).code == 0
    text = path.read_text()
    assert text.startswith("<?xml")
    assert len(text) > 10_000


def test_help_and_version(run: Run) -> None:
    assert "gradflow" in run().out
    assert "--kv-heads" in run("kvcache", "-h").out
    assert run("--version").out.startswith("seqdiag ")
    typo = run("gradflo")
    assert typo.code == 2
    assert "Did you mean 'gradflow'?" in typo.err
