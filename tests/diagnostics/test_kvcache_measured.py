"""`kvcache` of a module: what it is seen to keep, against sizes written down from its shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import seqdiag
from seqdiag.errors import UsageError
from seqdiag.models.registry import build_mixer
from tests.conftest import Ran

WIDTH, HEADS, DIM = 16, 2, 8


class Attention(nn.Module):
    """Token ids to hidden states and, for each of two layers, keys and values in float32."""

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.keys = nn.ModuleList(nn.Linear(WIDTH, HEADS * DIM) for _ in range(2))
        self.values = nn.ModuleList(nn.Linear(WIDTH, HEADS * DIM) for _ in range(2))
        self.window = window

    def forward(self, ids: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        x = self.embedding(ids)
        kept = slice(-self.window if self.window else None, None)
        pairs = zip(self.keys, self.values, strict=True)
        return x, [(self._heads(k(x))[:, :, kept], self._heads(v(x))[:, :, kept]) for k, v in pairs]

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], HEADS, DIM).transpose(1, 2)


class Buffered(nn.Module):
    """Writes keys to a buffer that all sequences share, and appends values to a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("keys", torch.zeros(4, 64, WIDTH), persistent=False)
        self.register_buffer("unused", torch.zeros(1000))
        self.values: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.project(x)
        self.keys[: x.shape[0], : x.shape[1]] = projected.detach()
        past = [] if self.values is None else [self.values]
        self.values = torch.cat([*past, projected.detach()], dim=1)
        return projected


class Returns(nn.Module):
    """Returns what `extra` makes of its input beside it."""

    def __init__(self, extra: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.extra = extra

    def forward(self, x: Tensor) -> tuple[Tensor, object]:
        return self.project(x), self.extra(x)


def measured(*models: str | nn.Module, **options: Any) -> list[dict[str, Any]]:
    return seqdiag.kvcache(*models, **{"ctx": [512], **options}).records


def test_returned_keys_and_values_grow_with_every_token() -> None:
    (found,) = measured(Attention(), batch=3)
    each = 2 * 2 * HEADS * DIM * 4
    assert (found["engine"], found["kv_bytes_per_token"]) == ("measured", each)
    assert (found["kv_bytes"], found["state_bytes"]) == (3 * 512 * each, 0)
    assert found["kv_read_bytes"] is None  # what a step reads was not measured
    assert "runs of 16, 24, 40 tokens" in found["note"]


@pytest.mark.parametrize("window", [17, 20, 30])
def test_a_window_is_seen_by_runs_beyond_it(window: int) -> None:
    (found,) = measured(Attention(window), lengths=[16, 40, 48])
    assert found["kv_bytes"] == window * 2 * 2 * HEADS * DIM * 4
    assert found["kv_bytes_per_token"] == 0


def test_a_window_that_one_run_passes_is_not_guessed() -> None:
    with pytest.raises(
        UsageError, match=r"cache\.0\.0 does not grow by whole entries a token"
    ) as told:
        measured(Attention(30))
    assert "two lengths beyond it" in (told.value.hint or "")


def test_one_run_below_a_bend_tells_no_rate() -> None:
    """Two entries a token up to 40: 16 tokens alone could as well be 16 and one a token."""
    twice = Returns(lambda x: x.repeat(1, 2, 1)[:, :40])
    with pytest.raises(UsageError, match="does not grow by whole entries"):
        measured(twice, lengths=[16, 24, 40])
    (found,) = measured(twice, ctx=[8], lengths=[4, 16, 24, 40])
    assert found["kv_bytes"] == 2 * 8 * WIDTH * 4


@pytest.mark.parametrize(("layer", "states"), [(nn.LSTM, 2), (nn.GRU, 1)])
def test_pytorch_recurrent_layers(layer: type[nn.Module], states: int) -> None:
    module = layer(WIDTH, 24, num_layers=3, batch_first=True)
    (found,) = measured(module, batch=5)
    assert (found["kv_bytes"], found["state_bytes"]) == (0, 5 * states * 3 * 24 * 4)
    with pytest.raises(UsageError, match="not with the sequences of a batch"):
        measured(layer(WIDTH, 24))
    (time_first,) = measured(layer(WIDTH, 24), layout="tbd", batch=5)
    assert time_first["state_bytes"] == 5 * states * 24 * 4


@pytest.mark.parametrize("name", ["attention", "gru", "lstm", "mamba"])
def test_the_state_of_step_is_what_counts(name: str) -> None:
    mixer = build_mixer(name, WIDTH)
    (found,) = measured(mixer, ctx=[64], batch=2)
    state = mixer.init_state(2)
    with torch.no_grad():
        for x_t in torch.randn(64, 2, WIDTH):
            _, state = mixer.step(x_t, state)
    leaves, _ = torch.utils._pytree.tree_flatten(state)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim]  # no counters
    assert found["total_bytes"] == sum(t.numel() * t.element_size() for t in tensors)


def test_tensors_that_a_module_holds_and_writes() -> None:
    module = Buffered()
    (found,) = measured(module, batch=2)
    assert found["state_bytes"] == 4 * 64 * WIDTH * 4  # one buffer for the whole batch
    assert found["kv_bytes"] == 2 * 512 * WIDTH * 4
    assert module.values is None  # it was left as it was
    assert not module.keys.any()


def test_a_module_is_left_in_its_mode() -> None:
    module = Attention().train()
    module.keys.eval()
    measured(module)
    assert module.training
    assert not module.keys.training


def test_layers_are_told_apart() -> None:
    records = measured(Attention(), per_layer=True)
    assert [(r["layer"], r["kind"], r["kv_bytes"]) for r in records] == [
        (layer, "growing", 512 * 2 * HEADS * DIM * 4) for layer in (0, 1)
    ]


def test_a_curve_has_the_window_as_its_bend() -> None:
    records = measured(Attention(30), lengths=[16, 40, 48], curve=True)
    assert [(r["from_tokens"], r["to_tokens"]) for r in records] == [(1, 30), (31, None)]


def test_it_is_held_against_a_named_model() -> None:
    records = measured("llama-3.1-8b", Attention(), against="mamba-32l")
    by_model = {r["model"]: r for r in records}
    assert by_model["llama-3.1-8b"]["engine"] == "ideal"
    state = 8388608  # of mamba-32l
    rate = by_model["Attention"]["kv_bytes_per_token"]
    assert by_model["Attention"]["crossover_tokens"] == -(-state // rate)


def test_memory_counts_the_parameters_of_the_module() -> None:
    module = Attention()
    (found,) = measured(module, memory=2**20, weights="auto", reserve=0.0)
    weights = sum(p.numel() * 4 for p in module.parameters())
    assert found["weight_bytes"] == weights
    rate = found["kv_bytes_per_token"]
    assert found["max_ctx_tokens"] == (2**20 - weights) // rate


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(WIDTH, WIDTH), "Linear keeps nothing between calls"),
        (Returns(lambda x: x @ x.transpose(1, 2)), "several axes"),
        (Returns(lambda x: x[:, ::3]), "whole entries a token"),
        (Returns(lambda x: x.sum(0)[: x.shape[0] ** 2]), "cannot be sized for a batch"),
    ],
)
def test_what_is_no_cache_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        measured(module)


def test_a_cache_that_is_not_handed_out_is_not_guessed() -> None:
    class Keeps(nn.Module):
        def forward(self, x: Tensor, cache: object = None) -> Tensor:
            return x

    with pytest.raises(UsageError, match="takes cache but returns no cache"):
        measured(Keeps())


def test_the_command(run: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from torch import nn\n"
        "def build(width=8):\n"
        "    print('building')\n"
        "    return nn.LSTM(width, width, batch_first=True)\n"
    )
    ran = run(
        "kvcache", "--model", f"{path}:build", "--model-arg", "width=12", "--ctx", "1k", "--csv"
    )
    assert (ran.code, ran.rows()[0]["state_bytes"]) == (0, str(2 * 12 * 4))
    for options, message in {
        ("--lengths", "16,24"): "--lengths: 16,24 is not 3 or more rising",
        ("--lengths", "40,24,16"): "--lengths: 40,24,16 is not 3 or more rising",
        ("--dtype", "fp8"): "--dtype: a module is measured as it is",
        ("--engine", "vllm"): "--engine: a module is measured as it is",
        ("--tp", "2"): "--tp: a module is measured as it is",
        ("--hf", "x"): "--model and --hf exclude each other",
        ("--input", "tokens"): "--model: forward with token ids",
    }.items():
        ran = run("kvcache", "--model", f"{path}:build", *options)
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err
    ran = run("kvcache", "llama-3.1-8b", "--d-in", "8")
    assert (ran.code, ran.out) == (2, "")
    assert "--d-in: needs --model or --hf" in ran.err
