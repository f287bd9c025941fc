"""Start-up in CPU time (user + system), as ratios to `import typer` in one interleaved run.

The median of nine rounds. Targets: `seqdiag --help` at most 2.4x, `seqdiag kvcache` at most 3.2x.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

ROUNDS = 9
SEQDIAG = [sys.executable, "-m", "seqdiag"]
COMMANDS = {
    "import typer": [sys.executable, "-c", "import typer"],
    "seqdiag --help": [*SEQDIAG, "--help"],
    "seqdiag kvcache --help": [*SEQDIAG, "kvcache", "--help"],
    "seqdiag kvcache --ctx 131072": [*SEQDIAG, "kvcache", "--ctx", "131072"],
}


def cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            times[name].append(cpu_seconds(command))
    base = statistics.median(times["import typer"])
    sys.stdout.write("command,cpu_ms,ratio\n")
    for name, samples in times.items():
        cpu = statistics.median(samples)
        sys.stdout.write(f"{name},{cpu * 1000:.1f},{cpu / base:.2f}\n")


if __name__ == "__main__":
    main()
