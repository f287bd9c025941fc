"""`receptive-field` against modules whose answer is known."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import seqdiag
from seqdiag.errors import UsageError
from seqdiag.models.loading import build_model
from seqdiag.models.registry import MIXERS
from seqdiag.models.stack import architecture_names
from seqdiag.testing import assert_causal, assert_receptive_field

_SPEC = importlib.util.spec_from_file_location("zoo", Path(__file__).parent.parent / "data/zoo.py")
assert _SPEC is not None and _SPEC.loader is not None
zoo = importlib.util.module_from_spec(_SPEC)
sys.modules["zoo"] = zoo
_SPEC.loader.exec_module(zoo)

T = 24


def row(module: nn.Module | None = None, **options: Any) -> dict[str, Any]:
    return seqdiag.receptive_field(module, **options).records[0]


def drawn(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make()


@pytest.mark.parametrize("name", zoo.CAUSAL)
def test_causal_modules(name: str) -> None:
    found = row(drawn(zoo.CAUSAL[name]), seq_len=T)
    assert (found["causal"], found["lookahead_steps"], found["status"]) == (True, 0, "ok")


@pytest.mark.parametrize("name", zoo.LEAKS)
@pytest.mark.parametrize("seq_len", [T, 64])
def test_leaks(name: str, seq_len: int) -> None:
    make, ahead = zoo.LEAKS[name]
    found = row(drawn(make), seq_len=seq_len)
    assert found["causal"] is False
    assert "leak: suffix replacement" in found["probe"]
    if "additive" in name:  # how far ahead depends on which logit is the largest
        assert found["lookahead_steps"] > 0
    elif name == "bidirectional" and seq_len == 64:  # the other direction fades below rounding
        assert found["lookahead_steps"] > 40
    else:
        assert found["lookahead_steps"] == (seq_len - 1 if ahead == T - 1 else ahead)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mask includes t + 1", "a mask or a shift that is off by one"),
        ("softmax over the query axis", "softmax over the query axis"),
        ("group norm", "group_norm takes its mean over time"),
        ("same padding", "padding of 1 on both sides"),
        ("block means", "leak inside blocks of 8 steps"),
        ("reflect padding", "leak only at the start, outputs 0 to 0"),
        ("additive mask, large inputs", "only at large inputs: they beat an additive mask"),
        ("bidirectional", "a bidirectional recurrent layer"),
        ("no mask", "leak at every position"),
    ],
)
def test_the_cause_of_a_leak(name: str, said: str) -> None:
    assert said in row(drawn(zoo.LEAKS[name][0]), seq_len=T)["note"]


def test_batch_norm_in_train_mode() -> None:
    module = zoo.Normalised(nn.BatchNorm1d(4))
    assert row(module, seq_len=T, train_mode=True)["causal"] is False
    assert module.training


def test_transformer_encoder_without_a_mask() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    found = row(nn.TransformerEncoder(layer, 2), d_in=16, seq_len=T)
    assert (found["causal"], found["lookahead_steps"]) == (False, T - 1)
    assert "no mask" in found["note"]


def test_is_causal_with_more_keys_than_queries_is_flagged() -> None:
    found = row(zoo.PrefixTokens(), seq_len=T)
    assert "is_causal=True with 24 queries and 27 keys" in found["note"]


def test_padding_that_is_not_cut() -> None:
    module = nn.Conv1d(4, 4, 3, padding=2)
    found = row(module, layout="bdt")
    assert (found["causal"], found["lookahead_steps"]) == (False, 2)
    assert "66 outputs for 64 inputs" in found["note"]
    assert row(module, layout="bdt", align="start")["causal"] is True


def chain(*layers: list[nn.Module]) -> nn.Module:
    return nn.Sequential(*[layer for group in layers for layer in group])


def causal_convs(activation: type[nn.Module], bias: bool = True) -> nn.Module:
    return chain(
        *[
            [nn.ConstantPad1d((d, 0), 0.0), nn.Conv1d(4, 4, 2, dilation=d, bias=bias), activation()]
            for d in (1, 2, 4, 8)
        ]
    )


def vgg16() -> nn.Module:
    groups: list[list[nn.Module]] = []
    for convs in (2, 2, 3, 3, 3):
        groups += [[nn.Conv1d(3, 3, 3, padding=1), nn.ReLU()] for _ in range(convs)]
        groups.append([nn.MaxPool1d(2)])
    return chain(*groups)


PUBLIC: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "temporal blocks, k=8 and 3 stacks": (lambda: zoo.temporal_net(8, [1, 2, 4, 8], 3), 631),
    "temporal blocks, one filter": (lambda: zoo.temporal_net(2, [1, 2], width=1), 7),
    "temporal blocks to 32": (lambda: zoo.temporal_net(2, [1, 2, 4, 8, 16, 32]), 127),
    "kernels of 7 and 3": (zoo.Branches, 7),
    "dilations of 1, 2, 4": (
        lambda: nn.Sequential(*(nn.Conv1d(4, 4, 3, padding=d, dilation=d) for d in (1, 2, 4))),
        15,
    ),
    "down and up": (
        lambda: nn.Sequential(
            nn.Conv1d(4, 4, 4, stride=2, padding=1),
            nn.ConvTranspose1d(4, 4, 4, stride=2, padding=1),
        ),
        6,
    ),
    "a functional max pool": (zoo.PooledInside, 4),
    "vgg16": (vgg16, 212),
    "sigmoids": (lambda: causal_convs(nn.Sigmoid), 16),
}


@pytest.mark.parametrize("name", [name for name in PUBLIC if "k=8" not in name])
def test_public_cases(name: str) -> None:
    make, steps = PUBLIC[name]
    found = row(drawn(make), layout="bdt")
    assert (found["predicted_steps"], found["structural_steps"]) == (steps, steps)
    assert found["measured_steps"] <= steps
    if found["measured_count"] < found["predicted_count"]:
        assert "units are dead or cancel" in found["note"]


def test_three_stacks_of_temporal_blocks() -> None:
    found = row(PUBLIC["temporal blocks, k=8 and 3 stacks"][0](), layout="bdt", predict_only=True)
    assert (found["predicted_steps"], found["probe"]) == (631, "structure")


@pytest.mark.parametrize("position", [30, 31])
def test_phases_of_a_transposed_convolution(position: int) -> None:
    module = nn.Sequential(
        nn.Conv1d(4, 4, 4, stride=2, padding=1), nn.ConvTranspose1d(4, 4, 5, stride=2, padding=2)
    )
    found = row(module, layout="bdt", position=str(position))
    expected = 8 if position % 2 == 0 else 6
    assert (found["predicted_steps"], found["measured_steps"]) == (expected, expected)


@pytest.mark.parametrize("seed", range(20))
def test_dead_units_do_not_hide_the_field(seed: int) -> None:
    found = row(drawn(lambda: causal_convs(nn.ReLU), seed), layout="bdt")
    assert found["predicted_steps"] == found["structural_steps"] == 16
    assert found["measured_steps"] == 16 or "units are dead or cancel" in found["note"]


def forty_layers() -> nn.Module:
    net = chain(*[[nn.ConstantPad1d((1, 0), 0.0), nn.Conv1d(4, 4, 2)] for _ in range(40)])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(0.1)
    return net


def test_weak_responses() -> None:
    exact = row(drawn(forty_layers), layout="bdt")
    assert (exact["predicted_steps"], exact["measured_steps"], exact["status"]) == (41, 41, "ok")
    single = row(drawn(forty_layers), layout="bdt", dtype="float32")
    assert (single["measured_steps"], single["status"]) == (None, "inaccurate")
    assert "--dtype float64" in single["note"]


SMALL = [name for name in MIXERS if name != "none"] + [
    name for name in architecture_names() if name not in ("wavenet-stacks", "tcn-locuslab")
]


@pytest.mark.parametrize("name", SMALL)
def test_built_in_layers_and_stacks(name: str) -> None:
    found = row(arch=[name], hidden=16, seq_len=33)
    assert (found["causal"], found["lookahead_steps"], found["status"]) == (True, 0, "ok")
    if found["predicted_steps"] is None:
        assert found["note"].startswith("unbounded (")
        assert found["measured_steps"] == 33
    else:
        assert found["measured_steps"] == found["structural_steps"] == found["predicted_steps"]
        assert found["measured_count"] == found["predicted_count"]


@pytest.mark.parametrize(("name", "steps"), [("wavenet-stacks", 3070), ("tcn-locuslab", 3061)])
def test_long_stacks(name: str, steps: int) -> None:
    found = row(arch=[name], hidden=4)
    assert found["predicted_steps"] == found["measured_steps"] == steps
    assert (found["causal"], found["seq_len"]) == (True, 4096)


@pytest.mark.parametrize(
    ("name", "steps", "stride", "causal"),
    [
        ("wav2vec2-encoder", 400, 320, False),
        ("whisper-stem", 5, 2, False),
        ("mimi-encoder", 4280, 960, True),
        ("encodec-encoder-zeros", None, 320, True),
        ("encodec-encoder", None, 320, False),  # reflections bring later samples before the first
    ],
)
def test_encoders(name: str, steps: int | None, stride: int, causal: bool) -> None:
    found = row(arch=[name], hidden=4)
    assert (found["predicted_steps"], found["stride"]) == (steps, stride)
    assert found["causal"] is causal
    assert found["measured_steps"] == steps or steps is None


def test_encoders_that_reflect_leak_at_the_start_only() -> None:
    assert "reflect padding" in row(arch=["encodec-encoder"], hidden=4)["note"]


class LastStep(nn.Module):
    """Of a width that it may take for a length."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (zoo.Noisy, {}, "is random in eval mode"),
        (zoo.LearnedPositions, {}, "takes 48 steps at most, not 64"),
        (LastStep, {}, "the output has no time axis"),
        (nn.Identity, {"position": "64"}, "--position: 64 is not among the outputs"),
        (nn.Identity, {"dtype": "float16"}, "--dtype: 'float16' is not one of"),
    ],
)
def test_what_cannot_be_judged(
    make: Callable[[], nn.Module], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        row(make(), **options)


def test_a_seeded_forward_is_judged() -> None:
    assert row(zoo.Noisy(), seed_forward=True)["causal"] is True


class Divides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0 / 0


def test_outputs_that_are_not_finite() -> None:
    found = row(Divides())
    assert (found["status"], found["causal"], found["measured_steps"]) == ("nonfinite", None, None)


def test_one_step_and_no_memory() -> None:
    assert row(nn.GRU(4, 4, batch_first=True), seq_len=1)["measured_steps"] == 1
    found = row(nn.Linear(4, 4))
    assert (found["predicted_steps"], found["measured_steps"], found["causal"]) == (1, 1, True)


def test_a_sequence_shorter_than_the_field_is_doubled() -> None:
    dilations = [2**i for i in range(9)]
    found = row(kernel=[2], dilations=dilations)
    assert (found["measured_steps"], found["seq_len"]) == (512, 512)
    short = row(kernel=[2], dilations=dilations, max_seq_len=64)
    assert short["measured_steps"] == 64
    assert "64 of 512 steps lie in the sequence" in short["note"]


def test_every_position() -> None:
    records = seqdiag.receptive_field(kernel=[2], dilations=[1, 2], position="all").records
    assert [r["measured_steps"] for r in records[:5]] == [1, 2, 3, 4, 4]
    assert [r["position"] for r in records] == list(range(64))


class Detached(nn.Module):
    """A sliding sum without any gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach() + x.detach().roll(1, dims=1) * (torch.arange(x.shape[1]) > 0)[:, None]


def test_outputs_without_a_gradient() -> None:
    found = row(Detached(), effective=True)
    assert (found["causal"], found["measured_steps"]) == (True, 2)
    assert found["effective_steps_p50"] is None


def test_effective_steps() -> None:
    found = row(kernel=[2], dilations=[1] * 40, effective=True)
    p50, p90, p99 = (found[f"effective_steps_p{p}"] for p in (50, 90, 99))
    assert 1 <= p50 < p90 < p99 < found["predicted_steps"] == 41
    mean = row(RunningMean(), effective=True)
    assert [mean[f"effective_steps_p{p}"] for p in (50, 90, 99)] == [32, 58, 64]


class RunningMean(nn.Module):
    """Every earlier step counts the same."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) / x.shape[1]


def test_latency() -> None:
    found = row(arch=["wav2vec2-encoder"], hidden=4, sample_rate=16000.0)
    assert (found["latency_steps"], found["latency_ms"]) == (399, pytest.approx(24.9375))


def test_streaming() -> None:
    assert "step by step gives the whole" in row(arch=["mamba"], hidden=8, streaming=True)["note"]
    convs = row(causal_convs(nn.ReLU), layout="bdt", streaming=True)["note"]
    assert "a prefix of 40 steps gives the whole" in convs
    assert "15 outputs see padding" in convs
    leak = row(zoo.Normalised(nn.GroupNorm(1, 4)), streaming=True)["note"]
    assert "differs from the whole from output 0 on" in leak


def test_assertions() -> None:
    assert_causal(nn.GRU(4, 4, batch_first=True))
    assert_receptive_field(zoo.OnTheLeft(5), at_least=5)
    with pytest.raises(AssertionError, match="the future leaks in, 1 steps ahead"):
        assert_causal(zoo.Transposed(nn.Conv1d(4, 4, 3, padding=1)))
    with pytest.raises(AssertionError, match="sees 5 steps, inputs 59 to 63, less than 6"):
        assert_receptive_field(zoo.OnTheLeft(5), at_least=6)


class Cut(nn.Module):
    """Computes where it cuts, which a prediction must not guess."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.nn.functional.pad(x, (0, 0, 3, 0))
        return y[:, : x.shape[1] - 0]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Cut, "computed"),
        (lambda: zoo.FftConv(padded=True), "fft_rfft"),
        (zoo.BlockMeans, "unflatten"),
        (zoo.SelfAttention, "cannot be followed"),
    ],
)
def test_a_prediction_is_never_a_guess(make: Callable[[], nn.Module], reason: str) -> None:
    found = row(make(), seq_len=T)
    assert found["predicted_steps"] is None
    assert "no prediction: " in found["note"]
    assert reason in found["note"]


class BesideTheEmbedding(nn.Module):
    """Adds one where the next token id is in the upper half, which no embedding shows."""

    def __init__(self, ahead: int = 1) -> None:
        super().__init__()
        self.embedding, self.ahead = nn.Embedding(11, 4), ahead

    def forward(self, ids: Tensor) -> Tensor:
        vectors = self.embedding(ids)
        later = nn.functional.pad(ids, (0, self.ahead))[:, self.ahead :]
        return vectors + (later > 5).to(vectors.dtype).unsqueeze(-1)


def test_ids_that_leak_beside_the_embedding() -> None:
    row = seqdiag.receptive_field(BesideTheEmbedding(), seq_len=16).records[0]
    assert row["causal"] is False
    assert row["lookahead_steps"] == 1
    assert "token ids" in row["probe"]
    further = seqdiag.receptive_field(BesideTheEmbedding(3), seq_len=16).records[0]
    assert 1 <= further["lookahead_steps"] <= 3
    with pytest.raises(AssertionError, match="future leaks in"):
        assert_causal(BesideTheEmbedding(), seq_len=16)


def test_a_token_model_is_causal_by_its_ids_too() -> None:
    model = build_model("tests/data/models.py:tiny_lm", {})
    assert seqdiag.receptive_field(model, seq_len=24).records[0]["causal"] is True


@pytest.mark.parametrize("given", [None, 3, nn.Linear])
def test_what_is_no_module_is_not_causal(given: Any) -> None:
    with pytest.raises(UsageError, match="is not a torch"):
        assert_causal(given)
    with pytest.raises(UsageError, match="is not a torch"):
        assert_receptive_field(given, at_least=4)


@pytest.mark.parametrize(
    "options",
    [{"seq_len": 0}, {"seq_len": -5}, {"seq_len": 24.0}, {"convs": "2"}, {"needs": -1}],
)
def test_options_from_python_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"--(seq-len|convs|needs)"):
        assert_causal(nn.Linear(4, 4), **options)
