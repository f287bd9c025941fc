"""The Python API and the assertions for users' own test suites."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import seqdiag
from seqdiag.errors import UsageError
from seqdiag.models.registry import build_mixer
from seqdiag.testing import assert_gradient_reaches, assert_step_matches_forward


def test_gradflow_of_a_module_leaves_it_as_it_was() -> None:
    module = nn.GRU(6, 6, batch_first=True).train()
    before = {name: p.clone() for name, p in module.state_dict().items()}
    result = seqdiag.gradflow(module, seq_len=12, after_steps=3, dtype="float32")
    assert len(result.records) == 12
    assert {r["subject"] for r in result.records} == {"GRU"}
    assert module.training
    assert all(torch.equal(p, before[name]) for name, p in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())


def test_gradflow_is_the_command() -> None:
    result = seqdiag.gradflow(arch=["rnn"], steps_back=[49])
    assert result.frame()["grad_norm"][0] == pytest.approx(5.539963e-19, rel=1e-6)
    assert result.command == "gradflow"


def test_kvcache_is_the_command() -> None:
    result = seqdiag.kvcache("llama-3.1-8b", ctx=[32768])
    assert result.frame()["total_bytes"].tolist() == [4096 * 2**20]
    with pytest.raises(AttributeError, match="no attribute 'recal'"):
        seqdiag.recal  # noqa: B018


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_module_is_measured_without_the_compiler() -> None:
    plain = nn.GRU(6, 6, batch_first=True)
    compiled = seqdiag.gradflow(torch.compile(plain), seq_len=9)
    expected = seqdiag.gradflow(plain, seq_len=9)
    for ours, theirs in zip(compiled.records, expected.records, strict=True):
        assert ours["grad_norm"] == theirs["grad_norm"]
        assert "without torch.compile" in str(ours["note"])


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        x += 1
        return self.net(x).cumsum(1)


def test_in_place_operations() -> None:
    module = InPlace()
    (row,) = seqdiag.gradflow(module, seq_len=5, steps_back=[2], reduce="sum").records
    x = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(0)).double()
    leaf = x.requires_grad_()
    exact = InPlace().double()
    exact.load_state_dict(module.state_dict())
    (gradient,) = torch.autograd.grad(exact(leaf.clone())[:, -1].sum(), leaf)
    assert row["grad_norm"] == pytest.approx(gradient[0, 2].norm().item())


def test_gradient_reaches() -> None:
    assert_gradient_reaches(nn.Sequential(nn.Identity(), Cumulative()), steps_back=50)
    with pytest.raises(AssertionError) as caught:
        assert_gradient_reaches(nn.GRU(8, 8, batch_first=True), steps_back=50)
    assert "GRU: 50 steps back the gradient is" in str(caught.value)
    assert "it holds up to" in str(caught.value)
    with pytest.raises(AssertionError, match="no gradient reaches this step"):
        assert_gradient_reaches(nn.Linear(8, 8), steps_back=3)


class Cumulative(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


class Forgetful(nn.Module):
    """Its step loses the state at step 7."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def init_state(self, batch: int) -> Tensor:
        self.count = 0
        return torch.zeros(batch, 4)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        self.count += 1
        state = x_t if self.count == 8 else state + x_t
        return state, state

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


def test_step_matches_forward() -> None:
    torch.manual_seed(0)
    assert_step_matches_forward(build_mixer("mamba", 16), width=16)
    with pytest.raises(AssertionError, match="differ from step 7 on"):
        assert_step_matches_forward(Forgetful(), width=4)
    with pytest.raises(UsageError, match="has no init_state and no step"):
        assert_step_matches_forward(nn.Linear(4, 4), width=4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"by": "foo"}, "--by: 'foo' is not one of time, summary"),
        ({"steps_back": [-1]}, "a whole number from 0"),
        ({"steps_back": 5}, "is not a list"),
        ({"steps_back": []}, "is not a list"),
        ({"lengths": [0]}, "a whole number from 1"),
        ({"seq_len": 2.5}, "--seq-len: 2.5"),
        ({"seeds": 0}, "--seeds: 0"),
        ({"seed": 2**70}, "--seed"),
        ({"hidden": True}, "--hidden: True"),
        ({"reduce": "max"}, "sum, random"),
        ({"arch": "rnn"}, "is not a list, each text"),
        ({"lr": float("nan")}, "--lr: nan is not a number"),
        ({"forget_bias": "2"}, "a number"),
        ({"train_mode": 1}, "True or False"),
    ],
)
def test_options_from_python_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        seqdiag.gradflow(**{"seq_len": 9, **options})
    assert words in caught.value.message


def test_what_is_no_module_is_refused() -> None:
    for given in (3, nn.Linear, lambda x: x):
        with pytest.raises(UsageError, match="is not a torch"):
            seqdiag.gradflow(given)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--ctx"):
        seqdiag.kvcache(ctx=[0])


def test_an_exploding_gradient_reaches() -> None:
    class Growing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h, out = torch.zeros_like(x[:, 0]), []
            for x_t in x.unbind(1):
                h = 1e4 * h + x_t
                out.append(h)
            return torch.stack(out, 1)

    assert_gradient_reaches(Growing(), steps_back=100)
    with pytest.raises(UsageError, match="min_ratio"):
        assert_gradient_reaches(Growing(), steps_back=3, min_ratio=float("nan"))
