"""The closed forms of capacity against simulation and exact cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiag.predict import capacity


def simulate(rule: str, pairs: int, dim: int, trials: int, g: float = 1.0) -> float:
    """Returns the relative error of a rule written step by step in float64."""
    rng = np.random.default_rng(0)
    error = size = 0.0
    for _ in range(trials):
        keys = rng.standard_normal((pairs, dim))
        keys /= np.linalg.norm(keys, axis=1, keepdims=True)
        values = rng.standard_normal((pairs, dim))
        state = np.zeros((dim, dim))
        for k, v in zip(keys, values, strict=True):
            if rule == "delta":
                state += np.outer(v - state @ k, k)
            else:
                state = g * state + np.outer(v, k)
        error += float(((keys @ state.T - values) ** 2).sum())
        size += float((values**2).sum())
    return error / size


@pytest.mark.parametrize(("pairs", "dim"), [(1, 5), (7, 5), (20, 8), (33, 16)])
def test_rel_errors_are_exact_in_expectation(pairs: int, dim: int) -> None:
    within = {"rel": 0.05, "abs": 1e-12}
    assert capacity.delta_rel_error(pairs, dim) == pytest.approx(
        simulate("delta", pairs, dim, 600), **within
    )
    assert capacity.additive_rel_error(pairs, dim) == pytest.approx(
        simulate("linear", pairs, dim, 600), **within
    )
    assert capacity.additive_rel_error(pairs, dim, 0.9) == pytest.approx(
        simulate("linear", pairs, dim, 600, 0.9), **within
    )


def test_additive_accuracy_against_monte_carlo() -> None:
    # 2000 to 4000 trials: 1.000 1.000 0.999 0.970 0.337 at d = 64
    truth = {8: 1.0, 32: 1.0, 64: 0.999, 128: 0.970, 512: 0.337}
    for pairs, accuracy in truth.items():
        assert capacity.additive_accuracy(pairs, 64, 64) == pytest.approx(accuracy, abs=0.035)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 300), st.integers(1, 128), st.integers(1, 128))
def test_accuracy_is_a_share(pairs: int, dim: int, value_dim: int) -> None:
    assert 0 <= capacity.additive_accuracy(pairs, dim, value_dim) <= 1


def test_stored_bits() -> None:
    assert capacity.stored_bits(8, 1.0) == 24
    assert capacity.stored_bits(8, 1 / 8) == 0
    assert capacity.stored_bits(1, 1.0) == 0
    assert 0 < capacity.stored_bits(64, 0.5) < 64 * math.log2(64)


def test_wilson_of_the_article() -> None:
    # 200 trials: 0.975 [0.943, 0.989], 0.380 [0.316, 0.449]
    assert capacity.wilson(195, 200) == pytest.approx((0.943, 0.989), abs=6e-4)
    assert capacity.wilson(76, 200) == pytest.approx((0.316, 0.449), abs=6e-4)
    assert capacity.wilson(200, 200) == pytest.approx((0.981, 1.0), abs=6e-4)
