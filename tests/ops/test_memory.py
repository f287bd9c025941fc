"""The chunked memories against the definition, and the write rules against what they promise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seqdiag.ops.memory import additive, delta, feature_map, memory_loop, softmax_read

STEPS = [1, 2, 7, 15, 16, 17, 63, 64, 65, 130]


def randn(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def operands(steps: int) -> list[Tensor]:
    q, k = (randn(2, 3, steps, 5, seed=seed) for seed in (1, 2))
    k = torch.nn.functional.normalize(k, dim=-1)
    return [q, k, randn(2, 3, steps, 4, seed=3), randn(2, 3, 5, 4, seed=4)]


def same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], leaves: list[Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    for a, b in zip(
        torch.autograd.grad(sum(x.sin().sum() for x in ours), leaves, retain_graph=True),
        torch.autograd.grad(sum(x.sin().sum() for x in theirs), leaves, retain_graph=True),
        strict=True,
    ):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("gate", ["none", "scalar", "entry"])
@pytest.mark.parametrize("steps", STEPS)
def test_additive(steps: int, gate: str) -> None:
    leaves = [x.requires_grad_() for x in operands(steps)]
    shape = {"scalar": (2, 3, steps), "entry": (2, 3, steps, 5)}
    log_g = None
    if gate != "none":
        raw = randn(*shape[gate], seed=5).requires_grad_()
        leaves.append(raw)
        log_g = torch.nn.functional.logsigmoid(raw)
    same(additive(*leaves[:4], log_g=log_g), memory_loop(*leaves[:4], log_g=log_g), leaves)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("steps", STEPS)
def test_delta(steps: int, gated: bool) -> None:
    leaves = [x.requires_grad_() for x in (*operands(steps), randn(2, 3, steps, seed=6))]
    q, k, v, state, raw = leaves
    beta = raw.sigmoid()
    log_g = torch.nn.functional.logsigmoid(raw + 2) if gated else None
    ours = delta(q, k, v, beta, state, log_g=log_g)
    same(ours, memory_loop(q, k, v, state, log_g=log_g, beta=beta), leaves)


@pytest.mark.parametrize("decay", [-1e3, -1e30, -torch.inf])
def test_an_exact_reset(decay: float) -> None:
    q, k, v, state = operands(40)
    for shape in ((2, 3, 40), (2, 3, 40, 5)):
        log_g = torch.zeros(shape, dtype=torch.float64)
        log_g[:, :, 20] = decay
        reads, last = additive(q, k, v, state, log_g=log_g)
        clean, clean_last = additive(q[:, :, 20:], k[:, :, 20:], v[:, :, 20:], state * 0)
        torch.testing.assert_close(reads[:, :, 20:], clean)
        torch.testing.assert_close(last, clean_last)
    reads, _ = delta(q, k, v, torch.ones(2, 3, 40).double(), state, log_g=log_g[..., 0])
    assert reads.isfinite().all()


def test_the_delta_rule_overwrites_what_a_key_held() -> None:
    key = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    key[..., 1] = 1
    values = randn(1, 1, 2, 3, seed=1)
    state = torch.zeros(1, 1, 4, 3, dtype=torch.float64)
    ones = torch.ones(1, 1, 2, dtype=torch.float64)
    replaced, _ = delta(key, key, values, ones, state)
    summed, _ = additive(key, key, values, state)
    torch.testing.assert_close(replaced[0, 0, 1], values[0, 0, 1])
    torch.testing.assert_close(summed[0, 0, 1], values.sum(2)[0, 0])


def test_feature_maps() -> None:
    x, y = randn(7, 6, seed=1), randn(7, 6, seed=2)
    s = (x * y).sum(-1) / 6**0.5
    taylor = feature_map("taylor2")
    torch.testing.assert_close((taylor(x) * taylor(y)).sum(-1), 1 + s + s**2 / 2)
    torch.testing.assert_close(feature_map("elu1")(x), torch.nn.functional.elu(x) + 1)
    small = torch.tensor([-8.0, -6.0, -4.0], dtype=torch.bfloat16)
    truth = torch.tensor([0.00034, 0.00248, 0.0183])
    torch.testing.assert_close(feature_map("elu1")(small).float(), truth, rtol=0.02, atol=0)
    big = torch.tensor([500.0], requires_grad=True)
    feature_map("elu1")(big).backward()
    assert big.grad is not None and big.grad.item() == 1


def test_softmax_read_is_attention() -> None:
    q, k, v = randn(2, 5, 8, seed=1), randn(2, 9, 8, seed=2), randn(2, 9, 3, seed=3)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(softmax_read(q, k, v, 8**-0.5), expected)
