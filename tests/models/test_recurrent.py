"""Both forms of every layer are one function, and that of torch.nn."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from seqdiag.errors import UsageError
from seqdiag.models.recurrent import GRU, LSTM, RNN, LinearRecurrence, Recurrent, initialise
from seqdiag.models.subjects import SubjectOptions, check_architectures, draw_subjects

LAYERS = {
    "rnn": lambda: RNN(7),
    "relu": lambda: RNN(7, "relu"),
    "lstm": lambda: LSTM(7),
    "gru": lambda: GRU(7),
    "linear": lambda: LinearRecurrence(7, -0.9),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("steps", [1, 2, 7, 65])
def test_scan_is_step_by_step(name: str, steps: int) -> None:
    torch.manual_seed(0)
    layer: Recurrent = LAYERS[name]().double()
    x = torch.randn(3, steps, 7, dtype=torch.float64)
    start = tuple(torch.randn_like(part) for part in layer.init_state(3))
    y, end = layer.scan(x, start)
    state, outputs = start, []
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        outputs.append(y_t)
    torch.testing.assert_close(y, torch.stack(outputs, 1), rtol=1e-10, atol=1e-12)
    for part, stepped in zip(end, state, strict=True):
        torch.testing.assert_close(part, stepped, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_split_at_an_odd_point(name: str) -> None:
    torch.manual_seed(0)
    layer: Recurrent = LAYERS[name]().double()
    x = torch.randn(2, 21, 7, dtype=torch.float64)
    first, state = layer.scan(x[:, :13], layer.init_state(2))
    second, _ = layer.scan(x[:, 13:], state)
    torch.testing.assert_close(layer(x), torch.cat([first, second], 1), rtol=1e-12, atol=1e-14)


def test_a_subject_does_not_depend_on_the_others() -> None:
    """The articles' stream: inputs, RNN, LSTM, GRU; any other layer right after the inputs."""
    torch.manual_seed(5)
    x = torch.randn(2, 9, 4)
    rnn, _, gru = nn.RNN(4, 4), nn.LSTM(4, 4), nn.GRU(4, 4)
    before = torch.random.get_rng_state()
    drawn, layers = draw_subjects(("gru", "linear", "rnn"), SubjectOptions(4), 2, 9, 5)
    assert torch.equal(torch.random.get_rng_state(), before), "the global stream is left alone"
    assert torch.equal(drawn, x)
    assert list(layers) == ["gru", "linear(0.9)", "linear(0.99)", "linear(1)", "linear(1.1)", "rnn"]
    for name, module in (("gru", gru), ("rnn", rnn)):
        for ours, theirs in zip(layers[name].parameters(), module.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    alone = draw_subjects(("mamba",), SubjectOptions(8), 2, 9, 5)[1]["mamba"].state_dict()
    beside = draw_subjects(("lstm", "mamba"), SubjectOptions(8), 2, 9, 5)[1]["mamba"].state_dict()
    assert all(torch.equal(alone[name], beside[name]) for name in alone)


def test_forget_bias_is_effective_and_leaves_the_rest() -> None:
    plain = draw_subjects(("lstm",), SubjectOptions(4), 1, 2, 0)[1]["lstm"].core
    biased = draw_subjects(("lstm",), SubjectOptions(4, forget_bias=2.0), 1, 2, 0)[1]["lstm"].core
    both = biased.bias_ih_l0 + biased.bias_hh_l0
    assert torch.equal(both[4:8], torch.full((4,), 2.0))
    for part in (slice(0, 4), slice(8, 16)):
        assert torch.equal(biased.bias_ih_l0[part], plain.bias_ih_l0[part])
        assert torch.equal(biased.bias_hh_l0[part], plain.bias_hh_l0[part])
    assert torch.equal(biased.weight_hh_l0, plain.weight_hh_l0)


@pytest.mark.parametrize("layer_type", [RNN, LSTM, GRU])
def test_initialise(layer_type: type) -> None:
    torch.manual_seed(0)
    layer = layer_type(5)
    bias = layer.core.bias_ih_l0.clone()
    initialise(layer, "orthogonal")
    for block in layer.core.weight_hh_l0.split(5):
        torch.testing.assert_close(block @ block.t(), torch.eye(5), rtol=0, atol=1e-5)
    assert torch.equal(layer.core.bias_ih_l0, bias)
    initialise(layer, "identity")
    for block in layer.core.weight_hh_l0.split(5):
        assert torch.equal(block, torch.eye(5))
    assert layer.core.bias_hh_l0.abs().max() == 0


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (("foo",), {}),
        (("rnn",), {"forget_bias": 1.0}),
        (("lstm",), {"nonlinearity": "relu"}),
    ],
)
def test_options_that_fit_no_subject_are_refused(
    names: tuple[str, ...], options: dict[str, object]
) -> None:
    with pytest.raises(UsageError):
        check_architectures(names, SubjectOptions(4, **options))  # type: ignore[arg-type]


def test_gradient_of_the_article() -> None:
    """d h_T / d h_k is the product of diag(1 - h_j^2) W_hh, numerator layout (Pascanu 2013)."""
    torch.manual_seed(0)
    x = torch.randn(1, 60, 32).double()
    layer = RNN(32).double()
    h = layer(x)[0]
    row = torch.ones(32, dtype=torch.float64)
    for j in range(59, 10, -1):
        row = (row * (1 - h[j] ** 2)) @ layer.core.weight_hh_l0
    gradient = (row * (1 - h[10] ** 2)) @ layer.core.weight_ih_l0
    assert math.isclose(gradient.norm().item(), 5.539963e-19, rel_tol=1e-6)
