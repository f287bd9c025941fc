"""Gradients at the output of each layer and of its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from seqdiag.errors import UsageError
from seqdiag.measure.probes import Reduce, Run

_MOST_CALLS = 32
"""Calls of one layer that are told apart: a cell that is called at every step is one layer."""


@dataclass(frozen=True, slots=True)
class LayerGradients:
    """The gradients of a loss at the last step, call by call from the input side."""

    names: list[str]
    outputs: list[Tensor]
    """d loss / d output as the layer gave it, before anything wrote into it."""
    weights: list[float | None]
    """Norm of d loss / d weights of the layer, all its calls; None where it has none."""
    notes: list[str]
    chained: bool
    """Whether the last output depends on the first: layers side by side do not."""


def find_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Returns the layers by name: the outermost list that holds most of the parameters.

    Without one they are the children with parameters, or the module itself.
    """
    total = sum(p.numel() for p in module.parameters())
    lists = [
        (name, part)
        for name, part in module.named_modules()
        if isinstance(part, nn.ModuleList | nn.Sequential)
        and len(part) > 0
        and 2 * sum(p.numel() for p in part.parameters()) >= total
    ]
    if lists:
        name, outermost = min(lists, key=lambda item: (_depth(item[0]), -len(item[1])))
        prefix = f"{name}." if name else ""
        return {f"{prefix}{key}": layer for key, layer in outermost.named_children()}
    children = {n: c for n, c in module.named_children() if any(True for _ in c.parameters())}
    return children or {"": module}


def _depth(name: str) -> int:
    return name.count(".") + 1 if name else 0


def layer_gradients(run: Run, x: Tensor, module: nn.Module, reduce: Reduce) -> LayerGradients:
    """Returns the gradients at every call of a layer whose output the loss depends on.

    Raises `UsageError` if no layer gives a tensor with a gradient.
    """
    for layers in (find_layers(module), {"": module}):
        calls, loss = _calls(run, x, layers, reduce)
        if calls:
            return _gradients(calls, loss, layers)
    raise UsageError("--by: no layer of the module gives a tensor that the loss depends on")


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    output: Tensor


def _calls(
    run: Run, x: Tensor, layers: dict[str, nn.Module], reduce: Reduce
) -> tuple[list[_Call], Tensor]:
    """Returns the calls of the layers in order, and the loss."""
    calls: list[_Call] = []

    def catch(name: str) -> Any:
        def hook(layer: nn.Module, inputs: Any, output: Any) -> Any:
            leaves, spec = tree_flatten(output)
            for i, leaf in enumerate(leaves):
                if isinstance(leaf, Tensor) and leaf.requires_grad:
                    calls.append(_Call(name, leaf))
                    leaves[i] = leaf.clone()  # what comes after may write into its input
                    return tree_unflatten(leaves, spec)
            return None

        return hook

    handles = [layer.register_forward_hook(catch(name)) for name, layer in layers.items()]
    try:
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            loss = reduce(run(x.detach().requires_grad_().clone())[:, -1])
    finally:
        for handle in handles:
            handle.remove()
    return calls, loss


def _gradients(calls: list[_Call], loss: Tensor, layers: dict[str, nn.Module]) -> LayerGradients:
    times = Counter(call.name for call in calls)
    shown = [
        call
        for i, call in enumerate(calls)
        if times[call.name] <= _MOST_CALLS or all(c.name != call.name for c in calls[i + 1 :])
    ]
    parameters = [_trained(layers[name]) for name in times]
    flat = [parameter for group in parameters for parameter in group]
    found = torch.autograd.grad(
        loss, [*(call.output for call in shown), *flat], allow_unused=True, retain_graph=True
    )
    outputs = [
        torch.zeros_like(call.output) if g is None else g
        for call, g in zip(shown, found[: len(shown)], strict=True)
    ]
    first, last = shown[0].output, shown[-1].output
    (path,) = torch.autograd.grad(last.sum(), first, allow_unused=True)
    norms = dict(zip(times, _group_norms(parameters, found[len(shown) :]), strict=True))
    seen: Counter[str] = Counter()
    names, notes = [], []
    for call in shown:
        seen[call.name] += 1
        many = times[call.name]
        apart = 1 < many <= _MOST_CALLS
        names.append(f"{call.name} call {seen[call.name]}" if apart else call.name)
        notes.append(f"called {many} times: the last" if many > _MOST_CALLS else "")
    weights = [norms[call.name] for call in shown]
    return LayerGradients(names, outputs, weights, notes, path is not None)


def _trained(layer: nn.Module) -> list[nn.Parameter]:
    return [p for p in layer.parameters() if p.requires_grad]


def _group_norms(
    groups: Sequence[Sequence[nn.Parameter]], gradients: Sequence[Tensor | None]
) -> list[float | None]:
    norms: list[float | None] = []
    rest = iter(gradients)
    for group in groups:
        own = [g for g in (next(rest) for _ in group) if g is not None]
        norms.append(
            torch.stack([torch.linalg.vector_norm(g.double()) for g in own]).norm().item()
            if own
            else None
        )
    return norms
