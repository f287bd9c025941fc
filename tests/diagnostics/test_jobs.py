"""Jobs in a pool: errors, dead workers, order, and a journal of what is finished."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqdiag.diagnostics.jobs import in_order, run_jobs
from seqdiag.report.result import Live

Run = Callable[..., Any]


def work(job: tuple[str, str]) -> str:
    """Dies once, always, raises, or answers, as the job says."""
    kind, place = job
    if kind == "dies once" and not Path(place).exists():
        Path(place).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "raises":
        raise ValueError("no such\nthing")
    return kind


def failed(job: tuple[str, str], reason: str) -> str:
    return f"failed: {reason}"


def test_one_process_and_errors() -> None:
    jobs = [("a", ""), ("raises", ""), ("b", "")]
    assert list(in_order(run_jobs(work, jobs, 1, failed))) == ["a", "failed: no such thing", "b"]
    assert list(run_jobs(work, [], 2, failed)) == []


def test_a_killed_worker_costs_a_retry(tmp_path: Path) -> None:
    jobs = [("a", ""), ("dies once", str(tmp_path / "died")), ("raises", ""), ("b", "")]
    done = list(in_order(run_jobs(work, jobs, 2, failed)))
    assert done == ["a", "dies once", "failed: no such thing", "b"]


def test_a_job_that_always_dies_spoils_only_itself() -> None:
    done = list(in_order(run_jobs(work, [("a", ""), ("dies", ""), ("b", "")], 2, failed)))
    assert done == ["a", "failed: its worker process died", "b"]


TINY = (
    "recall", "--task", "mqar", "--pairs", 2, "--seq-len", 16, "--vocab", 16, "--d-model", 8,
    "--batch", 8, "--updates", 2, "--csv",
)  # fmt: skip


def test_resume_does_no_job_twice(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seqdiag.diagnostics.recall import by_training

    path = tmp_path / "rows.jsonl"
    trained: list[int] = []
    whole = by_training.train

    def counted(job: by_training.Job, live: Live) -> by_training.TrainedRow:
        trained.append(job.seed)
        row = whole(job, live)
        assert f"{job.arch}, 2 of 16: " in live.text
        return row

    monkeypatch.setattr(by_training, "train", counted)
    first = run(*TINY, "--seeds", 2, "--resume", path)
    assert trained == [0, 1] and first.code == 0
    path.write_text(path.read_text() + '{"job": {"cut sh')
    again = run(*TINY, "--seeds", 3, "--resume", path)
    assert trained == [0, 1, 2]
    assert again.rows()[:2] == first.rows() and len(again.rows()) == 3
    assert run(*TINY, "--seeds", 3, "--resume", path).out == again.out
    run(*TINY, "--lr", "1e-3", "--resume", path)
    assert trained == [0, 1, 2, 0]


def test_resume_refuses_what_is_no_journal(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("precious\n")
    ran = run(*TINY, "--resume", path)
    assert ran.code == 2 and "--resume: line 1" in ran.err and path.read_text() == "precious\n"
    ran = run(*TINY, "--resume", tmp_path / "no" / "folder.jsonl")
    assert ran.code == 2 and "--resume: cannot write" in ran.err


def test_a_full_disk_is_an_error_of_one_line(run: Run) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    ran = run(*TINY, "--resume", "/dev/full")
    assert (ran.code, ran.err.splitlines()[0]) == (
        2,
        "error: --resume: cannot write /dev/full: No space left on device",
    )


def test_workers_do_not_run_the_script_again(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    words = [str(word) for word in TINY]
    script.write_text(
        "import sys\nfrom seqdiag.cli.app import main\n"
        f"sys.exit(main({[*words, '--seeds', '2', '--jobs', '2']!r}))\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and "internal error" not in ran.stderr
    assert ran.stdout.count(",ok,") == 2


def start_worker(address: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1"]
    options = ["--no-nanny", "--no-dashboard", "--local-directory", str(folder)]
    return subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_gives_the_same_rows_though_a_worker_is_killed(run: Run, tmp_path: Path) -> None:
    """Two worker processes; the first row done, one of them is killed."""
    distributed = pytest.importorskip("distributed")
    from seqdiag.diagnostics.recall import RecallSpec, recall

    options: dict[str, Any] = {
        "task": "mqar", "pairs": (2,), "seq_len": (16,), "vocab": 16, "d_model": 8, "batch": 8,
        "updates": 20, "seeds": 4,
    }  # fmt: skip
    with distributed.LocalCluster(
        n_workers=0, processes=True, dashboard_address=None, scheduler_port=0
    ) as cluster:
        address = cluster.scheduler_address
        workers = [start_worker(address, tmp_path) for _ in range(2)]
        try:
            found = []
            for row in recall(RecallSpec(scheduler=address, **options)).rows:
                if not found:
                    workers[0].kill()
                found.append(row)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    here = list(recall(RecallSpec(**options)).rows)
    assert [dataclasses.replace(row, cpu_s=0) for row in found] == [
        dataclasses.replace(row, cpu_s=0) for row in here
    ]


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_is_not_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("seqdiag.diagnostics.cluster._PATIENCE", 1.0)
    ran = run(*TINY, "--scheduler", "tcp://127.0.0.1:9")
    assert (ran.code, ran.out) == (3, "")
    assert "--scheduler: no scheduler at tcp://127.0.0.1:9" in ran.err
    assert run(*TINY, "--scheduler", "tcp://127.0.0.1:9", "--jobs", 2).code == 2
    assert run(*TINY, "--scheduler", "nonsense://x").code == 2
