"""Anyone's module: where it is, what it takes, which output counts."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from seqdiag.errors import UsageError
from seqdiag.models.adapting import Fed, Feeding, feed
from seqdiag.models.loading import build_model

MODELS = Path(__file__).parent.parent / "data" / "models.py"


def fed(module: nn.Module, seq_len: int = 11, batch: int = 2, **settings: Any) -> Fed:
    feeding = Feeding(batch, seq_len, torch.float32, torch.device("cpu"), **settings)
    return feed(module.eval(), feeding, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["tiny_lm", "TinyLM", "RunningSum", "instance", "noisy"])
def test_factories(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(build_model(f"{MODELS}:{name}", {}), nn.Module)
    assert capsys.readouterr().out == "", "what a module prints goes to stderr"


def test_arguments_and_imported_modules() -> None:
    assert build_model("torch.nn:Linear", {"in_features": 3, "out_features": 5}).out_features == 5
    assert build_model(f"{MODELS}:tiny_lm", {"width": 8}).core.hidden_size == 8


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "seqdiag_neighbour.py").write_text("from torch import nn\nmake = nn.Identity\n")
    (tmp_path / "mine.py").write_text("from seqdiag_neighbour import make\n")
    path = list(sys.path)
    assert isinstance(build_model(f"{tmp_path / 'mine.py'}:make", {}), nn.Identity)
    assert sys.path == path


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("models", "not package.module:factory"),
        (":x", "not package.module:factory"),
        ("missing.py:x", "no such file: missing.py"),
        ("some/folder:x", "no such Python file"),
        ("no_such_package_here.at_all:x", "no module named"),
        (f"{MODELS}:tiny_ml", "has no attribute 'tiny_ml'"),
        (f"{MODELS}:TinyLM.nope", "has no attribute 'nope'"),
        (f"{MODELS}:raises", "raised ValueError: no such checkpoint second line"),
        (f"{MODELS}:leaves", "raised SystemExit"),
        (f"{MODELS}:not_a_module", "returned 3, not a torch.nn.Module"),
        (f"{MODELS}:constant", "is 3, not a factory"),
    ],
)
def test_what_cannot_be_built_is_one_line(spec: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_model(spec, {})
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_a_file_that_does_not_import(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f(:\n")
    with pytest.raises(UsageError, match="SyntaxError"):
        build_model(f"{tmp_path / 'bad.py'}:f", {})


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class Pair(NamedTuple):
    hidden: Tensor
    last: Tensor


class Wrapped(nn.Module):
    """Puts the output of a linear layer into a container."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.core = nn.Linear(6, 6)
        self.kind = kind

    def forward(self, x: Tensor) -> object:
        y = self.core(x)
        return {
            "dataclass": Output(None, y),
            "named": Pair(y, y[:, -1]),
            "nested": ({"a": [y]}, y.sum()),
            "same twice": {"a": y, "b": y},
        }[self.kind]


@pytest.mark.parametrize("kind", ["dataclass", "named", "nested", "same twice"])
def test_the_one_tensor_with_a_time_axis_is_found(kind: str) -> None:
    assert fed(Wrapped(kind)).inputs.shape == (2, 11, 6)


def test_the_width_is_found_by_trying() -> None:
    assert fed(nn.Sequential(nn.LayerNorm(9), nn.Linear(9, 4))).inputs.shape == (2, 11, 9)
    assert fed(nn.Identity()).inputs.shape == (2, 11, 32)
    assert fed(nn.Identity(), d_in=5).inputs.shape == (2, 11, 5)


@pytest.mark.parametrize(
    ("module", "layout"),
    [(nn.LSTM(4, 6), "tbd"), (nn.LSTM(4, 6, batch_first=True), "btd"), (nn.Conv1d(4, 6, 1), "bdt")],
)
def test_layouts(module: nn.Module, layout: str) -> None:
    ready = fed(module, layout=layout)
    assert ready.inputs.shape == (2, 11, 4)
    assert ready.run(ready.inputs).shape == (2, 11, 6)


class Tokens(nn.Module):
    """Positions, tied head, and an embedding of the user's own making."""

    def __init__(self, own: bool = False) -> None:
        super().__init__()
        self.table = OwnEmbedding() if own else nn.Embedding(20, 8)
        self.positions = nn.Embedding(11, 8)
        self.core = nn.GRU(8, 8, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.core(x)[0]


class OwnEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20, 8))

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids]


@pytest.mark.parametrize("own", [False, True])
def test_tokens_are_probed_at_the_embedding(own: bool) -> None:
    torch.manual_seed(0)
    module = Tokens(own)
    ready = fed(module, vocab=20)
    assert ready.inputs.shape == (2, 11, 8)
    leaf = ready.inputs.clone().requires_grad_()
    ready.run(leaf)[:, -1].sum().backward()
    by_hand = ready.inputs.clone().requires_grad_()
    positions = module.positions(torch.arange(11))
    module.core(by_hand + positions)[0][:, -1].sum().backward()
    torch.testing.assert_close(leaf.grad, by_hand.grad)
    assert not any(m._forward_hooks for m in module.modules()), "no hook stays behind"


class TwoTables(nn.Module):
    """Two embeddings of the same ids side by side, and ids that the module changes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(60, 2)
        self.a, self.b = nn.Embedding(20, 3), nn.Embedding(20, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.cat([self.a(ids), self.b(ids)], dim=-1)
        ids.zero_()
        x.mul_(2)
        return x.cumsum(1)


def test_every_embedding_of_the_ids_counts() -> None:
    ready = fed(TwoTables())
    assert ready.inputs.shape == (2, 11, 8)
    for _ in range(2):
        torch.testing.assert_close(ready.run(ready.inputs.clone()), 2 * ready.inputs.cumsum(1))


class FunctionalTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20, 8))

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids].cumsum(1)


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        (FunctionalTokens(), {"kind": "tokens", "vocab": 20}, "no submodule turned the token ids"),
        (Wrapped("same twice"), {"pick": "c"}, "the output has no 'c'"),
        (nn.Flatten(), {}, "no time axis"),
        (nn.Linear(6, 6), {"d_in": 5}, "forward with floats (2, 11, 5) raised RuntimeError"),
        (nn.Embedding(4, 4), {"vocab": 9, "kind": "tokens"}, "raised IndexError"),
    ],
)
def test_what_cannot_be_fed_is_one_line(
    module: nn.Module, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        fed(module, **settings)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TwoOutputs", "2 outputs have the time axis: logits (2, 11, 8), hidden (2, 11, 8)"),
        ("LastOnly", "no time axis: it is output (2, 8), expected floats (2, 11, ...)"),
        ("Detached", "carries no gradient"),
    ],
)
def test_modules_with_a_question(name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        fed(build_model(f"{MODELS}:{name}", {}))
    assert message in caught.value.message


def test_picking_an_output() -> None:
    module = build_model(f"{MODELS}:TwoOutputs", {})
    ratio = fed(module, pick="logits").run(torch.ones(2, 11, 8)) / fed(module, pick="hidden").run(
        torch.ones(2, 11, 8)
    )
    torch.testing.assert_close(ratio, torch.full_like(ratio, 2.0))
