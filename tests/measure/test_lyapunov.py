from __future__ import annotations

import math

import pytest
import torch

from seqdiag.measure.lyapunov import leading_exponent, step_jacobians
from seqdiag.models.recurrent import GRU, LSTM, RNN, LinearRecurrence


def test_linear_recurrence_is_the_logarithm_of_its_multiplier() -> None:
    x = torch.randn(2, 30, 5, dtype=torch.float64)
    for a in (0.5, 1.0, 1.3):
        assert leading_exponent(LinearRecurrence(5, a).double(), x) == pytest.approx(
            math.log(a), abs=1e-12
        )


def test_rnn_jacobian_is_diag_one_minus_h_squared_times_w() -> None:
    torch.manual_seed(0)
    layer = RNN(6).double()
    x, before = torch.randn(1, 6, dtype=torch.float64), torch.randn(1, 6, dtype=torch.float64)
    h = layer.step(x, (before,))[0][0]
    expected = torch.diag(1 - h**2) @ layer.core.weight_hh_l0
    torch.testing.assert_close(step_jacobians(layer, x, before)[0], expected)


@pytest.mark.parametrize("layer_type", [RNN, LSTM, GRU])
def test_exponent_is_the_growth_of_the_product(layer_type: type) -> None:
    """The QR exponent tends to log sigma_max of the whole product over T."""
    torch.manual_seed(0)
    layer = layer_type(5).double()
    x = torch.randn(1, 400, 5, dtype=torch.float64)
    state = layer.init_state(1)
    log_growth, product = 0.0, torch.eye(5 * layer.n_states, dtype=torch.float64)
    for x_t in x.unbind(1):
        packed = torch.cat(state, dim=1)
        product = step_jacobians(layer, x_t, packed)[0] @ product
        scale = product.norm()
        log_growth, product = log_growth + scale.log().item(), product / scale
        state = layer.step(x_t, state)[1]
    log_growth += torch.linalg.matrix_norm(product, 2).log().item()
    assert leading_exponent(layer, x) == pytest.approx(log_growth / 400, abs=0.02)


def test_article_draw() -> None:
    """Seed 0, T = 60, H = 32: -0.824 per step with the Jacobian of every step, h_0 = 0."""
    torch.manual_seed(0)
    x = torch.randn(1, 60, 32)
    assert leading_exponent(RNN(32).double(), x.double()) == pytest.approx(-0.824, abs=2e-3)


def test_dead_units_do_not_decide() -> None:
    torch.manual_seed(0)
    layer = RNN(6, "relu").double()
    with torch.no_grad():
        layer.core.weight_hh_l0.copy_(torch.eye(6))
        layer.core.bias_ih_l0.copy_(torch.tensor([-99.0, 0, 0, 0, 0, 9]))
    x = torch.randn(1, 40, 6, dtype=torch.float64)
    assert leading_exponent(layer, x) == pytest.approx(0.0, abs=1e-12)
