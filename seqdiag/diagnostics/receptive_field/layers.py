"""What PyTorch's own layers do over time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from seqdiag.predict.receptive_field import (
    Chain,
    Conv,
    Everything,
    Past,
    Structure,
    Transposed,
)


class Unknown(Exception):
    """An operation whose effect over time is not known."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor on its way through a module: what its steps read, and where its time axis is."""

    structure: Structure
    time: int
    ndim: int

    def then(self, layer: Structure) -> Value:
        """Returns the value after one more layer."""
        if layer == Conv():
            return self
        before = self.structure
        done = before.layers if isinstance(before, Chain) else (before,)
        return Value(Chain((*done, layer)), self.time, self.ndim)


Apply = Callable[[Value], object]


def over_time(value: Value, axes: list[int], kind: str) -> Value:
    """Returns the value after something that joins all steps if time is one of its `axes`."""
    if value.time in [axis % value.ndim for axis in axes]:
        return value.then(Everything(kind))
    return value


def conv(value: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, mode: str) -> Value:
    """Returns the value after a convolution or a pooling layer; time must be its last axis."""
    if value.time != value.ndim - 1:
        raise Unknown("a convolution runs over another axis than time; see --layout")
    kernel, stride, dilation = _one(kernel), _one(stride), _one(dilation)
    if padding == "same":
        left = (kernel - 1) * dilation // 2
        right = (kernel - 1) * dilation - left
    else:
        left = right = 0 if padding == "valid" else _one(padding)
    return value.then(Conv(kernel, stride, dilation, left, right, mode))  # type: ignore[arg-type]


def transposed(
    value: Value, kernel: Any, stride: Any, padding: Any, extra: Any, dilation: Any
) -> Value:
    """Returns the value after a transposed convolution."""
    if value.time != value.ndim - 1:
        raise Unknown("a convolution runs over another axis than time; see --layout")
    layer = Transposed(_one(kernel), _one(stride), _one(dilation), _one(padding), _one(extra))
    return value.then(layer)


def layer_of(layer: nn.Module) -> Apply | None:
    """Returns what a layer of `torch.nn` does; None for anything else, subclasses included."""
    for known, make in _LAYERS.items():
        if isinstance(layer, known) and type(layer).forward is known.forward:
            return make(layer)
    if type(layer).__module__ == "torch.nn.modules.activation":
        return _activation(layer)
    return None


def _conv_layer(layer: Any) -> Apply:
    return lambda value: conv(
        value, layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.padding_mode
    )


def _transposed_layer(layer: Any) -> Apply:
    return lambda value: transposed(
        value, layer.kernel_size, layer.stride, layer.padding, layer.output_padding, layer.dilation
    )


def _pooling(layer: Any) -> Apply:
    def apply(value: Value) -> Value:
        if layer.ceil_mode or getattr(layer, "return_indices", False):
            raise Unknown("pooling with ceil_mode or indices")
        dilation = getattr(layer, "dilation", 1)
        return conv(value, layer.kernel_size, layer.stride, layer.padding, dilation, "zeros")

    return apply


def _adaptive(layer: Any) -> Apply:
    def apply(value: Value) -> Value:
        if _one(layer.output_size) != 1:
            raise Unknown("adaptive pooling to more than one step")
        return value.then(Everything("pooling over time"))

    return apply


def _padding(mode: str) -> Callable[[Any], Apply]:
    def make(layer: Any) -> Apply:
        left, right = layer.padding
        return lambda value: value.then(Conv(left=left, right=right, mode=mode))  # type: ignore[arg-type]

    return make


def _pointwise(layer: Any) -> Apply:
    return lambda value: value


def _embedding(layer: Any) -> Apply:
    return lambda value: Value(value.structure, value.time, value.ndim + 1)


def _linear(layer: Any) -> Apply:
    return lambda value: over_time(value, [-1], "a linear layer over time")


def _layer_norm(layer: Any) -> Apply:
    axes = list(range(-len(layer.normalized_shape), 0))
    return lambda value: over_time(value, axes, "normalisation over time")


def _group_norm(layer: Any) -> Apply:
    def apply(value: Value) -> Value:
        if value.time == 1 and layer.num_groups > 1:
            raise Unknown("GroupNorm takes the steps for channels")
        return over_time(value, list(range(1, value.ndim)), "normalisation over time")

    return apply


def _instance_norm(layer: Any) -> Apply:
    return lambda value: over_time(value, list(range(2, value.ndim)), "normalisation over time")


def _batch_norm(layer: Any) -> Apply:
    def apply(value: Value) -> Value:
        if layer.training or not layer.track_running_stats:
            return value.then(Everything("normalisation over time"))
        return value

    return apply


def _recurrent(layer: Any) -> Apply:
    def apply(value: Value) -> tuple[Value, None]:
        if value.time != (1 if layer.batch_first else 0):
            raise Unknown("a recurrent layer runs over another axis than time; see --layout")
        kind = Everything("a bidirectional layer") if layer.bidirectional else Past("recurrent")
        return value.then(kind), None

    return apply


def _self_attention(layer: Any) -> Apply:
    return lambda value: (_unmasked(value, layer), None)


def _encoder(layer: Any) -> Apply:
    attention = next(part for part in layer.modules() if isinstance(part, nn.MultiheadAttention))
    return lambda value: _unmasked(value, attention)


def _unmasked(value: Value, attention: nn.MultiheadAttention) -> Value:
    if value.time != (1 if attention.batch_first else 0):
        raise Unknown("attention runs over another axis than time; see --layout")
    return value.then(Everything("attention without a mask"))


def _activation(layer: Any) -> Apply:
    name = type(layer).__name__
    if name in ("Softmax", "LogSoftmax", "Softmin", "GLU"):
        dim = layer.dim
        if dim is None:
            return _unknown(f"{name} names no axis")
        return lambda value: over_time(value, [dim], f"{name} over time")
    return _pointwise(layer)


def _unknown(reason: str) -> Apply:
    def apply(value: Value) -> Value:
        raise Unknown(reason)

    return apply


_LAYERS: dict[Any, Callable[[Any], Apply]] = {
    nn.Conv1d: _conv_layer,
    nn.ConvTranspose1d: _transposed_layer,
    nn.MaxPool1d: _pooling,
    nn.AvgPool1d: _pooling,
    nn.AdaptiveAvgPool1d: _adaptive,
    nn.AdaptiveMaxPool1d: _adaptive,
    nn.ConstantPad1d: _padding("zeros"),
    nn.ReflectionPad1d: _padding("reflect"),
    nn.ReplicationPad1d: _padding("replicate"),
    nn.CircularPad1d: _padding("circular"),
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.Identity: _pointwise,
    nn.Dropout: _pointwise,
    nn.Dropout1d: _pointwise,
    nn.AlphaDropout: _pointwise,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    nn.InstanceNorm1d: _instance_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.RNN: _recurrent,
    nn.LSTM: _recurrent,
    nn.GRU: _recurrent,
    nn.MultiheadAttention: _self_attention,
    nn.TransformerEncoderLayer: _encoder,
    nn.TransformerEncoder: _encoder,
}


def _one(value: Any) -> int:
    return int(value[0] if isinstance(value, tuple | list) else value)
