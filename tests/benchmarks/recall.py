"""Read-back with every pair probed against a loop over trials with one probe each.

    python tests/benchmarks/recall.py

Both in one process on one thread, in turns; the smallest time of five rounds, and the standard
deviation of the accuracy at 512 pairs over repeated seeds.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import Tensor

from seqdiag.measure.readback import read_back

DIM, PAIRS, TRIALS, ROUNDS, SEEDS = 64, (8, 32, 64, 128, 512), 200, 5, 30


def linear(k: Tensor, v: Tensor) -> Tensor:
    return k @ (k.transpose(1, 2) @ v)


def loop(pairs: int, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    hits = 0
    for _ in range(TRIALS):
        keys = torch.nn.functional.normalize(torch.randn(pairs, DIM, generator=generator), dim=1)
        values = torch.randn(pairs, DIM, generator=generator)
        probe = int(torch.randint(pairs, (1,), generator=generator))
        read = (values.t() @ keys) @ keys[probe]
        hits += int((values - read).square().sum(1).argmin()) == probe
    return hits / TRIALS


def batched(pairs: int, seed: int) -> float:
    trials = max(20, -(-2000 // pairs))
    return read_back(linear, pairs, DIM, DIM, trials, seed, one=False).accuracy


def main() -> None:
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {"loop": [], "all pairs": []}
    for seed in range(ROUNDS):
        for name, run in (("loop", loop), ("all pairs", batched)):
            began = time.process_time()
            for pairs in PAIRS:
                run(pairs, seed)
            times[name].append(time.process_time() - began)
    spread = [statistics.stdev(run(512, s) for s in range(SEEDS)) for run in (loop, batched)]
    best = {name: min(taken) for name, taken in times.items()}
    sys.stdout.write(
        f"loop {best['loop'] * 1e3:.0f} ms, all pairs {best['all pairs'] * 1e3:.0f} ms: "
        f"{best['all pairs'] / best['loop']:.2f} of the time; standard deviation at 512 pairs "
        f"{spread[0]:.4f} and {spread[1]:.4f}: {spread[1] / spread[0]:.2f}\n"
    )


if __name__ == "__main__":
    main()
