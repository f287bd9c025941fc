"""The views by layer, cell, logits and Jacobian, and every architecture over time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from seqdiag.diagnostics.gradflow import GradflowSpec, gradflow
from seqdiag.errors import UsageError
from seqdiag.measure.jacobian import jacobian_profile, recurrent_weights
from seqdiag.measure.layers import find_layers, layer_gradients
from seqdiag.measure.logits import softmax_health
from seqdiag.measure.lyapunov import step_jacobians, trajectory
from seqdiag.models.recurrent import RNN
from seqdiag.models.registry import MIXERS
from seqdiag.models.stack import architecture_names
from seqdiag.report.result import Result

MODELS = "tests/data/models.py"


def result(**spec: Any) -> Result:
    return gradflow(GradflowSpec(device="cpu", **spec)).run()


def rows(**spec: Any) -> list[dict[str, Any]]:
    return result(**spec).records


@pytest.mark.parametrize("name", [*MIXERS, *architecture_names()])
def test_every_architecture_over_time(name: str) -> None:
    records = rows(arch=(name,), seq_len=20, hidden=16)
    assert [r["steps_back"] for r in records] == list(range(19, -1, -1))
    assert {r["status"] for r in records} == {"ok"}
    assert records[-1]["grad_norm"] > 0


def test_orders_of_magnitude_between_architectures() -> None:
    """Gradient 50 steps back against the last step, at init, width 32: medians over 20 draws of
    pre-LN stacks of two are 8e-3 (attention), 8e-3 (linear attention), 2e-2 (delta), 7e-6 (Mamba);
    one draw lies within a factor of ten of them, the RNN's and the LSTM's within a hundred."""
    stacked = {r["subject"]: r for r in rows(
        arch=("attention", "linear-attention", "delta", "mamba"), depth=2, steps_back=(50,),
    )}  # fmt: skip
    medians = {"attention": 7.8e-3, "linear-attention": 7.7e-3, "delta": 2e-2, "mamba": 7e-6}
    for name, median in medians.items():
        assert abs(math.log10(stacked[name]["grad_ratio"] / median)) < 1, name
    bare = {r["subject"]: r for r in rows(arch=("lstm", "rnn", "tcn"), steps_back=(50,))}
    assert abs(math.log10(bare["lstm"]["grad_ratio"] / 2e-11)) < 2
    assert abs(math.log10(bare["rnn"]["grad_ratio"] / 2e-17)) < 2
    assert bare["tcn"]["grad_norm"] == 0
    assert "exactly zero" in bare["tcn"]["note"]


def test_a_random_direction_does_not_cancel() -> None:
    """The sum over the features of a last LayerNorm is constant: its gradient is rounding."""
    cancelled = rows(arch=("transformer",), reduce="sum", seq_len=10)
    assert max(r["grad_norm"] for r in cancelled) < 1e-12
    seen = rows(arch=("transformer",), seq_len=10)
    assert min(r["grad_norm"] for r in seen) > 1e-4


@pytest.mark.parametrize("norm", ["pre", "post", "peri", "deepnorm"])
def test_layers_at_init(norm: Any) -> None:
    """No layout of norms vanishes at init: Xavier, 48 layers, ratio of the first to the last."""
    records = rows(by="layer", arch=("transformer",), depth=48, norm=norm)
    assert [r["layer"] for r in records] == list(range(48))
    assert records[-1]["grad_ratio"] == 1.0
    assert 0.2 < records[0]["grad_ratio"] < 20
    assert all(r["weight_grad_norm"] > 0 for r in records)


def test_post_norm_vanishes_in_the_first_steps_without_warm_up() -> None:
    """Xiong 2020: it is these steps that fail, not the initialisation."""
    settings: dict[str, Any] = {"by": "layer", "arch": ("transformer",), "depth": 24}
    post = result(**settings, norm="post", after_steps=20, lr=1e-3)
    pre = result(**settings, norm="pre", after_steps=20, lr=1e-3)
    assert post.records[0]["grad_ratio"] < 1e-2
    assert pre.records[0]["grad_ratio"] > 0.5
    assert "half right" in " ".join(post.findings)


def test_layer_gradients_are_autograds() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
    ).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    found = layer_gradients(net, x, find_layers(net), torch.sum)
    assert found.names == ["0", "1", "2"]
    first = net[0](x)
    second = net[1](first)
    loss = net[2](second)[:, -1].sum()
    by_hand = torch.autograd.grad(loss, [first, second, net[0].weight, net[0].bias])
    torch.testing.assert_close(found.outputs[0], by_hand[0])
    torch.testing.assert_close(found.outputs[1], by_hand[1])
    both = math.hypot(by_hand[2].norm().item(), by_hand[3].norm().item())
    assert found.weights[0] == pytest.approx(both)


def test_layers_of_a_users_module() -> None:
    names = [r["name"] for r in rows(by="layer", model=f"{MODELS}:tiny_lm")]
    assert names == ["embedding", "core", "head"]


def test_cells_are_layers_by_steps(tmp_path: Path) -> None:
    layers = rows(by="layer", arch=("transformer",), depth=3, seq_len=7)
    cells = rows(by="cell", arch=("transformer",), depth=3, seq_len=7)
    assert len(cells) == 3 * 7
    for layer in layers:
        own = [c["grad_norm"] for c in cells if c["layer"] == layer["layer"]]
        assert math.hypot(*own) == pytest.approx(layer["grad_norm"])
    some = rows(by="cell", arch=("transformer",), depth=3, seq_len=7, steps_back=(0, 6))
    assert len(some) == 3 * 2


def test_logits() -> None:
    """T = 64, 64 x 64 rows: traces 0.91, 0.59, 0.27, 0.026, 4.5e-4 unscaled, 0.97 scaled."""
    records = rows(by="logits", seq_len=64)
    raw = [r for r in records if not r["scaled"]]
    for row, trace in zip(raw, (0.91, 0.59, 0.27, 0.026, 4.5e-4), strict=True):
        assert row["logit_variance"] == pytest.approx(row["d_k"], rel=0.05)
        assert row["softmax_jacobian_trace"] == pytest.approx(trace, rel=0.35)
    for row in records[len(raw) :]:
        assert row["logit_variance"] == pytest.approx(1, rel=0.05)
        assert row["softmax_jacobian_trace"] == pytest.approx(0.97, abs=0.01)
    assert raw[-1]["grad_norm"] < 1e-2 * raw[0]["grad_norm"]


def test_softmax_health_is_the_jacobian_of_autograd() -> None:
    health = softmax_health(8, scaled=True, keys=5, seed=0)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(64, 5, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    logits = ((q @ k.transpose(1, 2)) / 8**0.5).requires_grad_()
    direction = torch.randn(64, 5, 8, generator=generator, dtype=torch.float64)
    direction = direction / direction.norm(dim=-1, keepdim=True)
    (gradient,) = torch.autograd.grad((torch.softmax(logits, -1) @ v * direction).sum(), logits)
    assert health.grad_norm == pytest.approx(gradient.norm(dim=-1).median().item())


def test_jacobian_of_the_article() -> None:
    """Spectral radius 0.578 and sigma_max 1.06 predict nothing; the exponent -0.824 does."""
    found = result(arch=("rnn",), by="jacobian")
    row = found.records[0]
    assert row["spectral_radius"] == pytest.approx(0.578, abs=1e-3)
    assert row["weight_sigma_max"] == pytest.approx(1.06, abs=5e-3)
    assert row["lyapunov_per_step"] == pytest.approx(-0.824, abs=2e-3)
    assert row["decay_per_step_ratio"] == pytest.approx(0.42, abs=5e-3)
    assert all(r["sigma_max_log10"] <= r["bound_log10"] for r in found.records)
    assert "cannot tell" in found.findings[0]


def test_jacobian_profile_is_the_product() -> None:
    torch.manual_seed(0)
    layer = RNN(4).double()
    x = torch.randn(1, 9, 4, dtype=torch.float64)
    profile = jacobian_profile(layer, x)
    jacobians = step_jacobians(layer, x[0], trajectory(layer, x[0]))
    product = torch.eye(4, dtype=torch.float64)
    for index, jacobian in enumerate(reversed(jacobians.unbind(0))):
        product = product @ jacobian
        values = torch.linalg.svdvals(product)
        assert profile.largest[index] == pytest.approx(values[0].log10().item(), abs=1e-9)
        assert profile.smallest[index] == pytest.approx(values[-1].log10().item(), abs=1e-6)
    assert recurrent_weights(layer).spectral_radius is not None


def test_jacobian_stays_in_range() -> None:
    records = rows(arch=("rnn", "linear"), by="jacobian", seq_len=1500, multiplier=(1e-3,))
    far = [r for r in records if r["steps_back"] == 1500]
    assert far[0]["sigma_max_log10"] < -400
    assert far[1]["sigma_max_log10"] == pytest.approx(-4500)
    assert far[1]["sigma_min_log10"] == pytest.approx(-4500)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"by": "jacobian", "arch": ("mamba",)}, "--jacobian: mamba"),
        ({"pattern": "mmx"}, "--pattern"),
        ({"pattern": "m", "model": "x.py:y"}, "not of a module of your own"),
        ({"arch": ("linear",), "depth": 3}, "--depth"),
        ({"arch": ("mamba",), "init": "orthogonal"}, "--init"),
        ({"lr": 0.0}, "--lr"),
    ],
)
def test_options_that_do_not_fit(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        result(**spec)
    assert message in caught.value.message


def test_patterns_and_depth() -> None:
    (last,) = rows(pattern="mma", seq_len=9, steps_back=(0,))
    assert last["subject"] == "mma"
    records = rows(by="layer", pattern="mma", depth=6, seq_len=9)
    assert len(records) == 6
