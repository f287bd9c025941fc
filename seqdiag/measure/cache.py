"""The tensors that a module keeps between decode steps, found by running it.

What counts, in this order: the state of a module that has `init_state` and `step`; a cache that
the call returns, as `past_key_values` or beside its output; tensors that the module itself holds
anew or has written to after the call.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seqdiag.errors import UsageError
from seqdiag.models.adapting import Feeding, raw_inputs
from seqdiag.models.loading import user_code

_NAMES = (
    "past_key_values", "past_key_value", "cache_params", "cache", "caches", "kv_cache", "state",
    "states", "presents", "mems",
)  # fmt: skip
"""What outputs with names call a cache."""
_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Held:
    """One tensor of a cache."""

    path: str
    shape: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, slots=True)
class Run:
    """What was held after one call of `batch` sequences of `tokens` tokens."""

    batch: int
    tokens: int
    held: tuple[Held, ...]
    told: str
    """How the module was fed and where its cache was found."""


def run(module: nn.Module, feeding: Feeding) -> Run:
    """Returns what `module` holds after the tokens that `feeding` describes.

    The module is run in eval mode, as a copy that shares its parameters. Raises `UsageError` where
    nothing feeds it, and where nothing that it keeps is found.
    """
    failures: list[UsageError] = []
    for told, inputs in raw_inputs(module, feeding, torch.Generator().manual_seed(0)):
        try:
            with user_code(f"forward with {told}"), torch.no_grad():
                where, tensors = _kept(_twin(module), inputs, feeding)
        except UsageError as error:
            failures.append(error)
            continue
        if not tensors:
            raise UsageError(
                f"--model: {type(module).__name__} keeps nothing between calls that could be found",
                hint="return (output, cache), or past_key_values; or give the module init_state"
                "(batch) and step(x_t, state)",
            )
        held = tuple(
            Held(path, tuple(tensor.shape), tensor.element_size()) for path, tensor in tensors
        )
        return Run(feeding.batch, feeding.seq_len, held, f"{told}; {where}")
    raise failures[0]


def _twin(module: nn.Module) -> nn.Module:
    """Returns a copy in eval mode with state of its own and the very parameters of `module`."""
    shared: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    return copy.deepcopy(module, shared).eval()


def _kept(
    module: nn.Module, inputs: Tensor, feeding: Feeding
) -> tuple[str, list[tuple[str, Tensor]]]:
    """Returns where the cache is, and its tensors by path."""
    steps = getattr(module, "step", None), getattr(module, "init_state", None)
    if all(map(callable, steps)):
        return "the state of step", list(_leaves(_stepped(module, inputs, feeding), "state"))
    before = {id(t): (t, t._version) for _, t in _held_by(module)}
    takes = inspect.signature(module.forward).parameters
    output = module(inputs, **({"use_cache": True} if "use_cache" in takes else {}))
    returned = list(_leaves(_cache_of(output), "cache"))
    if returned:
        return "the cache it returns", returned
    if given := [name for name in takes if name in _NAMES]:
        raise UsageError(
            f"--model: {type(module).__name__} takes {given[0]} but returns no cache, so what it "
            "would keep is not known",
            hint="a module that makes the cache and returns (output, cache) can be measured",
        )
    after = [
        (path, tensor)
        for path, tensor in _held_by(module)
        if id(tensor) not in before or tensor._version != before[id(tensor)][1]
    ]
    return "tensors that it holds", after


def _stepped(module: Any, inputs: Tensor, feeding: Feeding) -> object:
    state = module.init_state(feeding.batch)
    time = {"btd": 1, "tbd": 0, "bdt": inputs.ndim - 1}[feeding.layout]
    for x_t in inputs.unbind(time):
        _, state = module.step(x_t, state)
    return state


def _cache_of(output: object) -> object:
    """Returns the part of an output that is kept: by its name, else all after the first."""
    named: Mapping[str, object] | None = None
    if isinstance(output, Mapping):
        named = output
    elif is_dataclass(output) or hasattr(output, "_fields"):
        names = getattr(output, "_fields", None) or [f.name for f in fields(output)]  # type: ignore[arg-type]
        named = {name: getattr(output, name) for name in names}
    if named is not None:
        return {name: named[name] for name in _NAMES if named.get(name) is not None}
    if isinstance(output, tuple | list):
        return output[1] if len(output) == 2 else list(output[1:])
    return None


def _held_by(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields buffers and other tensors of a module and its submodules, but no parameters."""
    for name, layer in module.named_modules():
        own = {k: v for k, v in vars(layer).items() if k not in ("_parameters", "_modules")}
        for path, tensor in _leaves(own):
            if not isinstance(tensor, nn.Parameter):
                yield f"{name}.{path.removeprefix('_buffers.')}".removeprefix("."), tensor


def _leaves(value: object, path: str = "", depth: int = 0, seen: set[int] | None = None) -> Any:
    """Yields the tensors within nested containers and objects, each once, with their paths."""
    seen = set() if seen is None else seen
    if id(value) in seen or depth > _DEEPEST or isinstance(value, nn.Module | type | torch.dtype):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        if value.ndim and value.numel():  # a scalar is a counter
            yield path, value
        return
    items: list[tuple[Any, object]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        items = list(enumerate(value))
    elif hasattr(value, "__dict__") and not callable(value):
        items = list(vars(value).items())
    for name, item in items:
        yield from _leaves(item, f"{path}.{name}" if path else str(name), depth + 1, seen)
