"""Speed of the CPU paths, as ratios to a peer in the same process.

Interleaved rounds on one thread, minimum CPU time of each, results checked against each other
before anything is timed. Writes CSV: case, CPU milliseconds of ours and of the peer, ratio, target.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import csv
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seqdiag.measure.probes import input_gradient, profile_float64, profiles_side_by_side
from seqdiag.models.recurrent import GRU, RNN
from seqdiag.ops.attention import attention
from seqdiag.ops.scan import linear_scan, selective_scan, ssd_scan

ROUNDS = 5
Run = Callable[[], Tensor]


@dataclass(frozen=True)
class Case:
    """Ours against a peer; `target` is the least ratio of their times to reach."""

    name: str
    ours: Run
    peer: Run
    target: float
    grad: bool = False


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def selective(batch: int, width: int, steps: int, n: int) -> dict[str, Tensor]:
    return {
        "u": randn(batch, steps, width),
        "delta": randn(batch, steps, width).sigmoid() * 0.1,
        "A": -torch.arange(1, n + 1, dtype=torch.float32).repeat(width, 1),
        "B": randn(batch, steps, n),
        "C": randn(batch, steps, n),
    }


def textbook(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Returns the scan as most code writes it: the whole (B, D, T, N), sliced step by step."""
    u, delta = u.transpose(1, 2), delta.transpose(1, 2)
    decay = torch.exp(torch.einsum("bdt,dn->bdtn", delta, A))
    written = torch.einsum("bdt,btn,bdt->bdtn", delta, B, u)
    h, outputs = u.new_zeros(u.shape[0], *A.shape), []
    for t in range(u.shape[2]):
        h = decay[:, :, t] * h + written[:, :, t]
        outputs.append(torch.einsum("bdn,bn->bd", h, C[:, t]))
    return torch.stack(outputs, dim=1)


def unbound(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Returns the same without slicing, whose backward would be quadratic in the length."""
    return selective_scan(u, delta, A, B, C, impl="loop")[0]


def gradients(scan: Callable[..., Tensor], inputs: dict[str, Tensor]) -> Run:
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}

    def run() -> Tensor:
        return torch.autograd.grad(scan(**leaves).sum(), list(leaves.values()))[0]

    return run


def chunked(**inputs: Tensor) -> Tensor:
    return selective_scan(**inputs)[0]


def gru_profile() -> Case:
    torch.manual_seed(0)
    layer, x = GRU(32).double(), randn(1, 4096, 32).double()

    def ours() -> Tensor:
        return torch.tensor(profile_float64(layer, x, layer).norms[-64:])

    def plain() -> Tensor:
        leaf = x.clone().requires_grad_()
        layer(leaf)[:, -1].sum().backward()
        assert leaf.grad is not None
        return leaf.grad[0].norm(dim=-1)[-64:].float()

    return Case(
        "GRU profile, T = 4096, against autograd with norms that underflow", ours, plain, 1, True
    )


def weight_seeds() -> Case:
    layers = []
    for seed in range(32):
        torch.manual_seed(seed)
        layers.append(RNN(32).double())
    x = randn(32, 1, 128, 32).double()

    def ours() -> Tensor:
        profiles = profiles_side_by_side(layers, x, [torch.sum] * 32)
        return torch.tensor([profile.norms for profile in profiles if profile])

    def peer() -> Tensor:
        pairs = zip(layers, x, strict=True)
        return torch.stack([input_gradient(*pair)[0].norm(dim=-1) for pair in pairs]).float()

    return Case("32 weight seeds of an RNN, T = 128, against one by one", ours, peer, 10, True)


def cases() -> list[Case]:
    wide, narrow = selective(1, 512, 2048, 16), selective(1, 16, 8192, 16)
    x, dt = randn(1, 2048, 24, 64), randn(1, 2048, 24).sigmoid() * 0.1
    A, B, C = -randn(24).abs(), randn(1, 2048, 1, 128), randn(1, 2048, 1, 128)
    q, k, v = (randn(1, 8, 4096, 64) for _ in range(3))
    a, b = randn(1, 1, 64, 1).sigmoid(), randn(1, 4096, 64, 16)
    strong = {**wide, "delta": wide["delta"] * 100}
    return [
        Case("selective scan (1, 512, 2048, 16) against the textbook loop",
             lambda: chunked(**wide), lambda: textbook(**wide), 10),
        Case("selective scan (1, 16, 8192, 16) against the textbook loop",
             lambda: chunked(**narrow), lambda: textbook(**narrow), 25),
        Case("selective scan, decay x 100, against itself without",
             lambda: chunked(**strong) * 0, lambda: chunked(**wide) * 0, 0.66),
        Case("selective scan forward and backward against the unbind loop",
             gradients(chunked, wide), gradients(unbound, wide), 6, grad=True),
        Case("SSD (1, 2048, 24 x 64, 128) against the loop",
             lambda: ssd_scan(x, dt, A, B, C)[0],
             lambda: ssd_scan(x, dt, A, B, C, impl="loop")[0], 8),
        Case("linear scan (1, 4096, 64, 16) against the loop",
             lambda: linear_scan(a, b), lambda: linear_scan(a, b, impl="loop"), 1),
        Case("blocked attention (1, 8, 4096, 64) against SDPA flash",
             lambda: attention(q, k, v, impl="blocked"),
             lambda: attention(q, k, v, impl="sdpa-flash"), 0.75),
        gru_profile(),
        weight_seeds(),
    ]  # fmt: skip


def cpu_ms(run: Run) -> float:
    start = time.process_time()
    run()
    return (time.process_time() - start) * 1000


def main() -> None:
    torch.set_num_threads(1)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["case", "ours_cpu_ms", "peer_cpu_ms", "ratio", "target"])
    for case in cases():
        with torch.set_grad_enabled(case.grad):
            torch.testing.assert_close(case.ours(), case.peer(), rtol=1e-3, atol=1e-3)
            rounds = [(cpu_ms(case.ours), cpu_ms(case.peer)) for _ in range(ROUNDS)]
        ours, peer = (min(times) for times in zip(*rounds, strict=True))
        writer.writerow(
            [case.name, f"{ours:.1f}", f"{peer:.1f}", f"{peer / ours:.2f}", case.target]
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
