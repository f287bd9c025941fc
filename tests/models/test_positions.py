"""What positions promise."""

from __future__ import annotations

import math

import pytest
import torch

from seqdiag.models.attention import Attention
from seqdiag.models.positions import Rope, sinusoidal
from seqdiag.ops.attention import attention


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    "rope",
    [
        Rope(8),
        Rope(8, base=500_000.0),
        Rope(8, scaling="ntk", factor=4.0),
        Rope(64, scaling="yarn", factor=4.0, original=256),
    ],
    ids=str,
)
def test_rope_scores_depend_on_the_distance_only(rope: Rope) -> None:
    q, k = randn(1, 1, 1, rope.head_dim, seed=1), randn(1, 1, 1, rope.head_dim, seed=2)
    for distance in (0, 1, 7, 100):
        scores = [
            (rope.rotate(q, at + distance) * rope.rotate(k, at)).sum() for at in (0, 3, 50, 1000)
        ]
        torch.testing.assert_close(torch.stack(scores), scores[0].expand(4), rtol=1e-9, atol=1e-9)
    near = (rope.rotate(q, 5) * rope.rotate(k, 4)).sum()
    far = (rope.rotate(q, 9) * rope.rotate(k, 4)).sum()
    assert not torch.isclose(near, far)


@pytest.mark.parametrize("scaling", ["ntk", "yarn"])
def test_scaled_rope_is_rope_at_factor_one(scaling: str) -> None:
    plain, scaled = Rope(16), Rope(16, scaling=scaling, factor=1.0)  # type: ignore[arg-type]
    torch.testing.assert_close(plain.frequencies(), scaled.frequencies())
    assert scaled.attention_scale() == 1.0


def test_ntk_slows_the_slowest_pair_by_the_factor_and_leaves_the_fastest() -> None:
    plain, scaled = Rope(64).frequencies(), Rope(64, scaling="ntk", factor=8.0).frequencies()
    assert scaled[0] == plain[0]
    assert (plain[-1] / scaled[-1]).item() == pytest.approx(8.0)


def test_yarn_leaves_fast_pairs_and_interpolates_slow_ones() -> None:
    plain = Rope(128).frequencies()
    scaled = Rope(128, scaling="yarn", factor=4.0, original=4096).frequencies()
    turns = 4096 * plain / (2 * math.pi)
    torch.testing.assert_close(scaled[turns > 40], plain[turns > 40])
    torch.testing.assert_close(scaled[turns < 0.8], plain[turns < 0.8] / 4)
    assert Rope(128, scaling="yarn", factor=4.0).attention_scale() == pytest.approx(
        1.1386, abs=1e-4
    )


def test_rotation_keeps_lengths() -> None:
    x = randn(2, 3, 9, 8)
    torch.testing.assert_close(Rope(8).rotate(x, 5).norm(dim=-1), x.norm(dim=-1))


def test_sinusoidal_shift_is_a_rotation() -> None:
    """PE[p + k] = R(k) PE[p] with one rotation for every pair, whatever p (Vaswani 2017)."""
    width, shift = 16, 5
    encoding = sinusoidal(torch.arange(50, dtype=torch.float64), width)
    angles = shift * 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    sin, cos = encoding[:, 0::2], encoding[:, 1::2]
    rotated_sin = sin * angles.cos() + cos * angles.sin()
    rotated_cos = cos * angles.cos() - sin * angles.sin()
    torch.testing.assert_close(encoding[shift:, 0::2], rotated_sin[:-shift])
    torch.testing.assert_close(encoding[shift:, 1::2], rotated_cos[:-shift])
    assert encoding[0, 0] == 0
    assert encoding[0, 1] == 1


def test_attention_without_positions_is_permutation_equivariant() -> None:
    q, k, v = (randn(1, 2, 9, 8, seed=seed) for seed in (1, 2, 3))
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    out = attention(q, k, v, causal=False)
    moved = attention(q[:, :, order], k[:, :, order], v[:, :, order], causal=False)
    torch.testing.assert_close(moved, out[:, :, order])
    assert not torch.allclose(moved, out), "equivariant, not invariant"


def test_attention_with_rope_is_not() -> None:
    torch.manual_seed(0)
    layer = Attention(16, rope=Rope(4)).double()
    x = randn(1, 9, 16)
    order = torch.tensor([1, 0, *range(2, 9)])
    last = layer(x)[:, -1]
    assert not torch.allclose(layer(x[:, order])[:, -1], last)
    bare = Attention(16).double()
    torch.testing.assert_close(bare(x[:, order])[:, -1], bare(x)[:, -1])
