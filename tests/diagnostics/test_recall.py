"""`recall`: read-back against published figures and against step-by-step writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import seqdiag
from seqdiag.diagnostics.recall import RecallSpec, recall
from seqdiag.diagnostics.recall.by_training import TrainedRow, regimes
from seqdiag.errors import UsageError
from seqdiag.measure.readback import read_back
from seqdiag.models.memories import MEMORIES, parse_memory
from seqdiag.ops.memory import memory_loop

Run = Callable[..., Any]

# Accuracy and relative error at d = 64, mean over all probes, for n = 8, 32, 64, 128, 512.
WRITE_RULES = {
    "linear": ([1, 1, 0.999, 0.976, 0.343], [0.12, 0.50, 1.02, 2.04, 8.3]),
    "delta": ([1, 0.997, 0.896, 0.517, 0.119], [0.06, 0.30, 0.61, 1.08, 1.8]),
    "delta:4": ([1, 1, 0.998, 0.606, 0.118], [0, 0.02, 0.29, 1.0, None]),
    "least-squares": ([1, 1, 1, 0.995, 0.046], [0, 0, 0, 0.51, None]),
    "decay:0.99": ([1, 1, 0.993, 0.765, 0.187], None),
    "decay:0.9": ([1, 0.526, 0.256, 0.124, 0.028], None),
    "quadratic": ([1, 1, 1, 1, 1], [None, None, None, 0.09, 0.37]),
    "softmax:8": ([1, 1, 1, 1, 1], [None, None, None, None, 0.05]),
}


def test_write_rules(run: Run) -> None:
    ran = run("recall", "--memory", ",".join(WRITE_RULES), "--csv")
    assert ran.code == 0
    for name, (accuracies, errors) in WRITE_RULES.items():
        rows = [row for row in ran.rows() if row["memory"] in (name, f"{name}:1")]
        for row, accuracy in zip(rows, accuracies, strict=True):
            assert float(row["accuracy_ratio"]) == pytest.approx(accuracy, abs=0.02), row
            if row["predicted_rel_error"]:
                expected = float(row["predicted_rel_error"])
                assert float(row["rel_error"]) == pytest.approx(expected, rel=0.05, abs=1e-6)
        for row, error in zip(rows, errors or [None] * 5, strict=True):
            if error is not None:
                assert float(row["rel_error"]) == pytest.approx(error, rel=0.05, abs=0.011), row


def test_default_predicts_what_it_measures(run: Run) -> None:
    ran = run("recall", "--csv")
    assert ran.out.splitlines()[0] == (
        "memory,state_dim,value_dim,state_numbers,pairs,trials,accuracy_ratio,accuracy_low,"
        "accuracy_high,predicted_accuracy_ratio,rel_error,predicted_rel_error,bits_stored,"
        "bits_ceiling,status,note"
    )
    for row in ran.rows():
        measured, predicted = row["accuracy_ratio"], row["predicted_accuracy_ratio"]
        assert float(measured) == pytest.approx(float(predicted), abs=0.05)
        assert float(row["bits_stored"]) <= float(row["bits_ceiling"])
    assert "square of the dimension" in ran.err and "hides error" in ran.err


@pytest.mark.parametrize("name", ["linear", "decay:0.9", "delta", "delta:3", "gated-delta:0.95"])
def test_memories_are_written_step_by_step(name: str) -> None:
    _, memory, parameter = parse_memory(name)
    generator = torch.Generator().manual_seed(0)
    k = torch.randn(3, 70, 9, generator=generator, dtype=torch.float64)
    k /= k.norm(dim=-1, keepdim=True)
    v = torch.randn(3, 70, 5, generator=generator, dtype=torch.float64)
    passes = int(parameter) if name.startswith("delta") else 1
    keys, values = k.repeat(1, passes, 1).unsqueeze(1), v.repeat(1, passes, 1).unsqueeze(1)
    ones = keys.new_ones(keys.shape[:3])
    decayed = "decay" in name or "gated" in name
    _, state = memory_loop(
        keys,
        keys,
        values,
        keys.new_zeros(3, 1, 9, 5),
        log_g=ones * torch.tensor(parameter).double().log() if decayed else None,
        beta=ones if "delta" in name else None,
    )
    torch.testing.assert_close(
        memory.read(k, v, parameter), k @ state.squeeze(1), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", MEMORIES)
def test_orthogonal_keys_lose_nothing_under_the_delta_rules(name: str) -> None:
    _, memory, parameter = parse_memory(name)
    k, v = torch.eye(6).expand(2, 6, 6), torch.randn(2, 6, 4)
    reads = memory.read(k, v, parameter)
    assert reads.shape == v.shape
    if name in ("linear", "delta", "least-squares", "quadratic"):
        torch.testing.assert_close(reads, v)


def test_one_probe_a_trial_and_blocks_agree_on_the_law() -> None:
    def read(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return MEMORIES["linear"].read(k, v, 0)

    one = read_back(read, 100, 32, 32, 1500, 0, one=True)
    every = read_back(read, 100, 32, 32, 60, 0, one=False)
    assert (one.probes, every.probes) == (1500, 6000)
    assert one.accuracy == pytest.approx(every.accuracy, abs=0.05)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--trials", 0), "--trials"),
        (("--state-dim", 0), "--state-dim"),
        (("--pairs", "x"), "--pairs"),
        (("--pairs", "1M"), "--pairs: 1048576 pairs"),
        (("--memory", "delt"), "--memory: unknown name"),
        (("--memory", "linear:3"), "takes no number"),
        (("--memory", "delta:1.5"), "must be a whole number"),
        (("--memory", "decay:nan"), "must be from"),
        (("--probes", "some"), "--probes"),
    ],
)
def test_wrong_input_is_one_line(run: Run, arguments: tuple[object, ...], says: str) -> None:
    ran = run("recall", *arguments)
    assert ran.code == 2 and says in ran.err and ran.out == ""
    assert "Traceback" not in ran.err


TINY = (
    "--task", "mqar", "--pairs", 2, "--seq-len", 16, "--vocab", 16, "--d-model", 16,
    "--batch", 32, "--updates", 100,
)  # fmt: skip


def test_training_columns_and_chance(run: Run) -> None:
    ran = run("recall", *TINY, "--arch", "conv+attention", "--csv")
    assert ran.code == 0
    (row,) = ran.rows()
    assert row["pattern"] == "ba" and row["layers"] == "2" and row["status"] == "ok"
    assert float(row["chance_in_set"]) == 1 / 2 and float(row["chance_vocab"]) == 1 / 8
    assert float(row["accuracy_ratio"]) <= float(row["in_set_ratio"]) <= 1
    # Keys and values of 16 steps, 16 wide, and two inputs of the convolution, in float32.
    assert int(row["state_bytes"]) == 4 * (2 * 16 * 16 + 2 * 16)


def test_jobs_give_the_rows_of_one_process(run: Run) -> None:
    sweep = (*TINY, "--arch", "conv+attention,conv+delta", "--seeds", 2, "--csv")
    serial, pooled = run("recall", *sweep), run("recall", *sweep, "--jobs", 2)
    assert serial.code == pooled.code == 0 and len(serial.rows()) == 4

    def timeless(rows: list[dict[str, str]]) -> list[dict[str, str]]:
        return [{k: v for k, v in row.items() if k != "cpu_s"} for row in rows]

    assert timeless(serial.rows()) == timeless(pooled.rows())


def test_a_window_is_told_by_its_reach(run: Run) -> None:
    ran = run(
        "recall", "--task", "mqar", "--pairs", 8, "--arch", "conv+window", "--d-model", 8,
        "--updates", 1, "--csv",
    )  # fmt: skip
    (row,) = ran.rows()
    assert float(row["reach_ceiling_ratio"]) == pytest.approx(0.387, abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--task", "mqr"), "--task: 'mqr' is not one of"),
        (("--arch", "conv+attention"), "--arch: is of training"),
        (("--task", "mqar", "--memory", "delta"), "--memory: is of reading back"),
        (("--task", "mqar", "--arch", "conv+atention"), "--arch: unknown name"),
        (("--task", "mqar", "--pairs", 128), "--pairs: 128 is more than vocab/2 - 1"),
        (("--task", "mqar", "--pairs", 17), "do not fit into --seq-len 64"),
        (("--task", "mqar", "--heads", 3), "--heads: 3 does not divide"),
        (("--task", "mqar", "--budget", "soon"), "--budget: 'soon' is not a time"),
        (("--task", "mqar", "--budget", "0s"), "--budget: 0 s must be more than 0"),
        (("--task", "mqar", "--batch", "1M"), "--batch: 1048576 sequences"),
        (("--task", "mqar", "--arch", "delta", "--pattern", "ba"), "--pattern: is instead"),
    ],
)
def test_wrong_training_is_one_line(run: Run, arguments: tuple[object, ...], says: str) -> None:
    ran = run("recall", *arguments)
    assert ran.code == 2 and says in ran.err and ran.out == ""


def test_studies_and_presets(run: Run, tmp_path: Path) -> None:
    study = tmp_path / "mine.toml"
    study.write_text(
        'command = "recall"\nmemory = "delta"\npairs = [2, 4]\n[presets.small]\npairs = 3\n'
    )

    def pairs(*more: object) -> list[str]:
        return [row["pairs"] for row in run("recall", "--config", study, *more, "--csv").rows()]

    assert pairs() == ["2", "4"]
    assert pairs("--preset", "small") == ["3"]
    assert pairs("--preset", "small", "--pairs", 5) == ["5"]
    before = run("recall", "--preset", "small", "--config", study, "--csv")
    assert [row["pairs"] for row in before.rows()] == ["3"]
    wrong = run("recall", "--config", study, "--preset", "smal")
    assert wrong.code == 2 and "did you mean small?" in wrong.err
    alone = run("recall", "--preset", "small")
    assert alone.code == 2 and "--preset: is of a study" in alone.err


@pytest.mark.parametrize(
    "study", ["hybrid-regimes", "state-vs-recall", "how-many-attention-layers", "linear-vs-softmax"]
)
def test_studies_run(study: str, run: Run) -> None:
    few = ("--d-model", 8, "--batch", 4, "--updates", 1, "--jobs", 1, "--seeds", 1)
    small = run("recall", "--config", f"studies/{study}", "--preset", "small", *few, "--csv")
    assert small.code == 0 and len(small.rows()) >= 4
    assert {row["status"] for row in small.rows()} == {"ok"}


def row_of(pattern: str, accuracy: float, updates: int | None, pairs: int = 4) -> TrainedRow:
    return TrainedRow(
        task="mqar", arch=pattern, pattern=pattern, seq_len=32, vocab=64, pairs=pairs, seed=0,
        equal="width", layers=2, d_model=32, params=100, state_bytes=64, updates=500,
        updates_to_50=None,
        updates_to_99=updates, accuracy_ratio=accuracy, accuracy_low=0.0, accuracy_high=1.0,
        in_set_ratio=1.0, reach_ceiling_ratio=1.0, chance_in_set=0.25, chance_vocab=0.1,
        train_accuracy_ratio=0.5, cpu_s=1.0, status="ok", note="",
    )  # fmt: skip


def test_regimes_name_the_kind_that_is_ahead() -> None:
    faster = [row_of("aa", 0.995, 800), row_of("ma", 0.991, 200), row_of("mm", 0.4, None)]
    behind = [row_of("aa", 1.0, 400, 8), row_of("ma", 0.9, None, 8), row_of("mm", 0.4, None, 8)]
    both = [row_of("aa", 0.3, None, 16), row_of("ma", 0.3, None, 16), row_of("mm", 0.3, None, 16)]
    lines = regimes([*faster, *behind, *both])
    assert lines[0].startswith("4 pairs in 32 tokens: hybrid is ahead: ")
    assert lines[1].startswith("8 pairs in 32 tokens: attention is ahead: ")
    assert lines[2].startswith("16 pairs in 32 tokens: level: ")
    assert "the hybrid is ahead in 1 of 3 cells. Parameters 100 to 100, state 64" in lines[3]
    assert regimes(faster[:2]) == []


def test_from_python() -> None:
    result = seqdiag.recall(memory=["linear"], pairs=[4], trials=10)
    assert [record["pairs"] for record in result.records] == [4]
    assert result.records[0]["predicted_rel_error"] == 3 / 64


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--state-dim", "4,8", "--pairs", "2,4"), 0),
        (("--state-dim", "4,8", "--memory", "linear,delta"), 2),
        ((*TINY, "--pairs", "1,2", "--updates", 1), 0),
        ((*TINY, "--seeds", 2), 2),
    ],
)
def test_a_plot_never_mixes_what_varies(
    arguments: tuple[object, ...], code: int, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "p.svg"
    assert run("recall", *arguments, "--plot", path).code == code
    assert path.exists() == (code == 0)


def test_the_articles_draws() -> None:
    """The printed row of "Sequence models before transformers", exactly."""
    records = recall(RecallSpec(draw="article")).run().records
    assert [row["pairs"] for row in records] == [8, 32, 64, 128, 512]
    assert [row["accuracy_ratio"] for row in records] == [1.0, 1.0, 1.0, 0.975, 0.38]
    assert {row["trials"] for row in records} == {200}
    with pytest.raises(UsageError, match="--probes: the article probes one pair a trial"):
        recall(RecallSpec(draw="article", probes="all"))


def test_architectures_are_made_equal() -> None:
    """Against attention at width 32: parameters and state within what a width of 2 changes."""
    spec = RecallSpec(
        task="mqar", arch=("attention+attention", "mamba+mamba", "mamba+attention"), vocab=64,
        pairs=(2,), seq_len=(32, 64), d_model=32, batch=2, updates=1, equal=("params", "state"),
    )  # fmt: skip
    records = recall(spec).run().records
    for column, equal in (("params", "params"), ("state_bytes", "state")):
        for seq_len in (32, 64):
            cell = [r for r in records if (r["equal"], r["seq_len"]) == (equal, seq_len)]
            first, *others = (float(r[column]) for r in cell)
            assert cell[0]["d_model"] == 32
            assert all(abs(other - first) / first < 0.12 for other in others), cell
