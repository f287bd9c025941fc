"""The Triton attention kernels against float64: interpreted, or compiled where there is a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from seqdiag.ops.attention import attention, flash, tiles
from seqdiag.ops.attention.reference import naive, visible
from seqdiag.ops.attention.tiles import Tile, split_count, tile_for

pytest.importorskip("triton")

BOUNDS = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
# batch, heads, kv heads, query length, key length, head_dim, v_head_dim, causal, window
SMALL = [
    (2, 2, 1, 63, 63, 16, 16, True, None),
    (1, 4, 1, 40, 40, 40, 24, True, None),
    (1, 2, 2, 33, 65, 16, 16, False, None),
    (1, 2, 2, 5, 100, 80, 16, True, None),
    (1, 4, 2, 1, 77, 16, 16, True, None),
    (1, 2, 1, 100, 100, 16, 16, True, 7),
    (1, 1, 1, 70, 70, 16, 16, True, 33),
    (1, 2, 2, 40, 25, 16, 16, True, None),
    (1, 2, 2, 40, 25, 16, 16, True, 9),
    (1, 1, 1, 7, 20, 16, 16, True, 400),
]
LENGTHS = itertools.cycle(
    [(129, 129), (7, 7), (17, 64), (65, 129), (127, 65), (1, 128), (128, 128)]
)
GRID = [
    (1, 2, kv_heads, *next(LENGTHS), head_dim, v_head_dim, causal, window)
    for head_dim, v_head_dim in (
        (16, 16),
        (32, 32),
        (64, 64),
        (80, 80),
        (96, 64),
        (128, 128),
        (256, 256),
    )
    for causal, window in ((True, None), (False, None), (True, 65))
    for kv_heads in (1, 2)
]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch, kernel_device: torch.device) -> Iterator[None]:
    """Several blocks and splits on short sequences, so that every kind of block is met; memory
    that a kernel should fill holds NaN before."""
    monkeypatch.setattr(tiles, "_INTERPRETED", Tile(32, 32, 4, 1))
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def problem(shape: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    b, h, hkv, lq, lk, d, dv, _, _ = shape
    generator = torch.Generator().manual_seed(0)
    sizes = ((b, h, lq, d), (b, hkv, lk, d), (b, hkv, lk, dv), (b, h, lq, dv))
    return [torch.randn(size, generator=generator).to(device, dtype) for size in sizes]


def close(found: Tensor, exact: Tensor, dtype: torch.dtype) -> bool:
    scale = max(float(exact.norm()), 0.1 * exact.numel() ** 0.5)
    return float((found.double() - exact).norm()) <= BOUNDS[dtype] * scale


def check(shape: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> None:
    """Holds forward, decode and backward against float64."""
    causal, window = shape[-2:]
    q, k, v, d_out = problem(shape, dtype, device)
    options = {"causal": causal, "window": window, "scale": shape[5] ** -0.5}
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    exact = naive(*leaves, **options)
    expected = torch.autograd.grad(exact, leaves, d_out.double())
    exact = exact.detach()
    out, lse = flash.forward_with_lse(q, k, v, **options)
    assert close(out, exact, dtype)
    torch.testing.assert_close(lse, log_sum_exp(leaves, options), rtol=1e-4, atol=1e-5)
    for splits in (1, 3):
        again, lse_again = flash.decode_with_lse(q, k, v, splits=splits, **options)
        assert close(again, exact, dtype)
        torch.testing.assert_close(lse_again, lse, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(
        flash.backward(q, k, v, out, lse, d_out, **options), expected, strict=True
    ):
        assert close(ours, theirs, dtype)


def log_sum_exp(leaves: list[Tensor], options: dict[str, Any]) -> Tensor:
    q, k, _ = leaves
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    seen = visible(q.shape[2], k.shape[2], options["causal"], options["window"], q.device)
    scores = (q @ k.transpose(-1, -2) * options["scale"]).masked_fill(~seen, -torch.inf)
    return torch.logsumexp(scores, dim=-1).detach().float()


@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_float32(shape: tuple[Any, ...], strict_kernels: torch.device) -> None:
    check(shape, torch.float32, strict_kernels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [SMALL[0], SMALL[3], SMALL[6]], ids=str)
def test_half(shape: tuple[Any, ...], dtype: torch.dtype, strict_kernels: torch.device) -> None:
    check(shape, dtype, strict_kernels)


@pytest.mark.grid
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", GRID, ids=str)
def test_grid(
    shape: tuple[Any, ...],
    dtype: torch.dtype,
    strict_kernels: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tiles, "_INTERPRETED", Tile(64, 64, 4, 1))
    check(shape, dtype, strict_kernels)


@pytest.mark.parametrize("window", [None, 20])
def test_hidden_values_that_are_not_finite_do_not_leak(
    window: int | None, strict_kernels: torch.device
) -> None:
    """NaN and inf in one key, value, query or gradient reach those who see it, and nobody else."""
    shape = (1, 2, 1, 50, 50, 16, 16, True, window)
    options: dict[str, Any] = {"causal": True, "window": window, "scale": 0.25}
    q, k, v, d_out = problem(shape, torch.float32, strict_kernels)
    out, lse = flash.forward_with_lse(q, k, v, **options)
    clean = (out, *flash.backward(q, k, v, out, lse, d_out, **options))
    at, end = 37, 50 if window is None else 50 if 37 + window > 50 else 37 + window
    for index, bad in ((1, torch.nan), (2, torch.nan), (2, torch.inf)):
        given = [q, k.clone(), v.clone(), d_out]
        given[index][:, :, at] = bad
        out, lse = flash.forward_with_lse(*given[:3], **options)
        grads = flash.backward(*given[:3], out, lse, d_out, **options)
        for found, expected in ((out, clean[0]), (grads[0], clean[1])):
            assert torch.equal(found[:, :, :at], expected[:, :, :at])
            assert torch.equal(found[:, :, end:], expected[:, :, end:])
        assert out[:, :, at:end].isfinite().sum() == 0
    given = [q, k, v, d_out.clone()]
    given[3][:, :, 10] = torch.nan
    out, lse = flash.forward_with_lse(q, k, v, **options)
    _, dk, dv = flash.backward(*given[:3], out, lse, given[3], **options)
    for found, expected in ((dk, clean[2]), (dv, clean[3])):
        assert torch.equal(found[:, :, 11:], expected[:, :, 11:])
        assert found[:, :, 10].isnan().all()


def test_queries_without_keys_give_zero(strict_kernels: torch.device) -> None:
    """Of 4 queries aligned bottom-right on 2 keys the first two see none."""
    shape = (1, 1, 1, 4, 2, 16, 16, True, None)
    options: dict[str, Any] = {"causal": True, "window": None, "scale": 0.25}
    q, k, v, d_out = problem(shape, torch.float32, strict_kernels)
    out, lse = flash.forward_with_lse(q, k, v, **options)
    assert torch.equal(out[:, :, :2], torch.zeros_like(out[:, :, :2]))
    assert torch.isneginf(lse[:, :, :2]).all()
    grads = flash.backward(q, k, v, out, lse, d_out, **options)
    assert all(g.isfinite().all() for g in grads)
    assert torch.equal(grads[0][:, :, :2], torch.zeros_like(out[:, :, :2]))


def test_as_an_implementation(strict_kernels: torch.device) -> None:
    """Gradients through `attention`: rows of views lie apart, the gradient is expanded."""
    name = "flash-triton" if strict_kernels.type == "cuda" else "flash-triton-interpret"
    shape = (2, 4, 2, 20, 20, 16, 16, True, None)
    fused = torch.randn(2, 20, 8, 16, generator=torch.Generator().manual_seed(0))
    results = []
    for impl in (name, "naive"):
        leaf = fused.to(strict_kernels).requires_grad_()
        q, k, v = leaf.transpose(1, 2).split([4, 2, 2], dim=1)
        out = attention(q, k, v, causal=shape[-2], impl=impl)
        results.append((out, *torch.autograd.grad(out.sum(), leaf)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_window_as_wide_as_the_sequence_is_causal(strict_kernels: torch.device) -> None:
    q, k, v, _ = problem((1, 2, 2, 65, 65, 16, 16, True, None), torch.float32, strict_kernels)
    options: dict[str, Any] = {"causal": True, "scale": 0.25}
    windowed, _ = flash.forward_with_lse(q, k, v, window=65, **options)
    causal, _ = flash.forward_with_lse(q, k, v, window=None, **options)
    torch.testing.assert_close(windowed, causal, rtol=1e-6, atol=1e-6)


def test_the_backward_pass_repeats_bit_by_bit(strict_kernels: torch.device) -> None:
    shape = SMALL[1]
    options: dict[str, Any] = {"causal": True, "window": None, "scale": 0.25}
    q, k, v, d_out = problem(shape, torch.float32, strict_kernels)
    out, lse = flash.forward_with_lse(q, k, v, **options)
    first, second = (flash.backward(q, k, v, out, lse, d_out, **options) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_negative_scale_is_refused(kernel_device: torch.device) -> None:
    q, k, v, _ = problem(SMALL[0], torch.float32, kernel_device)
    with pytest.raises(ValueError, match="is negative"):
        flash.flash(q, k, v, causal=True, window=None, scale=-1.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float64}, "float16, bfloat16 or float32"),
        ({"head_dim": 300}, "up to 256"),
        ({"q_len": 2048}, "up to 1024 tokens"),
    ],
)
def test_what_it_refuses(change: dict[str, Any], reason: str, kernel_device: torch.device) -> None:
    import dataclasses

    from seqdiag.ops.attention import AttentionProblem

    plain = AttentionProblem(1, 2, 2, 64, 64, 64, 64, torch.float32, True, None)
    why = flash.why_not_flash_interpret(dataclasses.replace(plain, **change), kernel_device)
    if kernel_device.type == "cpu":
        assert reason in str(why)
        assert flash.why_not_flash_interpret(plain, kernel_device) is None
        assert "interpreted" in str(flash.why_not_flash(plain, kernel_device))


def test_splits_fill_the_card() -> None:
    """One sequence on eight key heads needs splits; a full grid needs none; blocks bound both."""
    assert split_count(programs=200, keys=65536, block_n=64, processors=132) == 1
    assert split_count(programs=8, keys=128, block_n=64, processors=132) == 1
    splits = split_count(programs=8, keys=65536, block_n=64, processors=132)
    assert 8 * splits / (132 * -(-8 * splits // 132)) > 0.8
    assert split_count(programs=1, keys=2**20, block_n=64, processors=132) <= 128


def test_tiles_cover_every_dimension() -> None:
    for kernel in tiles.KERNELS:
        for target in ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942"):
            for head_dim in (1, 16, 65, 128, 200, 256):
                for itemsize in (2, 4):
                    assert isinstance(tile_for(kernel, target, head_dim, itemsize), Tile)
    assert [tiles.architecture_of(c) for c in ((8, 0), (8, 6), (9, 0), (10, 0), (12, 0))] == [
        "sm_80", "sm_120", "sm_90", "sm_100", "sm_120",
    ]  # fmt: skip


@pytest.mark.parametrize("window", [None, 5])
def test_a_model_of_the_core_runs_and_learns_on_it(
    kernel_device: torch.device, window: int | None
) -> None:
    """Two heads that share keys, against the same layer on PyTorch's attention."""
    from seqdiag.models.attention import Attention

    name = "flash-triton" if kernel_device.type == "cuda" else "flash-triton-interpret"
    torch.manual_seed(0)
    layer = Attention(32, heads=2, kv_heads=1, window=window).to(kernel_device)
    x = torch.randn(2, 20, 32, device=kernel_device, requires_grad=True)
    found = []
    for impl in ("sdpa", name):
        layer.impl = impl
        out = layer(x)
        found.append([out, *torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()])])
    for ours, theirs in zip(*reversed(found), strict=True):
        assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()
