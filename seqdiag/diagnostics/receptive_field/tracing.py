"""The structure of a module that nobody here wrote, by following its forward pass symbolically.

Only operations whose effect over time is known are followed; at any other the module has no
prediction, and the reason names it.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx, nn

from seqdiag.diagnostics.receptive_field.layers import Unknown, Value, layer_of
from seqdiag.diagnostics.receptive_field.operations import CONSTANT, call
from seqdiag.models.adapting import InputKind, Layout
from seqdiag.models.mixer import Mixer
from seqdiag.predict.receptive_field import Conv, Structure, StructureError

_UNTRACEABLE = "its forward pass cannot be followed symbolically"


def traced_structure(module: nn.Module, kind: InputKind, layout: Layout) -> Structure:
    """Returns the structure of `module`; raises `Unknown` with the reason where there is none."""
    start = Value(Conv(), *_axes(kind, layout))
    if isinstance(module, Mixer) or layer_of(module) is not None:
        result: object = _call_module(module, start)
    else:
        try:
            graph = _Tracer().trace(module)
        except Exception:  # what stops the tracer says little about the module
            raise Unknown(_UNTRACEABLE) from None
        result = _follow(module, graph, start)
    if isinstance(result, tuple) and result and isinstance(result[0], Value):
        result = result[0]  # what recurrent layers return
    if not isinstance(result, Value):
        raise Unknown("it returns more than one tensor")
    return result.structure


def _axes(kind: InputKind, layout: Layout) -> tuple[int, int]:
    """Returns the axis of time and the number of axes of what goes in."""
    if kind == "samples":
        return 1, 2
    time = {"btd": 1, "tbd": 0, "bdt": 2}[layout]
    return (min(time, 1), 2) if kind == "tokens" else (time, 3)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, Mixer) or layer_of(m) is not None:
            return True
        own = type(m).__module__.startswith("torch.nn.modules")
        return own and not isinstance(m, nn.Sequential | nn.ModuleList)


def _follow(module: nn.Module, graph: fx.Graph, start: Value) -> object:
    values: dict[fx.Node, object] = {}
    given = False
    for node in graph.nodes:
        args = _given(node.args, values)
        kwargs = _given(node.kwargs, values)
        if node.op == "placeholder":
            values[node] = start if not given else (node.args[0] if node.args else None)
            given = True
        elif node.op == "get_attr":
            values[node] = _attribute(module, str(node.target))
        elif node.op == "output":
            return args[0]
        elif not _holds_value((args, kwargs)) and not _indexes_shape(node, args):
            values[node] = CONSTANT
        elif node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            values[node] = _call_module(layer, *args, **kwargs)
        else:
            name = node.target if isinstance(node.target, str) else node.target.__name__
            values[node] = call(str(name), args, kwargs)
    raise Unknown("it returns nothing")


def _given(arguments: Any, values: dict[fx.Node, object]) -> Any:
    """Returns arguments with the values of nodes in their place."""
    return fx.node.map_arg(arguments, lambda node: values[node])  # type: ignore[arg-type,return-value]


def _attribute(module: nn.Module, path: str) -> object:
    value: object = module
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _indexes_shape(node: fx.Node, args: Any) -> bool:
    return node.target is operator.getitem and isinstance(args[0], tuple)


def _holds_value(item: Any) -> bool:
    """Returns whether arguments hold a tensor that depends on the input."""
    if isinstance(item, tuple | list):
        return any(map(_holds_value, item))
    if isinstance(item, dict):
        return any(map(_holds_value, item.values()))
    return isinstance(item, Value)


def _call_module(layer: nn.Module, *args: Any, **kwargs: Any) -> object:
    first = args[0] if args else next(iter(kwargs.values()), None)
    if not isinstance(first, Value):
        raise Unknown(f"{type(layer).__name__} gets something that is no tensor of the input")
    apply = layer_of(layer)
    if apply is None:
        if isinstance(layer, Mixer):
            from seqdiag.diagnostics.receptive_field.mixers import mixer_structure

            return first.then(mixer_structure(layer))
        raise Unknown(f"what {type(layer).__name__} does over time is not known")
    others = [v for v in (*args[1:], *kwargs.values()) if v is not None and v is not first]
    if others and not (isinstance(layer, nn.MultiheadAttention) and not any(others)):
        raise Unknown(f"{type(layer).__name__} is called with more than its input")
    return apply(first)


def structure_or_reason(
    module: nn.Module, kind: InputKind, layout: Layout
) -> tuple[Structure | None, str]:
    """Returns the structure of `module`, or None and why there is none."""
    try:
        structure = traced_structure(module, kind, layout)
        _ = structure.stride
    except (Unknown, StructureError) as error:
        return None, str(error)
    except (TypeError, ValueError, AttributeError, IndexError, KeyError):
        return None, _UNTRACEABLE
    return structure, ""
