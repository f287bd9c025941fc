"""Convolutional encoders that shorten the sequence, from `configs/architectures/` with `layers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from seqdiag.config import config_dir, config_names, parse_toml
from seqdiag.errors import UsageError, unknown

Padding = Literal["causal", "same", "none"]


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One layer: a convolution, or an LSTM over all that came before."""

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    residual: bool = False
    """Whether its input is added to its output."""
    lstm: bool = False


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """An encoder: its layers from the input on, and how they pad."""

    layers: tuple[EncoderLayer, ...]
    channels: int = 1
    padding: Padding = "none"
    pad_mode: Literal["zeros", "reflect"] = "zeros"


class Encoder(nn.Module):
    """Maps (B, C, T) to (B, width, T'): convolutions with ELU between."""

    def __init__(self, spec: EncoderSpec, width: int) -> None:
        super().__init__()
        self.channels = spec.channels
        layers: list[nn.Module] = []
        before = spec.channels
        for index, layer in enumerate(spec.layers):
            layers.append(_layer(layer, before, width, spec, activated=index > 0))
            before = width
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


def _layer(
    layer: EncoderLayer, before: int, width: int, spec: EncoderSpec, activated: bool
) -> nn.Module:
    if layer.lstm:
        return _Recurrent(width)
    reach = (layer.kernel - 1) * layer.dilation
    total = max(0, reach + 1 - layer.stride)
    left = {"causal": total, "same": total // 2, "none": 0}[spec.padding]
    right = total - left if spec.padding == "same" else 0
    pads = (left, right)
    pad = nn.ConstantPad1d(pads, 0.0) if spec.pad_mode == "zeros" else nn.ReflectionPad1d(pads)
    conv = nn.Conv1d(before, width, layer.kernel, layer.stride, dilation=layer.dilation)
    steps = [*([nn.ELU()] if activated else []), *([pad] if any(pads) else []), conv]
    return _Residual(nn.Sequential(*steps)) if layer.residual else nn.Sequential(*steps)


class _Residual(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.branch(x)
        return y


class _Recurrent(nn.Module):
    """x + LSTM(x) over (B, C, T), as in EnCodec."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.core = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.core(x.transpose(1, 2))[0].transpose(1, 2)
        return y


def encoder_names() -> list[str]:
    """Returns the encoders of `configs/architectures/`: the files that list their layers."""
    return [name for name in config_names("architectures") if "layers" in _table(name)]


def load_encoder(name: str) -> EncoderSpec:
    """Returns the encoder `name` of `configs/architectures/`."""
    return read_encoder(_table(name), f"--arch {name}")


def read_encoder(data: Mapping[str, object], where: str) -> EncoderSpec:
    """Returns the encoder that a TOML table describes: `layers` is a list of tables."""
    known = {"description", "layers", "channels", "padding", "pad_mode"}
    for key in data:
        if key not in known:
            raise unknown(where, key, sorted(known))
    tables = data["layers"]
    if not isinstance(tables, list) or not tables:
        raise UsageError(f"{where}: layers must be a list of tables")
    try:
        layers = tuple(EncoderLayer(**table) for table in tables)
    except TypeError as error:
        raise UsageError(f"{where}: {error}") from None
    rest = {k: v for k, v in data.items() if k not in ("description", "layers")}
    return EncoderSpec(layers, **rest)  # type: ignore[arg-type]


def _table(name: str) -> dict[str, object]:
    return parse_toml("--arch", config_dir("architectures") / f"{name}.toml")
