"""The scans on a CPU as ratios of CPU time in one interleaved run, with their memory and errors.

One thread, the least of five rounds. Targets: the selective scan at (1, 512, 2048, 16) at least 10x
the textbook loop and 12x mambapy, at (1, 16, 8192, 16) 25x, forward and backward 6x a loop over
`unbind`; ssd 8x its loop; the time-invariant scan at (64, 16384) 15x its loop and 1.5x the FFT;
drift without decay at 16,384 steps at most 1e-5. `--contended` adds two threads beside two busy
processes against one thread: at most 2x.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command does

import torch
from torch import Tensor

from seqdiag.ops.scan import invariant_scan, selective_scan, ssd_scan

ROUNDS = 5
Call = Callable[[], Any]


def least(calls: dict[str, Call], rounds: int = ROUNDS) -> dict[str, float]:
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name] = min(times[name], time.process_time() - start)
    return times


def show(title: str, times: dict[str, float], base: str) -> None:
    for name, seconds in times.items():
        ratio = times[base] / seconds
        sys.stdout.write(f"{title},{name},{seconds * 1e3:.2f},{ratio:.2f}\n")


def selective(width: int, steps: int, n: int = 16) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    delta = torch.exp(torch.rand(1, steps, width, generator=generator) * 4.6 - 6.9)
    A = -torch.arange(1.0, n + 1).repeat(width, 1)
    inputs = {"u": normal(1, steps, width), "delta": delta, "A": A}
    return {**inputs, "B": normal(1, steps, n), "C": normal(1, steps, n)}


def textbook(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The loop of the reference implementation: decays of all steps first, then slices."""
    decay = torch.exp(torch.einsum("bld,dn->bdln", delta, A))
    written = torch.einsum("bld,bln,bld->bdln", delta, B, u)
    h, outputs = torch.zeros(u.shape[0], u.shape[2], A.shape[1]), []
    for t in range(u.shape[1]):
        h = decay[:, :, t] * h + written[:, :, t]
        outputs.append(torch.einsum("bdn,bn->bd", h, C[:, t]))
    return torch.stack(outputs, 1)


def selective_rows() -> None:
    for width, steps in ((512, 2048), (16, 8192)):
        i = selective(width, steps)
        calls: dict[str, Call] = {
            "textbook loop": lambda i=i: textbook(**i),
            "chunked": lambda i=i: selective_scan(**i),
        }
        if importlib.util.find_spec("mambapy") is not None:
            calls["mambapy"] = lambda i=i: selective_scan(**i, impl="mambapy")
        with torch.no_grad():
            show(f"selective (1 {width} {steps} 16)", least(calls), "textbook loop")


def training_rows() -> None:
    i = {name: x.requires_grad_() for name, x in selective(512, 2048).items()}

    def train(impl: str) -> Any:
        y, _ = selective_scan(**i, impl=impl)
        return torch.autograd.grad(y.sum(), list(i.values()))

    calls = {"loop over unbind": lambda: train("loop"), "chunked": lambda: train("chunked")}
    show("selective forward and backward", least(calls, 2), "loop over unbind")


def other_rows() -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    dt = torch.rand(1, 2048, 24, generator=generator) * 0.1
    args = (normal(1, 2048, 24, 64), dt, -torch.arange(1.0, 25), normal(1, 2048, 1, 128))
    C = normal(1, 2048, 1, 128)
    step = torch.exp(torch.rand(64, 1, generator=generator) * 4.6 - 6.9)
    a = torch.exp(-step * torch.arange(1.0, 17))
    fixed = (normal(1, 16384, 64), a, step.expand(64, 16).contiguous(), normal(64, 16))
    with torch.no_grad():
        forms = ("loop", "chunked")
        calls = {impl: lambda impl=impl: ssd_scan(*args, C, impl=impl) for impl in forms}
        show("ssd (24 heads 64 128 2048 steps)", least(calls, 3), "loop")
        forms = ("loop", "chunked", "fft")
        calls = {impl: lambda impl=impl: invariant_scan(*fixed, impl=impl) for impl in forms}
        show("time-invariant (64 16384)", least(calls), "loop")


def drift() -> None:
    """The error of float32 where nothing decays."""
    i = selective(64, 16384)
    i["A"] = torch.full_like(i["A"], -1e-6)
    with torch.no_grad():
        exact, _ = selective_scan(**{n: x.double() for n, x in i.items()}, impl="loop")
        for impl in ("loop", "chunked"):
            y, _ = selective_scan(**i, impl=impl)
            error = float((y.double() - exact).abs().max() / exact.abs().max())
            sys.stdout.write(f"drift without decay over 16384 steps,{impl},,{error:.1e}\n")


def _spin() -> None:
    while True:
        pass


def contended() -> None:
    """Two threads beside two busy processes, against one thread, in wall-clock time."""
    i = selective(512, 2048)
    busy = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(2)]
    for process in busy:
        process.start()
    try:
        best: dict[int, float] = {1: float("inf"), 2: float("inf")}
        for _ in range(ROUNDS):
            for threads in best:
                torch.set_num_threads(threads)
                start = time.perf_counter()
                with torch.no_grad():
                    selective_scan(**i)
                best[threads] = min(best[threads], time.perf_counter() - start)
    finally:
        for process in busy:
            process.kill()
    for threads, seconds in best.items():
        ratio = seconds / best[1]
        sys.stdout.write(
            f"beside two busy processes,{threads} threads,{seconds * 1e3:.2f},{ratio:.2f}\n"
        )


def main() -> None:
    sys.stdout.write("problem,form,ms,ratio\n")
    if "--contended" in sys.argv:
        contended()
        return
    torch.set_num_threads(1)
    selective_rows()
    training_rows()
    other_rows()
    drift()


if __name__ == "__main__":
    main()
