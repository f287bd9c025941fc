"""What the operations of a forward pass do over time, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from seqdiag.diagnostics.receptive_field.layers import (
    Unknown,
    Value,
    conv,
    over_time,
    transposed,
)
from seqdiag.predict.receptive_field import (
    Chain,
    Conv,
    Everything,
    Parallel,
    Past,
    Slice,
    Structure,
)

_LONG = 1 << 16
"""A sequence longer than any constant cut: lengths are compared at it."""


CONSTANT = object()
"""Whatever depends on no value of the input: masks, lengths that are computed."""


@dataclass(frozen=True, slots=True)
class Size:
    """The number of steps of a value."""

    of: Structure


_POINTWISE = {
    "relu", "relu_", "gelu", "silu", "tanh", "sigmoid", "elu", "leaky_relu", "softplus", "exp",
    "log", "sqrt", "rsqrt", "abs", "neg", "pow", "square", "sin", "cos", "clamp", "dropout",
    "contiguous", "clone", "float", "double", "to", "type_as", "hardtanh", "selu", "mish",
    "add", "add_", "sub", "mul", "mul_", "div", "truediv", "iadd", "imul", "isub", "relu6",
    "maximum", "minimum", "where", "alias", "hardswish", "celu", "nan_to_num", "erf",
    "multiply", "subtract", "true_divide", "itruediv",
}  # fmt: skip


def call(name: str, args: Any, kwargs: Any) -> object:
    """Returns what an operation gives, from its name and its arguments."""
    special = _OPERATIONS.get(name)
    if special is not None:
        return special(*args, **kwargs)
    if name in _POINTWISE:
        return _joined([a for a in (*args, *kwargs.values()) if isinstance(a, Value)])
    raise Unknown(f"what {name} does over time is not known")


def _joined(values: list[Value]) -> Value:
    """Returns values taken together step by step."""
    first = values[0]
    if any((v.time - v.ndim, v.ndim) != (first.time - first.ndim, first.ndim) for v in values):
        raise Unknown("tensors with time on different axes are taken together")
    paths = tuple(dict.fromkeys(v.structure for v in values))
    return first if len(paths) == 1 else replace(first, structure=Parallel(paths))


def _getitem(value: object, index: object) -> object:
    if isinstance(value, tuple):
        return value[index]  # type: ignore[call-overload]
    if not isinstance(value, Value):
        raise Unknown("something that is no tensor of the input is indexed")
    items = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [i for i in items if i is Ellipsis]:
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        taken = sum(item is not None for item in items) - 1
        items = (*items[:at], *[slice(None)] * (value.ndim - taken), *items[at + 1 :])
    structure, axis, time, ndim = value.structure, 0, value.time, value.ndim
    for item in items:
        if item is None:
            ndim += 1
            time += axis <= value.time
            continue
        if axis == value.time:
            structure = _sliced(structure, item)
        elif not isinstance(item, slice):
            if not isinstance(item, int):
                raise Unknown("an axis is indexed by a tensor")
            ndim -= 1
            time -= axis < value.time
        axis += 1
    return Value(structure, time, ndim)


def _sliced(structure: Structure, item: object) -> Structure:
    """Returns `structure` with its steps cut by `item`."""
    if not isinstance(item, slice) or item.step not in (None, 1):
        raise Unknown("single steps are taken out of the sequence")
    length = structure.length(_LONG)
    bounds = [
        end.of.length(_LONG) if isinstance(end, Size) else end for end in (item.start, item.stop)
    ]
    if not all(end is None or isinstance(end, int) for end in bounds):
        raise Unknown("the sequence is cut at a place that is computed")
    start, stop, _ = slice(*bounds).indices(length)
    if length - stop > _LONG // 2 or start > _LONG // 2:
        raise Unknown("the sequence is cut at a fixed place")
    if start == 0 and stop == length:
        return structure
    return Chain((structure, Slice(start, length - stop)))


def _size(value: Value, axis: int | None = None) -> object:
    if axis is None:
        return tuple(Size(value.structure) if i == value.time else 0 for i in range(value.ndim))
    return Size(value.structure) if axis % value.ndim == value.time else 0


def _getattr(value: Value, name: str, *rest: object) -> object:
    if name == "shape":
        return _size(value)
    if name in ("dtype", "device", "ndim"):
        return CONSTANT
    if name in ("mT", "T"):
        return _transpose(value, -1, -2)
    raise Unknown(f"the attribute {name} is not known")


def _transpose(value: Value, a: int, b: int) -> Value:
    a, b = a % value.ndim, b % value.ndim
    return replace(value, time={a: b, b: a}.get(value.time, value.time))


def _permute(value: Value, *order: Any) -> Value:
    axes = list(order[0] if isinstance(order[0], tuple | list) else order)
    return replace(value, time=[axis % value.ndim for axis in axes].index(value.time))


def _unsqueeze(value: Value, axis: int) -> Value:
    axis %= value.ndim + 1
    return Value(value.structure, value.time + (axis <= value.time), value.ndim + 1)


def _squeeze(value: Value, axis: int) -> Value:
    axis %= value.ndim
    if axis == value.time:
        raise Unknown("the axis of time is squeezed out")
    return Value(value.structure, value.time - (axis < value.time), value.ndim - 1)


def _pad(value: Value, pads: Any, /, mode: str = "constant", *rest: Any, **more: Any) -> Value:
    pads, from_last = list(pads), value.ndim - 1 - value.time
    if not all(isinstance(p, int) for p in pads):
        raise Unknown("the padding is computed")
    left, right = (*pads, *[0] * (2 * value.ndim))[2 * from_last : 2 * from_last + 2]
    if left < 0 or right < 0:
        cut = Chain((value.structure, Slice(max(0, -left), max(0, -right))))
        value, left, right = replace(value, structure=cut), max(0, left), max(0, right)
    padding = {"constant": "zeros", "reflect": "reflect", "replicate": "replicate"}.get(
        mode, "circular"
    )
    return value.then(Conv(left=left, right=right, mode=padding))  # type: ignore[arg-type]


def _cat(values: Any, dim: int = 0, axis: int | None = None) -> Value:
    values = list(values)
    if not all(isinstance(v, Value) for v in values):
        raise Unknown("the sequence is joined with something else")
    if (dim if axis is None else axis) % values[0].ndim == values[0].time:
        raise Unknown("sequences are joined one after the other")
    return _joined(values)


def _chunk(value: Value, count: int, dim: int = 0) -> tuple[Value, ...]:
    if dim % value.ndim == value.time:
        raise Unknown("the sequence is split")
    return (value,) * count


def _glu(value: Value, dim: int = -1) -> Value:
    return _chunk(value, 2, dim)[0]


def _softmax(value: Value, dim: int | None = None, **more: Any) -> Value:
    if dim is None:
        raise Unknown("softmax names no axis")
    return over_time(value, [dim], "softmax over time")


def _reduced(value: Value, dim: Any = None, keepdim: bool = False, **more: Any) -> Value:
    axes = [a % value.ndim for a in (dim if isinstance(dim, tuple | list) else [dim or 0])]
    if dim is None or (value.time in axes and not keepdim):
        raise Unknown("the axis of time is summed away")
    if value.time in axes:
        return value.then(Everything("a mean over time"))
    if keepdim:
        return value
    return Value(
        value.structure,
        value.time - sum(axis < value.time for axis in axes),
        value.ndim - len(axes),
    )


def _cumulated(value: Value, dim: int) -> Value:
    return value.then(Past("a running sum")) if dim % value.ndim == value.time else value


def _linear(value: Value, weight: Any, bias: Any = None) -> Value:
    if isinstance(weight, Value):
        raise Unknown("matmul of two tensors of the input")
    return over_time(value, [-1], "a linear layer over time")


def _matmul(a: Any, b: Any) -> Value:
    if isinstance(a, Value) and not isinstance(b, Value):
        return over_time(a, [-1], "a matrix over time")
    if isinstance(b, Value) and not isinstance(a, Value):
        return over_time(b, [-2], "a matrix over time")
    raise Unknown("matmul of two tensors of the input")


def _conv1d(
    value: Value, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Value:  # fmt: skip
    return conv(value, weight.shape[-1], stride, padding, dilation, "zeros")


def _conv_transpose1d(
    value: Value, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Value:  # fmt: skip
    return transposed(value, weight.shape[-1], stride, padding, output_padding, dilation)


def _pool(
    value: Value, kernel_size: Any, stride: Any = None, padding: Any = 0, *rest: Any, **more: Any
) -> Value:
    if more.get("ceil_mode") or any(rest):
        raise Unknown("pooling with options beyond stride and padding")
    stride = kernel_size if stride is None else stride
    return conv(value, kernel_size, stride, padding, more.get("dilation", 1), "zeros")


def _layer_norm(value: Value, normalized_shape: Any, *rest: Any, **more: Any) -> Value:
    axes = range(-len(tuple(normalized_shape)), 0)
    return over_time(value, list(axes), "normalisation over time")


def _attend(q: Value, k: Value, v: Value, *rest: Any, **more: Any) -> Value:
    if rest or more.get("attn_mask") is not None or q.time != q.ndim - 2:
        raise Unknown("attention with a mask of its own")
    kind: Structure = Past("attention") if more.get("is_causal") else Everything("attention")
    return _joined([q, k, v]).then(kind)


_OPERATIONS: dict[str, Callable[..., object]] = {
    "getitem": _getitem,
    "size": _size,
    "getattr": _getattr,
    "transpose": _transpose,
    "swapaxes": _transpose,
    "permute": _permute,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "pad": _pad,
    "cat": _cat,
    "concat": _cat,
    "chunk": _chunk,
    "glu": _glu,
    "softmax": _softmax,
    "mean": _reduced,
    "sum": _reduced,
    "cumsum": _cumulated,
    "linear": _linear,
    "matmul": _matmul,
    "conv1d": _conv1d,
    "conv_transpose1d": _conv_transpose1d,
    "avg_pool1d": _pool,
    "max_pool1d": _pool,
    "layer_norm": _layer_norm,
    "scaled_dot_product_attention": _attend,
}
