"""The views by layer, cell, logits and Jacobian, and every architecture over time."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

import seqdiag
from seqdiag.diagnostics.gradflow import GradflowSpec, gradflow
from seqdiag.errors import UsageError
from seqdiag.measure.jacobian import jacobian_profile, recurrent_weights
from seqdiag.measure.layers import find_layers, layer_gradients
from seqdiag.measure.logits import softmax_health
from seqdiag.measure.lyapunov import step_jacobians, trajectory
from seqdiag.models.loading import build_model
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
    one draw lies within a factor of ten of them, as do the medians of RNN and LSTM over five."""
    stacked = {r["subject"]: r for r in rows(
        arch=("attention", "linear-attention", "delta", "mamba"), depth=2, steps_back=(50,),
    )}  # fmt: skip
    medians = {"attention": 7.8e-3, "linear-attention": 7.7e-3, "delta": 2e-2, "mamba": 7e-6}
    for name, median in medians.items():
        assert abs(math.log10(stacked[name]["grad_ratio"] / median)) < 1, name
    bare = rows(arch=("lstm", "rnn", "tcn"), steps_back=(50,), seeds=5)
    for name, median in {"lstm": 2e-11, "rnn": 2e-17}.items():
        ratios = [r["grad_ratio"] for r in bare if r["subject"] == name]
        assert abs(math.log10(statistics.median(ratios) / median)) < 1, name
    for row in (r for r in bare if r["subject"] == "tcn"):
        assert row["grad_norm"] == 0
        assert "exactly zero" in row["note"]


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
    found = layer_gradients(net, x, net, torch.sum)
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


class Awkward(torch.nn.Module):
    """Writes into what its layers gave, and calls one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu_()
        return self.twice(self.twice(x).tanh_())


def test_what_is_written_over_and_called_twice() -> None:
    torch.manual_seed(0)
    model = Awkward().double()
    found = seqdiag.gradflow(model, by="layer", seq_len=7, reduce="sum", d_in=4, batch=2)
    x = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(0)).double()
    first = model.first(x)
    once = model.twice(first.relu())
    loss = model.twice(once.tanh())[:, -1].sum()
    by_hand = torch.autograd.grad(loss, [first, once, model.twice.weight, model.twice.bias])
    assert [r["name"] for r in found.records] == ["first", "twice call 1", "twice call 2"]
    norms = [r["grad_norm"] for r in found.records[:2]]
    assert norms == pytest.approx([g.norm().item() for g in by_hand[:2]])
    weights = math.hypot(by_hand[2].norm().item(), by_hand[3].norm().item())
    assert found.records[1]["weight_grad_norm"] == pytest.approx(weights)


def test_an_embedding_has_the_gradient_of_its_output_and_weights() -> None:
    model: Any = build_model(f"{MODELS}:tiny_lm", {}).double()
    found = seqdiag.gradflow(model, by="layer", seq_len=6, reduce="sum", batch=2)
    tokens = torch.randint(50, (2, 6), generator=torch.Generator().manual_seed(0))
    vectors = model.embedding(tokens)
    loss = model.head(model.core(vectors)[0])[:, -1].sum()
    by_hand = torch.autograd.grad(loss, [vectors, model.embedding.weight])
    row = found.records[0]
    assert row["name"] == "embedding"
    assert row["grad_norm"] == pytest.approx(by_hand[0].norm().item())
    assert row["weight_grad_norm"] == pytest.approx(by_hand[1].norm().item())


class Experts(torch.nn.Module):
    """Two blocks, each a mixture of layers side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([expert(x) for expert in self.experts]).sum(0)


def test_layers_side_by_side_have_no_depth() -> None:
    found = seqdiag.gradflow(Experts(), by="layer", seq_len=6)
    assert len(found.records) == 3
    assert "side by side" in found.records[0]["note"]
    assert "no depth" in found.findings[0]


def test_the_outermost_list_is_the_depth() -> None:
    """The lists inside a block may be longer than the list of blocks."""
    blocks = [torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(5))) for _ in range(2)]
    assert list(find_layers(torch.nn.Sequential(*blocks))) == ["0", "1"]
    assert [r["name"] for r in rows(by="layer", arch=("transformer",), depth=1)] == ["blocks.0"]


@pytest.mark.parametrize(("layout", "shape"), [("tbd", (7, 3, 4)), ("btd", (3, 7, 4))])
def test_cells_find_the_time_axis(layout: Any, shape: tuple[int, ...]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    found = seqdiag.gradflow(model, by="cell", seq_len=7, batch=3, layout=layout, d_in=4)
    assert [r["step"] for r in found.records] == 2 * list(range(7))
    last = [r["grad_norm"] for r in found.records[:7]]
    assert last[:-1] == [0.0] * 6
    assert last[-1] > 0


def test_every_mixer_has_cells() -> None:
    for row in rows(by="cell", arch=tuple(MIXERS), seq_len=5, hidden=8, steps_back=(0,)):
        assert row["step"] in (4, None)


class Rotating(torch.nn.Module):
    """A complex rotation a step, as rotary frequencies are: it neither shrinks nor grows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turn", torch.exp(1j * torch.arange(1, 5) / 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, outputs = torch.zeros_like(x[:, 0]).to(self.turn), []
        for x_t in x.unbind(1):
            h = h * self.turn + x_t
            outputs.append(torch.view_as_real(h).flatten(1))
        return torch.stack(outputs, 1)


def test_complex_buffers_keep_their_imaginary_part() -> None:
    ratios = [r["grad_ratio"] for r in seqdiag.gradflow(Rotating(), seq_len=9, d_in=4).records]
    turn = Rotating().turn.to(torch.complex128)
    x = torch.zeros(1, 9, 4, dtype=torch.float64, requires_grad=True)
    h = sum(x[:, t] * turn ** (8 - t) for t in range(9))
    direction = torch.randn(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = (torch.view_as_real(h).flatten(1) * direction / direction.norm()).sum()
    norms = torch.autograd.grad(loss, x)[0][0].norm(dim=-1)
    assert ratios == pytest.approx((norms / norms[-1]).tolist(), rel=1e-6)


def test_widths_that_are_too_narrow_are_said() -> None:
    for name in ("retention", "attention", "mamba2", "gla"):
        with pytest.raises(UsageError, match="too narrow"):
            rows(arch=(name,), hidden=1)


@pytest.mark.parametrize("by", ["jacobian", "logits"])
def test_views_of_float64_refuse_another_dtype(by: Any) -> None:
    with pytest.raises(UsageError, match="float64"):
        rows(arch=("rnn",), by=by, dtype="float16")
