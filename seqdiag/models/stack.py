"""Stacks of blocks: from a pattern of letters, or from a TOML file of `configs/architectures/`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from seqdiag.config import config_dir, config_names, parse_toml
from seqdiag.errors import UsageError, unknown
from seqdiag.models.block import Block, BlockStyle, MlpType, Norm, NormType, make_norm
from seqdiag.models.mixer import Mixer, State
from seqdiag.models.positions import Rope, sinusoidal
from seqdiag.models.registry import build_mixer, parse_pattern

Positions = Literal["none", "sinusoidal", "learned", "rope"]


@dataclass(frozen=True, slots=True)
class StackSpec:
    """A stack: its layers by letter, repeated to `depth`, and how they are put together."""

    pattern: str
    depth: int | None = None
    style: BlockStyle = field(default_factory=BlockStyle)
    positions: Positions = "none"
    rope_base: float = 10_000.0
    rope_scaling: Literal["none", "ntk", "yarn"] = "none"
    rope_factor: float = 1.0
    max_len: int = 4096
    """How many learned positions there are."""
    init: Literal["default", "xavier"] = "default"
    """Of linear layers: PyTorch's, or Xavier with zero biases as in Vaswani 2017 and Xiong 2020."""
    residual: bool = True
    """Whether mixers stand in blocks; a TCN or an RNN stands on its own."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of each mixer by name."""

    @property
    def layers(self) -> list[str]:
        """The mixer of each layer: the pattern over and over."""
        names = parse_pattern(self.pattern)
        depth = self.depth or len(names)
        return [names[i % len(names)] for i in range(depth)]


class Stack(Mixer):
    """Blocks one after the other, with positions before and a last norm where the norm is pre."""

    def __init__(self, width: int, spec: StackSpec) -> None:
        super().__init__(width)
        self.spec = spec
        names = spec.layers
        layers = [build_mixer(name, width, self._options(name)) for name in names]
        if spec.residual:
            self.blocks = nn.ModuleList(Block(m, spec.style, len(names)) for m in layers)
        else:
            self.blocks = nn.ModuleList(layers)
        last = spec.residual and spec.style.norm in ("pre", "peri")
        self.norm = make_norm(width, spec.style) if last else nn.Identity()
        if spec.positions == "learned":
            self.positions = nn.Parameter(0.02 * torch.randn(spec.max_len, width))
        self.register_buffer("anchor", torch.zeros(0), persistent=False)
        if spec.init == "xavier":
            self.apply(_xavier)

    def _options(self, name: str) -> dict[str, Any]:
        options = dict(self.spec.options.get(name, {}))
        if self.spec.positions == "rope" and "attention" in name and "linear" not in name:
            head_dim = options.get("head_dim") or self.width // options.get("heads", 4)
            spec = self.spec
            options["rope"] = Rope(head_dim, spec.rope_base, spec.rope_scaling, spec.rope_factor)
        return options

    def layer_outputs(self, x: Tensor) -> list[Tensor]:
        """Returns the input of the first block and the output of each, (B, T, D)."""
        x = x + self._encoding(0, x.shape[1], x)
        outputs = [x]
        for block in self._blocks():
            outputs.append(block(outputs[-1]))
        return outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.layer_outputs(x)[-1])
        return out

    def init_state(self, batch: int) -> State:
        count = torch.zeros((), dtype=torch.int64)
        return count, tuple(block.init_state(batch) for block in self._blocks())

    def scan(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        seen, states = state
        x = x + self._encoding(int(seen), x.shape[1], x)
        x, states = self._run(x, states, "scan")
        return x, (seen + (x.shape[1]), states)

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        seen, states = state
        x_t = x_t + self._encoding(int(seen), 1, x_t)[0]
        x_t, states = self._run(x_t, states, "step")
        return x_t, (seen + 1, states)

    def _run(self, x: Tensor, states: State, form: str) -> tuple[Tensor, State]:
        after = []
        for block, before in zip(self._blocks(), states, strict=True):
            x, state = getattr(block, form)(x, before)
            after.append(state)
        return self.norm(x), tuple(after)

    def _encoding(self, first: int, steps: int, like: Tensor) -> Tensor:
        """Returns what is added for positions (T, D), zeros where nothing is."""
        if self.spec.positions == "sinusoidal":
            positions = torch.arange(first, first + steps, device=like.device, dtype=torch.float64)
            return sinusoidal(positions, self.width).to(like.dtype)
        if self.spec.positions == "learned":
            if first + steps > self.spec.max_len:
                raise UsageError(
                    f"{first + steps} steps are more than the {self.spec.max_len} learned positions"
                )
            return self.positions[first : first + steps]
        return like.new_zeros(steps, self.width)

    def _blocks(self) -> list[Mixer]:
        return [block for block in self.blocks if isinstance(block, Mixer)]


def _xavier(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


_TOP = {"description", "pattern", "depth", "init", "positions", "residual", "max_len"}
_STYLE = {"norm", "norm_type", "mlp", "mlp_ratio", "eps"}
_ROPE = {"rope_base", "rope_scaling", "rope_factor"}
_CHOICES = {
    "norm": get_args(Norm),
    "norm_type": get_args(NormType),
    "mlp": get_args(MlpType),
    "positions": get_args(Positions),
    "rope_scaling": ("none", "ntk", "yarn"),
    "init": ("default", "xavier"),
}


def architecture_names() -> list[str]:
    """Returns the stacks of `configs/architectures/`: the files with a pattern."""
    folder = config_dir("architectures")
    return [
        name
        for name in config_names("architectures")
        if "pattern" in parse_toml("--arch", folder / f"{name}.toml")
    ]


def load_architecture(name: str) -> StackSpec:
    """Returns the stack `name` of `configs/architectures/`."""
    path = config_dir("architectures") / f"{name}.toml"
    return read_architecture(parse_toml("--arch", path), f"--arch {name}")


def read_architecture(data: Mapping[str, object], where: str) -> StackSpec:
    """Returns the stack that a TOML table describes.

    Keys are those of `StackSpec` and `BlockStyle`; `[options.MIXER]` holds a mixer's own.
    """
    known = _TOP | _STYLE | _ROPE | {"options"}
    for key, value in data.items():
        if key not in known:
            raise unknown(where, key, sorted(known))
        if key in _CHOICES and value not in _CHOICES[key]:
            raise UsageError(f"{where}: {key} = {value!r} is not one of {', '.join(_CHOICES[key])}")
    style = BlockStyle(**{k: v for k, v in data.items() if k in _STYLE})  # type: ignore[arg-type]
    rest = {k: v for k, v in data.items() if k not in _STYLE and k != "description"}
    if not isinstance(rest.get("pattern"), str):
        raise UsageError(f"{where}: pattern must be a string of letters")
    return StackSpec(style=style, **rest)  # type: ignore[arg-type]


def with_style(
    spec: StackSpec, depth: int | None, norm: str | None, norm_type: str | None
) -> StackSpec:
    """Returns `spec` with what the command line says instead."""
    changes = {k: v for k, v in (("norm", norm), ("norm_type", norm_type)) if v is not None}
    style = dataclasses.replace(spec.style, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(spec, style=style, depth=depth or spec.depth)
