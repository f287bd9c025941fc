"""Gradients at the output of each layer and of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seqdiag.measure.probes import Reduce, Run


@dataclass(frozen=True, slots=True)
class LayerGradients:
    """The gradients of a loss at the last step, layer by layer from the input side."""

    names: list[str]
    outputs: list[Tensor]
    """d loss / d output, (B, T, D) each."""
    weights: list[float | None]
    """Norm of d loss / d weights of the layer; None where it has none."""


def find_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Returns the layers by name: the longest list of two or more, else the children."""
    lists = [
        (name, part)
        for name, part in module.named_modules()
        if isinstance(part, nn.ModuleList | nn.Sequential) and len(part) > 1
    ]
    if lists:
        name, longest = max(lists, key=lambda item: len(item[1]))
        prefix = f"{name}." if name else ""
        return {f"{prefix}{key}": layer for key, layer in longest.named_children()}
    children = {n: c for n, c in module.named_children() if any(True for _ in c.parameters())}
    return children or {"": module}


def layer_gradients(
    run: Run, x: Tensor, layers: dict[str, nn.Module], reduce: Reduce
) -> LayerGradients:
    """Returns the gradients at every layer that the forward pass calls and the loss depends on."""
    caught: dict[str, Tensor] = {}

    def catch(name: str) -> Any:
        def hook(layer: nn.Module, inputs: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple | list) else output
            if isinstance(tensor, Tensor) and tensor.requires_grad and name not in caught:
                caught[name] = tensor

        return hook

    handles = [layer.register_forward_hook(catch(name)) for name, layer in layers.items()]
    try:
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            loss = reduce(run(x.detach().requires_grad_().clone())[:, -1])
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name in layers if name in caught]
    parameters = [_trained(layers[name]) for name in names]
    flat = [parameter for group in parameters for parameter in group]
    gradients = torch.autograd.grad(
        loss, [*(caught[name] for name in names), *flat], allow_unused=True
    )
    outputs = [
        torch.zeros_like(caught[name]) if g is None else g
        for name, g in zip(names, gradients[: len(names)], strict=True)
    ]
    return LayerGradients(names, outputs, _group_norms(parameters, gradients[len(names) :]))


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
