"""What users of other scans have reported, each with its input and the right behaviour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from scans import outputs_and_gradients, randn, selective_inputs
from torch import Tensor
from torch.nn import functional as F

from seqdiag.models.mamba import Mamba
from seqdiag.models.mamba2 import Mamba2
from seqdiag.models.registry import build_mixer
from seqdiag.ops.scan import invariant_scan, linear_scan, selective_scan, ssd_scan

CPU = torch.device("cpu")


def ssd_inputs(steps: int, heads: int = 2, p: int = 4, n: int = 3, groups: int = 1) -> Any:
    return {
        "x": randn(2, steps, heads, p, seed=1),
        "dt": F.softplus(randn(2, steps, heads, seed=2)),
        "A": -torch.linspace(0.5, 4, heads, dtype=torch.float64),
        "B": randn(2, steps, groups, n, seed=3),
        "C": randn(2, steps, groups, n, seed=4),
        "h0": randn(2, heads, p, n, seed=5),
    }


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert torch.isfinite(ours).all()
    assert ((ours.double() - theirs).abs().max() / theirs.abs().max()).item() <= tolerance


@pytest.mark.parametrize("chunk", [1, 64, 256])
def test_gradients_with_a_strong_decay_are_finite(chunk: int) -> None:
    """state-spaces/mamba #352, #353, #354: exp of the masked half of a chunk overflows."""
    inputs = ssd_inputs(512, heads=4, p=8, n=8)
    inputs["A"] = torch.full((4,), -16.0, dtype=torch.float64)
    inputs["dt"] = F.softplus(randn(2, 512, 4, seed=2) + 3)
    exact = outputs_and_gradients(ssd_scan, inputs, impl="reference")
    ours = outputs_and_gradients(ssd_scan, inputs, chunk=chunk)
    for got, expected in zip(ours, exact, strict=True):
        close(got, expected, 1e-7)  # of A almost nothing is left: a difference of large terms
    half = {n: x.float() if n in ("A", "dt", "h0") else x.bfloat16() for n, x in inputs.items()}
    results = outputs_and_gradients(ssd_scan, half, chunk=chunk)
    assert all(torch.isfinite(r).all() for r in results)


@pytest.mark.parametrize("impl", ["chunked", "associative"])
def test_decays_are_never_divided_by(impl: str) -> None:
    """alxndrTL/mamba.py and others, mamba-mini #6: 1 / cumulative decay is infinite."""
    a = torch.exp(-0.5 * torch.rand(1, 512, 4, generator=torch.Generator().manual_seed(0)))
    b = randn(1, 512, 4, dtype=torch.float32)
    exact = linear_scan(a.double(), b.double(), impl="loop")
    close(linear_scan(a, b, impl=impl), exact, 1e-6)


@pytest.mark.parametrize("cuts", [(137, 300), (1, 8, 71, 135, 200, 512)])
def test_prefill_in_pieces_is_one_pass_and_differentiable(cuts: tuple[int, ...]) -> None:
    """mamba #258, #285, #233; fla #285, #494, #351, #83: the state is carried, gradients too."""
    steps = cuts[-1]
    i = selective_inputs(steps, n=3, width=4)
    u, delta, A, B, C, h0 = (i[n].requires_grad_() for n in ("u", "delta", "A", "B", "C", "h0"))
    step = F.softplus(delta)
    whole, last = selective_scan(u, step, A, B, C, h0=h0)
    h, pieces = h0, []
    for first, end in zip((0, *cuts), cuts, strict=False):
        part = (x[:, first:end] for x in (u, step, B, C))
        u_p, step_p, B_p, C_p = part
        y, h = selective_scan(u_p, step_p, A, B_p, C_p, h0=h)
        pieces.append(y)
    close(torch.cat(pieces, 1), whole.detach(), 1e-12)
    close(h, last.detach(), 1e-12)
    leaves = (u, delta, A, B, C, h0)
    expected = torch.autograd.grad(whole.sum() + last.sin().sum(), leaves, retain_graph=True)
    got = torch.autograd.grad(torch.cat(pieces, 1).sum() + h.sin().sum(), leaves)
    for one, other in zip(got, expected, strict=True):
        close(one, other, 1e-10)


def test_ssd_and_invariant_prefill_in_pieces() -> None:
    i = ssd_inputs(130)
    whole, last = ssd_scan(**i)
    parts = {n: i[n] for n in ("x", "dt", "B", "C")}
    y1, h = ssd_scan(**{**i, **{n: x[:, :47] for n, x in parts.items()}})
    y2, h = ssd_scan(**{**i, **{n: x[:, 47:] for n, x in parts.items()}, "h0": h})
    close(torch.cat([y1, y2], 1), whole, 1e-12)
    close(h, last, 1e-12)
    u, fixed = randn(2, 130, 3), [randn(3, 4, seed=s) * 0.3 for s in (1, 2, 3)]
    whole, last = invariant_scan(u, *fixed)
    y1, h = invariant_scan(u[:, :47], *fixed)
    y2, h = invariant_scan(u[:, 47:], *fixed, h)
    close(torch.cat([y1, y2], 1), whole, 1e-12)
    close(h, last, 1e-12)


@pytest.mark.parametrize("steps", [*range(1, 9), 30, 31, 64])
@pytest.mark.parametrize("name", ["mamba", "mamba2", "s4d", "lru"])
def test_step_is_forward_in_float32(name: str, steps: int) -> None:
    """mamba #500, #641, #683, #187, #1024: the generated token differs from the trained one."""
    torch.manual_seed(0)
    layer = build_mixer(name, 16)
    x = torch.randn(2, steps, 16)
    with torch.no_grad():
        whole = layer(x)
        state, outputs = layer.init_state(2), []
        for x_t in x.unbind(1):
            y_t, state = layer.step(x_t, state)
            outputs.append(y_t)
    close(torch.stack(outputs, 1), whole.double(), 1e-5)


@pytest.mark.parametrize("head_dim", [64, 24, 3])
def test_widths_that_are_no_multiple_of_eight(head_dim: int) -> None:
    """mamba #351, #643, #345, #413; fla #519: strides and channels of any size."""
    torch.manual_seed(0)
    layer = Mamba2(head_dim, d_state=5, head_dim=head_dim).double()
    x = torch.randn(1, 70, head_dim, dtype=torch.float64)
    with torch.no_grad():
        fast = layer(x)
        layer.impl = "loop"
        close(fast, layer(x), 1e-10)


def test_the_memory_of_a_long_scan_is_bounded() -> None:
    """No (B, T, D, N) tensor: the peak is the results and buffers, forward and with gradients."""
    from seqdiag.measure.memory import peak_bytes

    inputs = selective_inputs(4096, n=16, width=64, batch=1, dtype=torch.float32)
    states = 4096 * 64 * 16 * 4
    with torch.no_grad():
        peak = peak_bytes(
            lambda: selective_scan(**inputs, delta_softplus=True), torch.device("cpu")
        )
    assert peak < states
    leaves = {n: x.requires_grad_() for n, x in inputs.items()}

    def train() -> Any:
        y, _ = selective_scan(**leaves, delta_softplus=True)
        return torch.autograd.grad(y.sum(), list(leaves.values()))

    assert peak_bytes(train, CPU) < 2 * states


def test_a_model_runs_on_any_form_of_its_scan() -> None:
    torch.manual_seed(0)
    layer = Mamba(8, d_state=4).double()
    x = torch.randn(1, 50, 8, dtype=torch.float64)
    with torch.no_grad():
        expected = layer(x)
        for impl in ("loop", "associative"):
            layer.impl = impl
            close(layer(x), expected, 1e-12)


def test_offsets_beyond_two_to_the_31(kernel_device: torch.device, tmp_path: Path) -> None:
    """mamba #1015, #884, #686: 32-bit offsets wrap from some 61,000 tokens on, silently."""
    if kernel_device.type == "cuda":
        pytest.skip("the sparse file is memory of the CPU")
    stride, steps = 2**30, 4
    try:
        size = stride * (steps - 1) + 8
        wide = torch.from_file(str(tmp_path / "u"), True, size, dtype=torch.float16)
    except (OSError, RuntimeError):
        pytest.skip("no room for a sparse file")
    u = wide.as_strided((1, steps, 2), (8, stride, 1))
    u.copy_(randn(1, steps, 2, dtype=torch.float16))
    delta, B, C = (randn(1, steps, w, dtype=torch.float32) for w in (2, 3, 3))
    A = -torch.ones(2, 3)
    options = {"delta_softplus": True}
    with torch.no_grad():
        y, _ = selective_scan(u, delta, A, B, C, **options, impl="triton")
        expected, _ = selective_scan(u.contiguous(), delta, A, B, C, **options, impl="triton")
    assert torch.equal(y, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_repeats_are_bit_equal() -> None:
    """fla #889: a race makes gradients differ between runs."""
    for op, inputs in ((selective_scan, selective_inputs(512, n=16, width=64)),
                       (ssd_scan, ssd_inputs(512, p=64, n=64))):  # fmt: skip
        placed = {n: x.float().cuda() for n, x in inputs.items()}
        first = outputs_and_gradients(op, placed, impl="triton")
        for _ in range(10):
            again = outputs_and_gradients(op, placed, impl="triton")
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_half_a_million_steps() -> None:
    """mamba #1015 at its length: the last thousand steps against a scan from the state before."""
    i = {n: x.half().cuda() for n, x in selective_inputs(512_000, n=16, width=64, batch=1).items()}
    A, h0 = i["A"].float(), i["h0"].float()
    timed = ("u", "delta", "B", "C")
    y, _ = selective_scan(
        **{n: i[n] for n in timed}, A=A, h0=h0, delta_softplus=True, impl="triton"
    )
    early = {n: i[n][:, :-1000] for n in timed}
    late = {n: i[n][:, -1000:].float() for n in timed}
    _, h = selective_scan(**early, A=A, h0=h0, delta_softplus=True, impl="triton")
    expected, _ = selective_scan(**late, A=A, h0=h, delta_softplus=True, impl="reference")
    close(y[:, -1000:].cpu(), expected.double().cpu(), 1e-2)
