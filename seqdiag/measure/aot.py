"""Compiling Triton kernels ahead of time for cards that are not here, and reading what came out.

Works on any Linux machine: the compiler, assembler and disassembler are inside the Triton package.
It all happens in a subprocess, since a compiler can abort its process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqdiag.errors import UnavailableError
from seqdiag.measure.assembly import LoopCounts

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """One kernel with everything that the compiler specialises on."""

    kernel: str
    """`package.module:function`."""
    signature: Mapping[str, str]
    """The type of every argument in order: `*fp16`, `i32`, `fp32`, `constexpr` ..."""
    constants: Mapping[str, Any]
    """The value of every `constexpr` argument."""
    num_warps: int
    num_stages: int
    aligned: tuple[str, ...] = ()
    """Arguments divisible by 16: without it no load is 16 bytes wide. Pointers and strides."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler made of a variant for a target, or why it made nothing."""

    registers: int = 0
    """A thread; on AMD vector registers, accumulation registers included."""
    spill_bytes: int = 0
    """Stack a thread: registers that did not fit."""
    shared_bytes: int = 0
    """A program (a thread block)."""
    warps: int = 0
    """A program, warps that the compiler added by specialising included."""
    loop: LoopCounts | None = None
    triton: str = ""
    ptxas: str = ""
    compile_s: float = 0.0
    error: str = ""


def compile_ahead(jobs: Sequence[tuple[KernelVariant, str]]) -> Iterator[Compiled]:
    """Yields what each (variant, target) compiles to, in order; a crash spoils one job only.

    Raises `UnavailableError` without Triton.
    """
    require_triton()
    waiting = list(jobs)
    while waiting:
        done = 0
        for compiled in _worker(waiting):
            done += 1
            yield compiled
        waiting = waiting[done:]


def require_triton() -> None:
    """Raises `UnavailableError` where Triton is not installed; does not import it."""
    import importlib.util

    if importlib.util.find_spec("triton") is None:
        raise UnavailableError(
            "compiling kernels needs Triton, which has wheels for Linux only",
            hint="pip install triton",
        )


def _worker(jobs: Sequence[tuple[KernelVariant, str]]) -> Iterator[Compiled]:
    """Yields results until the worker ends; the job that killed it is the last, with an error."""
    text = "".join(
        json.dumps({**dataclasses.asdict(variant), "target": target}) + "\n"
        for variant, target in jobs
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", "seqdiag.measure.aot_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            env=environment,
        )
        with process:
            try:
                yield from _answers(process, text)
                process.wait()
            finally:
                process.kill()
        if process.returncode:
            complaints.seek(0)
            last = (complaints.read().strip().splitlines() or [""])[-1]
            yield Compiled(error=f"the compiler ended with {process.returncode}: {last:.200}")


def _answers(process: subprocess.Popen[str], text: str) -> Iterator[Compiled]:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it died early: its return code says so
        process.stdin.write(text)
        process.stdin.close()
    for line in process.stdout:
        yield _compiled(json.loads(line))


def _compiled(record: dict[str, Any]) -> Compiled:
    loop = record.pop("loop", None)
    return Compiled(**record, loop=LoopCounts(**loop) if loop else None)
