"""Published figures to the printed digit, and the views."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import seqdiag
from seqdiag.diagnostics.gradflow import GradflowSpec, gradflow
from seqdiag.errors import UnavailableError, UsageError


def rows(**spec: Any) -> list[dict[str, Any]]:
    return gradflow(GradflowSpec(device="cpu", **spec)).run().records


def at(records: list[dict[str, Any]], subject: str, lag: int) -> dict[str, Any]:
    (row,) = [r for r in records if r["subject"] == subject and r["steps_back"] == lag]
    return row


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_article_gradients(dtype: str) -> None:
    """The printed output of "Sequence models before transformers": seed 0, T = 60, H = 32."""
    records = rows(dtype=dtype)
    printed = {
        "rnn": {0: "2.084e+00", 49: "5.540e-19", 50: "2.477e-19"},
        "lstm": {0: "6.649e-01", 49: "7.073e-12", 50: "5.431e-12"},
        "gru": {0: "1.309e+00", 49: "6.198e-11", 50: "7.950e-11"},
    }
    for subject, figures in printed.items():
        for lag, figure in figures.items():
            assert f"{at(records, subject, lag)['grad_norm']:.3e}" == figure
    assert len(records) == 180
    assert {r["step"] + r["steps_back"] for r in records} == {59}


def test_article_multipliers() -> None:
    records = rows(arch=("linear",), seq_len=201, steps_back=(50, 200))
    printed = {
        "linear(0.9)": ("5.15e-03", "7.06e-10"),
        "linear(0.99)": ("6.05e-01", "1.34e-01"),
        "linear(1)": ("1.00e+00", "1.00e+00"),
        "linear(1.1)": ("1.17e+02", "1.90e+08"),
    }
    for subject, (near, far) in printed.items():
        assert f"{at(records, subject, 50)['grad_ratio']:.2e}" == near
        assert f"{at(records, subject, 200)['grad_ratio']:.2e}" == far
    assert at(records, "linear(1)", 200)["grad_ratio"] == 1.0


def test_underflow_is_said() -> None:
    """Of 200 steps of the RNN, 51 underflow in float32 and none in float64."""
    low = rows(arch=("rnn",), seq_len=200, dtype="float32")
    lost = [r for r in low if r["grad_norm"] == 0]
    assert len(lost) == 51
    assert all("51 of 200 steps underflow to zero in float32" in r["note"] for r in lost)
    assert all(r["grad_log10_norm"] < -44 for r in lost)
    thin = [r for r in low if "subnormal" in r["note"]]
    assert thin and all(0 < r["grad_norm"] < 1.2e-38 for r in thin)
    high = rows(arch=("rnn",), seq_len=200)
    assert all(r["grad_norm"] > 0 and not r["note"] for r in high)


def test_beyond_float64_the_logarithm_goes_on() -> None:
    far = at(rows(arch=("rnn",), seq_len=2000, steps_back=(1999,)), "rnn", 1999)
    assert far["grad_norm"] == 0
    assert far["grad_log10_norm"] < -500
    assert "underflow to zero in float64" in far["note"]


def test_summary_over_seeds() -> None:
    """Medians over 20 draws; at the slope alone 1e-3 is reached after 9, 14 and 14 steps."""
    diagnosis = gradflow(GradflowSpec(by="summary", seeds=20, device="cpu"))
    result = diagnosis.run()
    by_subject = {r["subject"]: r for r in result.records}
    for subject, slope_steps, measured in (("rnn", 9, 8), ("lstm", 14, 12), ("gru", 14, 13)):
        row: dict[str, Any] = by_subject[subject]
        assert row["horizon_steps"] == measured
        assert row["horizon_steps_p05"] <= measured <= row["horizon_steps_p95"]
        assert round(math.log(1e-3) / math.log(row["decay_per_step_ratio"])) == slope_steps
        assert row["reaches_start"] is False
        assert row["lyapunov_per_step_p05"] < row["lyapunov_per_step"] < 0
    assert "9 (rnn), 14 (lstm), 14 (gru)" in " ".join(result.findings)


def test_summary_of_one_seed() -> None:
    (row,) = rows(arch=("rnn",), by="summary")
    assert row["decay_per_step_ratio"] == pytest.approx(0.42, abs=0.005)
    assert row["lyapunov_per_step"] == pytest.approx(-0.824, abs=2e-3)
    assert row["horizon_steps"] == 7
    times = rows(arch=("rnn",))
    assert max(r["steps_back"] for r in times if r["grad_ratio"] >= 1e-3) == 7


@pytest.mark.parametrize(("bias", "factor"), [(1.0, 0.80), (2.0, 0.935)])
def test_forget_bias_moves_the_horizon(bias: float, factor: float) -> None:
    """sigmoid(b) per step is the floor (0.73, 0.88); recurrence through the gates adds to it."""
    spread = rows(arch=("lstm",), by="summary", seeds=8, seq_len=200, forget_bias=bias)[0]
    assert spread["decay_per_step_ratio"] == pytest.approx(factor, abs=0.02)
    assert spread["decay_per_step_ratio"] > 1 / (1 + math.exp(-bias))


@pytest.mark.parametrize(("nonlinearity", "factor"), [("tanh", 0.677), ("relu", 0.99)])
def test_identity_initialisation(nonlinearity: Any, factor: float) -> None:
    """All eigenvalues are exactly one, and with tanh the gradient still vanishes."""
    (row,) = rows(arch=("rnn",), by="summary", init="identity", nonlinearity=nonlinearity)
    assert row["decay_per_step_ratio"] == pytest.approx(factor, abs=0.01)


def test_linear_summary() -> None:
    records = rows(arch=("linear",), by="summary", seq_len=201, multiplier=(0.9, 1.0))
    fast, whole = records
    assert fast["horizon_steps"] == 65
    assert fast["lyapunov_per_step"] == pytest.approx(math.log(0.9))
    assert whole["horizon_steps"] == 200
    assert whole["reaches_start"] is True


def test_seeds_of_the_time_view_are_rows() -> None:
    records = rows(arch=("gru",), seeds=3, seed=4, steps_back=(0, 7))
    assert [(r["seed"], r["steps_back"]) for r in records] == [
        (seed, lag) for seed in (4, 5, 6) for lag in (7, 0)
    ]
    alone = rows(arch=("gru",), seed=5, steps_back=(7,))[0]["grad_norm"]
    assert records[2]["grad_norm"] == pytest.approx(alone, rel=1e-12)


def test_batch_is_one_norm() -> None:
    one = rows(arch=("linear",), multiplier=(1.0,), seq_len=5, batch=1)
    four = rows(arch=("linear",), multiplier=(1.0,), seq_len=5, batch=4)
    assert four[0]["grad_norm"] == pytest.approx(2 * one[0]["grad_norm"])


def test_overflow_is_said_and_the_logarithm_stays() -> None:
    far = at(rows(arch=("linear",), multiplier=(10.0,), seq_len=400), "linear(10)", 399)
    assert far["grad_norm"] is None
    assert far["status"] == "nonfinite"
    assert far["grad_log10_norm"] == pytest.approx(399 + math.log10(32) / 2)


MODELS = "tests/data/models.py"


def test_tokens_and_floats_of_a_users_module() -> None:
    assert rows(model=f"{MODELS}:tiny_lm")[0]["grad_norm"] > 0
    whole = rows(model=f"{MODELS}:RunningSum")
    assert {r["grad_ratio"] for r in whole} == {1.0}
    blind = rows(model=f"{MODELS}:CausalConv", model_arg=("kernel=3",))
    seen = [r["steps_back"] for r in blind if r["grad_norm"] > 0]
    assert sorted(seen) == [0, 1, 2]
    assert all("exactly zero" in r["note"] for r in blind if r["steps_back"] > 2)


def test_a_users_module_below_the_range_of_float64() -> None:
    far = at(rows(model=f"{MODELS}:Decaying", seq_len=400), "Decaying", 399)
    assert far["grad_norm"] == 0
    assert far["grad_log10_norm"] == pytest.approx(-399)
    low = at(rows(model=f"{MODELS}:Decaying", seq_len=100, dtype="float32"), "Decaying", 99)
    assert low["grad_norm"] == 0
    assert "underflow to zero in float32" in low["note"]


def test_a_gradient_that_is_not_a_number_is_no_number() -> None:
    records = rows(model=f"{MODELS}:NotANumber")
    assert {r["status"] for r in records} == {"nonfinite"}
    assert {r["grad_norm"] for r in records} == {None}
    (summary,) = rows(model=f"{MODELS}:NotANumber", by="summary")
    assert summary["status"] == "nonfinite"
    assert summary["horizon_steps"] is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"arch": ("foo",)}, "--arch"),
        ({"arch": ("rnn",), "model": "m.py:f"}, "not of a module of your own"),
        ({"dtype": "int8"}, "--dtype"),
        ({"seq_len": 1, "steps_back": (5,)}, "--steps-back: 5"),
        ({"horizon_ratio": 0.0}, "--horizon-ratio"),
        ({"horizon_ratio": 1.5}, "--horizon-ratio"),
        ({"device": "tpu"}, "--device"),
        ({"forget_bias": 1.0, "arch": ("rnn",)}, "--forget-bias"),
        ({"model": f"{MODELS}:RunningSum", "model_arg": ("width",)}, "--model-arg"),
    ],
)
def test_options_that_do_not_fit(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        gradflow(GradflowSpec(**spec)).run()
    assert message in caught.value.message


def test_a_padded_batch_is_measured_from_each_last_valid_step() -> None:
    torch.manual_seed(0)
    model = nn.GRU(8, 8, batch_first=True).double()
    lengths = (9, 4, 12)
    result = seqdiag.gradflow(model, lengths=lengths, seq_len=15, reduce="sum", d_in=8)
    x = torch.randn(3, 15, 8, generator=torch.Generator().manual_seed(0)).double()
    for index, length in enumerate(lengths):
        alone = x[index : index + 1, :length].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(alone)[0][:, -1].sum(), alone)
        mine = [row for row in result.records if row["subject"] == f"GRU[{index}]"]
        assert [row["steps_back"] for row in mine] == list(range(length - 1, -1, -1))
        norms = gradient[0].norm(dim=-1)
        assert [row["grad_norm"] for row in mine] == pytest.approx(norms.tolist(), rel=1e-9)
        assert [row["grad_ratio"] for row in mine] == pytest.approx((norms / norms[-1]).tolist())


def test_padding_is_seen_by_what_looks_ahead() -> None:
    torch.manual_seed(0)
    model = nn.GRU(8, 8, batch_first=True, bidirectional=True).double()
    padded = seqdiag.gradflow(model, lengths=(5,), seq_len=9, d_in=8, reduce="sum").records
    x = torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(0)).double()
    x[:, 5:] = 0
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(model(x)[0][:, 4].sum(), x)
    expected = gradient[0, :5].norm(dim=-1).tolist()
    assert [row["grad_norm"] for row in padded] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lengths": (9, 16)}, "16 is beyond --seq-len 15"),
        ({"lengths": (9, 4), "batch": 3}, "2 of them do not make --batch 3"),
        ({"lengths": (9,), "by": "layer"}, "--by time and summary"),
        ({"lengths": (9, 4), "steps_back": (9,)}, "needs a length above it"),
    ],
)
def test_lengths_that_do_not_fit(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        seqdiag.gradflow(arch=("rnn",), seq_len=15, **options)


@pytest.mark.parametrize("reduce", ["sum", "random"])
def test_seeds_side_by_side_are_the_seeds_one_by_one(reduce: Any) -> None:
    options: dict[str, Any] = {"arch": ("rnn", "lstm", "gru"), "seq_len": 90, "reduce": reduce}
    together = rows(seeds=35, batch=2, **options)
    alone = rows(seed=34, batch=2, **options)
    mine = [row for row in together if row["seed"] == 34]
    assert [row["subject"] for row in mine] == [row["subject"] for row in alone]
    for one, other in zip(mine, alone, strict=True):
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-12, abs=0)
        assert one["grad_log10_norm"] == pytest.approx(other["grad_log10_norm"], rel=1e-12)


def test_seeds_below_the_range_are_measured_one_by_one() -> None:
    records = rows(arch=("rnn",), seeds=2, seq_len=1200, steps_back=(1199,))
    assert all(row["grad_norm"] == 0 and row["grad_log10_norm"] < -320 for row in records)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.GRU(8, 8), True),
        (nn.TransformerEncoderLayer(8, 2, 16), True),
        (nn.GRU(8, 8, batch_first=True), False),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), False),
    ],
    ids=str,
)
def test_a_module_that_is_time_first_is_suspected(module: nn.Module, said: bool) -> None:
    pick = "0" if isinstance(module, nn.GRU) else None
    found = seqdiag.gradflow(module, seq_len=6, d_in=8, pick=pick)
    assert all(("--layout tbd" in str(row["note"])) == said for row in found.records)


@pytest.mark.parametrize("arch", ["attention", "sliding-attention", "transformer"])
@pytest.mark.parametrize("impl", ["naive", "blocked", "sdpa-math"])
def test_gradients_do_not_depend_on_the_attention_that_ran(arch: str, impl: str) -> None:
    def norms(name: str | None) -> list[float]:
        spec = GradflowSpec(arch=(arch,), seq_len=20, attn_impl=name)
        return [row["grad_norm"] for row in gradflow(spec).run().records]  # type: ignore[misc]

    assert norms(impl) == pytest.approx(norms(None), rel=1e-9)


def test_an_attention_that_cannot_run_here_is_no_bug() -> None:
    if torch.cuda.is_available():
        pytest.skip("it can run here")
    with pytest.raises(UnavailableError, match="--attn-impl: attention sdpa-cudnn"):
        gradflow(GradflowSpec(arch=("attention",), attn_impl="sdpa-cudnn")).run()
    for spec, message in (
        (GradflowSpec(arch=("gru",), attn_impl="naive"), "is of attention, which is not among"),
        (GradflowSpec(arch=("attention",), attn_impl="nave"), "unknown name 'nave'"),
    ):
        with pytest.raises(UsageError, match=message):
            gradflow(spec)
