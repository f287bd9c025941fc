"""Stacks and blocks keep the contract of a mixer, whatever their style."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from seqdiag.errors import UsageError
from seqdiag.models.block import BlockStyle
from seqdiag.models.mixer import state_tensors
from seqdiag.models.stack import (
    Stack,
    StackSpec,
    architecture_names,
    load_architecture,
    read_architecture,
    with_style,
)

STYLES = [
    BlockStyle(norm, norm_type, mlp)
    for norm, norm_type, mlp in (
        ("pre", "layer", "gelu"),
        ("post", "rms", "swiglu"),
        ("peri", "rms", "geglu"),
        ("deepnorm", "layer", "gelu"),
        ("pre", "rms", "none"),
    )
]


def check_both_forms(stack: Stack, steps: int = 21) -> None:
    stack = stack.double().eval()
    x = torch.randn(2, steps, stack.width, dtype=torch.float64)
    with torch.no_grad():
        whole = stack(x)
        state, outputs = stack.init_state(2), []
        for x_t in x.unbind(1):
            y_t, state = stack.step(x_t, state)
            outputs.append(y_t)
        torch.testing.assert_close(whole, torch.stack(outputs, 1), rtol=1e-9, atol=1e-9)
        first, middle = stack.scan(x[:, :13], stack.init_state(2))
        second, last = stack.scan(x[:, 13:], middle)
        torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(state_tensors(state), state_tensors(last), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_styles(style: BlockStyle) -> None:
    torch.manual_seed(0)
    check_both_forms(Stack(16, StackSpec("ma-", style=style)))


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned", "rope"])
def test_positions(positions: Any) -> None:
    torch.manual_seed(0)
    check_both_forms(Stack(16, StackSpec("aw", positions=positions, max_len=21)))


@pytest.mark.parametrize("name", architecture_names())
def test_architectures(name: str) -> None:
    torch.manual_seed(0)
    spec = load_architecture(name)
    check_both_forms(Stack(16, spec))
    layers = with_style(spec, 5, "post", "rms").layers
    assert len(layers) == 5


def test_layer_outputs_lead_to_the_output() -> None:
    torch.manual_seed(0)
    stack = Stack(16, StackSpec("ma", positions="sinusoidal"))
    x = torch.randn(1, 9, 16)
    outputs = stack.layer_outputs(x)
    assert len(outputs) == 3
    torch.testing.assert_close(stack.norm(outputs[-1]), stack(x))


def test_the_pattern_repeats_to_the_depth() -> None:
    assert StackSpec("mma", depth=7).layers == ["mamba", "mamba", "attention"] * 2 + ["mamba"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"pattern": "a", "norn": "pre"}, "unknown name 'norn'"),
        ({"pattern": "a", "norm": "in"}, "norm = 'in' is not one of pre"),
        ({"depth": 3}, "pattern must be a string"),
    ],
)
def test_a_wrong_description_is_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_architecture(data, "mine.toml")
    assert message in caught.value.message


def test_learned_positions_end() -> None:
    stack = Stack(16, StackSpec("a", positions="learned", max_len=4))
    with pytest.raises(UsageError, match="5 steps are more than the 4 learned positions"):
        stack(torch.randn(1, 5, 16))
