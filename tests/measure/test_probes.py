"""Gradient norms against plain autograd, closed forms and higher precision."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from seqdiag.measure.decay import decay_per_step, horizon
from seqdiag.measure.probes import input_gradient, profile_as, profile_float64, step_norms
from seqdiag.models.recurrent import GRU, LSTM, RNN, LinearRecurrence, Recurrent

LAYERS = {
    "rnn": lambda: RNN(8),
    "relu": lambda: RNN(8, "relu"),
    "lstm": lambda: LSTM(8),
    "gru": lambda: GRU(8),
    "linear": lambda: LinearRecurrence(8, 0.7),
}


def layer_and_input(name: str, steps: int, batch: int = 2) -> tuple[Recurrent, Tensor]:
    torch.manual_seed(1)
    return LAYERS[name]().double(), torch.randn(batch, steps, 8, dtype=torch.float64)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("steps", [1, 2, 16, 17, 50])
def test_profile_is_what_autograd_says(name: str, steps: int) -> None:
    layer, x = layer_and_input(name, steps)
    leaf = x.clone().requires_grad_()
    layer(leaf)[:, -1].sum().backward()
    assert leaf.grad is not None
    expected = leaf.grad.transpose(0, 1).flatten(1).norm(dim=1)
    profile = profile_float64(layer, x, layer)
    assert profile.norms == pytest.approx(expected.tolist(), rel=1e-12)
    assert profile.log10_norms == pytest.approx(expected.log10().tolist(), abs=1e-12)
    assert not any(profile.underflowed)


@pytest.mark.parametrize("multiplier", [1e-6, 1e-3, 3.0, 1e5])
def test_beyond_the_range_of_float64_the_logarithm_is_exact(multiplier: float) -> None:
    layer = LinearRecurrence(4, multiplier).double()
    x = torch.randn(1, 700, 4, dtype=torch.float64)
    profile = profile_float64(layer, x, layer)
    for lag, log10 in enumerate(reversed(profile.log10_norms)):
        assert log10 == pytest.approx(lag * math.log10(multiplier) + math.log10(2), abs=1e-9)
    lowest = 699 * math.log10(multiplier)
    assert any(profile.underflowed) == (lowest < -324)
    assert (profile.norms[0] == math.inf) == (lowest > 308)


def test_segments_agree_with_one_pass_where_both_work() -> None:
    layer, x = layer_and_input("rnn", 1500, batch=1)
    profile = profile_float64(layer, x, layer)
    plain = step_norms(input_gradient(layer, x))[1] * math.log10(2)
    near = plain > -280
    assert near.sum() > 300
    ours = torch.tensor(profile.log10_norms, dtype=torch.float64)[near]
    torch.testing.assert_close(ours, plain[near], rtol=0, atol=1e-9)
    assert profile.log10_norms[0] < -350
    assert all(math.isfinite(value) for value in profile.log10_norms)


def test_any_module_is_measured_below_the_range_too() -> None:
    layer = LinearRecurrence(4, 0.1).double()
    x = torch.randn(1, 500, 4, dtype=torch.float64)
    profile = profile_float64(layer, x)
    assert profile.log10_norms[0] == pytest.approx(-499 + math.log10(2), abs=1e-9)
    assert profile.norms[0] == 0.0
    assert profile.underflowed[0]


def test_what_even_a_rescaled_pass_loses_is_not_called_zero() -> None:
    layer = LinearRecurrence(4, 0.1).double()
    x = torch.randn(1, 900, 4, dtype=torch.float64)
    profile = profile_float64(layer, x)
    assert profile.log10_norms[0] == -math.inf
    assert profile.underflowed[0]
    assert not profile.underflowed[-1]


@pytest.mark.parametrize(("a", "steps"), [(0.7, 3000), (0.5, 1900), (0.9, 9000)])
def test_a_slow_decay_is_exact_or_said_to_be_lost(a: float, steps: int) -> None:
    """A scaled pass sticks at the smallest subnormal: what it says there must not count."""
    layer = LinearRecurrence(4, a).double()
    profile = profile_float64(layer, torch.randn(1, steps, 4, dtype=torch.float64))
    for lag, (log10, lost) in enumerate(
        zip(reversed(profile.log10_norms), reversed(profile.underflowed), strict=True)
    ):
        truth = lag * math.log10(a) + math.log10(2)
        if truth > -570:
            assert log10 == pytest.approx(truth, abs=1e-9)
        else:
            assert lost
            assert log10 == -math.inf or log10 == pytest.approx(truth, abs=1e-9)


@pytest.mark.parametrize("multiplier", [1e-100, 1e100, 1e-300])
def test_a_step_may_change_it_by_hundreds(multiplier: float) -> None:
    layer = LinearRecurrence(4, multiplier).double()
    x = torch.randn(1, 40, 4, dtype=torch.float64)
    profile = profile_float64(layer, x, layer)
    for lag, log10 in enumerate(reversed(profile.log10_norms)):
        assert log10 == pytest.approx(lag * math.log10(multiplier) + math.log10(2), abs=1e-9)


def test_low_precision_does_not_stick_at_the_smallest_number() -> None:
    layer = LinearRecurrence(4, 0.7)
    x = torch.randn(1, 200, 4)
    exact = profile_float64(layer.double(), x.double(), layer)
    gradient = input_gradient(layer.half(), x.half())
    profile = profile_as(gradient, lambda: exact)
    assert decay_per_step(profile.log10_norms) == pytest.approx(0.7, abs=1e-3)


def test_a_true_zero_is_a_zero() -> None:
    class LastTwo(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.roll(x, 1, dims=1)

    x = torch.randn(1, 10, 4, dtype=torch.float64)
    profile = profile_float64(LastTwo(), x)
    assert profile.norms[:8] == [0.0] * 8
    assert profile.log10_norms[:8] == [-math.inf] * 8
    assert not any(profile.underflowed)


def test_an_input_that_is_not_used_has_no_gradient() -> None:
    weight = nn.Parameter(torch.ones(1, 5, 3))
    gradient = input_gradient(lambda x: weight * 2, torch.randn(1, 5, 3))
    assert gradient.abs().max() == 0


@given(st.lists(st.floats(-320, 300), min_size=1, max_size=6), st.integers(1, 5))
@settings(deadline=None)
def test_step_norms_hold_over_the_whole_range(exponents: list[float], width: int) -> None:
    values = torch.tensor([10.0**e for e in exponents], dtype=torch.float64)
    gradient = values.reshape(1, -1, 1).expand(1, -1, width)
    norms, log2 = step_norms(gradient)
    for value, norm, log in zip(values.tolist(), norms.tolist(), log2.tolist(), strict=True):
        if value == 0:
            assert norm == 0
            assert log == -math.inf
        elif value > 1e-300:
            assert norm == pytest.approx(value * math.sqrt(width), rel=1e-12)
            assert log == pytest.approx(math.log2(value) + math.log2(width) / 2, abs=1e-9)


def test_step_norms_of_what_is_not_finite() -> None:
    gradient = torch.tensor([[[math.nan, 1.0], [math.inf, 1.0], [3.0, 4.0]]])
    norms, _ = step_norms(gradient)
    assert math.isnan(norms[0])
    assert not math.isfinite(norms[1])
    assert norms[2] == 5


@pytest.mark.parametrize(
    ("dtype", "zeros"), [(torch.float32, 51), (torch.float16, 178), (torch.bfloat16, 77)]
)
def test_lower_precision_says_what_it_loses(dtype: torch.dtype, zeros: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 200, 32)
    layer = RNN(32)
    exact = profile_float64(layer.double(), x.double(), layer)
    profile = profile_as(input_gradient(layer.to(dtype), x.to(dtype)), lambda: exact)
    assert sum(profile.underflowed) == pytest.approx(zeros, abs=6)
    for norm, lost, log10, truth in zip(
        profile.norms, profile.underflowed, profile.log10_norms, exact.log10_norms, strict=True
    ):
        assert lost == (norm == 0)
        if norm < torch.finfo(dtype).smallest_normal:
            assert log10 == truth, "a subnormal number has lost digits too"
        else:
            assert log10 == pytest.approx(math.log10(norm))


def test_overflow_in_lower_precision_keeps_the_logarithm() -> None:
    layer = LinearRecurrence(4, 10.0)
    x = torch.randn(1, 60, 4)
    gradient = input_gradient(layer, x)
    exact = profile_float64(layer.double(), x.double(), layer)
    profile = profile_as(gradient, lambda: exact)
    assert profile.norms[0] == math.inf
    assert profile.log10_norms[0] == pytest.approx(59 + math.log10(2))


def test_decay_and_horizon() -> None:
    log10 = [math.log10(0.9) * lag for lag in reversed(range(100))]
    assert decay_per_step(log10) == pytest.approx(0.9)
    assert horizon(log10, 1e-3) == 65
    assert horizon(log10, 1e-9) == 99
    assert horizon([*log10[:-1], -math.inf], 1e-3) is None
    assert horizon([0.0], 1e-3) == 0
    assert horizon([-1.0, -9.0, 0.0], 0.1) == 2, "the largest lag, not the first that falls"


def test_decay_leaves_out_what_has_no_gradient_and_resists_outliers() -> None:
    log10 = [-0.5 * lag for lag in reversed(range(50))]
    log10[3] = -math.inf
    log10[10] = 40.0
    assert decay_per_step(log10) == pytest.approx(10**-0.5, rel=1e-6)
    assert decay_per_step([-math.inf, 0.0]) is None
    assert decay_per_step([-0.01 * lag for lag in range(6000)]) == pytest.approx(10**0.01)
