"""Feeding a user's module: floats or tokens, which width, which output has the time axis."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from seqdiag.errors import UsageError
from seqdiag.models.loading import user_code

Layout = Literal["btd", "tbd", "bdt"]
InputKind = Literal["auto", "floats", "tokens", "samples"]

_HOW_TO_FEED = (
    "--input, --d-in, --vocab, --layout, --seq-len, --dtype say how to feed it; --debug shows where"
)
_DEFAULT_WIDTH = 32
_DEFAULT_VOCAB = 256


@dataclass(frozen=True, slots=True)
class Feeding:
    """What the user says of the module's input and output; None and `auto` are found by trying."""

    batch: int
    seq_len: int
    dtype: torch.dtype
    device: torch.device
    kind: InputKind = "auto"
    d_in: int | None = None
    vocab: int | None = None
    layout: Layout = "btd"
    pick: str | None = None
    """Which output to take, as a key or index path such as `logits` or `0`."""
    alike: bool = False
    """Whether all sequences of the batch are one and the same."""
    differentiable: bool = True
    """Whether the output must carry a gradient."""
    resampled: bool = False
    """Whether the output may have more or fewer steps than the input."""


@dataclass(frozen=True, slots=True)
class Fed:
    """A module ready to be probed: `run` maps inputs (B, T, D) to outputs (B, T, ...)."""

    inputs: Tensor
    run: Callable[[Tensor], Tensor]
    told: str
    """How the module is fed, for the reader."""
    run_ids: Callable[[Tensor], Tensor] | None = None
    """Maps token ids (B, T) to outputs (B, T, ...) of a token model, its embedding included."""
    vocab: int | None = None
    """Token ids are below this."""


def feed(module: nn.Module, feeding: Feeding, generator: torch.Generator) -> Fed:
    """Returns the module with inputs it accepts, drawn from `generator`.

    Floats are drawn from N(0, 1) in float32 and cast to the module's dtype. A token model is
    probed at the output of its embedding. Samples are floats (B, T) of one channel, as of sound.
    Raises `UsageError` when nothing works, with what each attempt said.
    """
    failures: list[UsageError] = []
    for kind in _kinds(module, feeding):
        widths = {"floats": _widths(module, feeding), "samples": [1]}.get(kind, [None])
        for width in widths:
            try:
                if width is None:
                    return _feed_tokens(module, feeding, generator)
                return _feed_floats(module, feeding, width, generator, kind == "samples")
            except UsageError as error:
                failures.append(error)
    first = failures[0]
    also = "; other ways to feed it failed too" if failures[1:] else ""
    raise UsageError(
        f"{first.message}{also}", hint=first.hint if first.__cause__ is None else _HOW_TO_FEED
    ) from first.__cause__


def raw_inputs(
    module: nn.Module, feeding: Feeding, generator: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    """Yields what the module may take, likeliest first: token ids, floats or samples, as told."""
    for kind in _kinds(module, feeding):
        if kind == "tokens":
            vocab = _vocab(module, feeding)
            ids = torch.randint(vocab, (feeding.batch, feeding.seq_len), generator=generator)
            ids = ids.t().contiguous() if feeding.layout == "tbd" else ids
            yield f"token ids below {vocab}", ids.to(feeding.device)
            continue
        for width in [1] if kind == "samples" else _widths(module, feeding):
            drawn = torch.randn(feeding.batch, feeding.seq_len, width, generator=generator)
            x = drawn.to(dtype=feeding.dtype, device=feeding.device)
            if kind == "samples":
                yield "samples", x.squeeze(-1)
            else:
                yield f"floats of width {width}", _arranged(x, feeding.layout)


def _vocab(module: nn.Module, feeding: Feeding) -> int:
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    return feeding.vocab or min(tables, default=_DEFAULT_VOCAB)


def _kinds(module: nn.Module, feeding: Feeding) -> list[InputKind]:
    if feeding.kind != "auto":
        return [feeding.kind]
    if feeding.d_in is not None:
        return ["floats"]
    if feeding.vocab is not None or any(isinstance(m, nn.Embedding) for m in module.modules()):
        return ["tokens", "floats"]
    return ["floats", "tokens"]


def _widths(module: nn.Module, feeding: Feeding) -> list[int]:
    """Returns the input widths worth trying: those of the layers, in order, then the default."""
    if feeding.d_in is not None:
        return [feeding.d_in]
    found = (width for layer in module.modules() if (width := _input_width(layer)))
    sizes = (parameter.shape[-1] for parameter in module.parameters() if parameter.ndim > 0)
    return list(dict.fromkeys([*found, _DEFAULT_WIDTH, *sizes]))[:16]


def _input_width(layer: nn.Module) -> int | None:
    for name in ("in_features", "input_size", "in_channels", "embed_dim", "d_model"):
        width = getattr(layer, name, None)
        if isinstance(width, int):
            return width
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return int(layer.normalized_shape[-1])
    return None


def _feed_floats(
    module: nn.Module, feeding: Feeding, width: int, generator: torch.Generator, samples: bool
) -> Fed:
    drawn = torch.randn(_drawn(feeding), feeding.seq_len, width, generator=generator)
    drawn = drawn.expand(feeding.batch, -1, -1)
    inputs = drawn.to(dtype=feeding.dtype, device=feeding.device)

    def run(x: Tensor) -> Tensor:
        given = x.squeeze(-1) if samples else _arranged(x, feeding.layout)
        return _forward(module, given, feeding, f"floats {_shape(given)}")

    _check(run, inputs, feeding)
    return Fed(inputs, run, "samples" if samples else f"floats of width {width}")


def _drawn(feeding: Feeding) -> int:
    """Returns how many different sequences there are."""
    return 1 if feeding.alike else feeding.batch


def _feed_tokens(module: nn.Module, feeding: Feeding, generator: torch.Generator) -> Fed:
    vocab = _vocab(module, feeding)
    tokens = torch.randint(vocab, (_drawn(feeding), feeding.seq_len), generator=generator)
    tokens = tokens.expand(feeding.batch, -1).contiguous()
    if feeding.layout == "tbd":
        tokens = tokens.t().contiguous()
    embeddings = _Embeddings(module, tokens.to(feeding.device))
    what = f"tokens {_shape(tokens)} below {vocab}"
    with embeddings.watched() as ids:
        _forward(module, ids, feeding, what)
    if not embeddings.found:
        raise UsageError(
            "--model: no submodule turned the token ids into vectors, so there is nothing to "
            "differentiate by",
            hint="use torch.nn.Embedding, or give a module that takes floats with --input floats",
        )
    inputs = _time_second(embeddings.vectors(), _embedded(feeding.layout))

    def run(x: Tensor) -> Tensor:
        with embeddings.replaced_by(_arranged(x, _embedded(feeding.layout))) as ids:
            return _forward(module, ids, feeding, what)

    def run_ids(ids: Tensor) -> Tensor:
        given = ids.t().contiguous() if feeding.layout == "tbd" else ids
        alone = dataclasses.replace(feeding, batch=len(ids))
        return _forward(module, given.to(feeding.device), alone, what)

    _check(run, inputs, feeding)
    told = f"token ids below {vocab}, probed at the embedding's output"
    return Fed(inputs, run, told, run_ids, vocab)


class _Embeddings:
    """The innermost submodules that turn the token ids into vectors, side by side."""

    def __init__(self, module: nn.Module, tokens: Tensor) -> None:
        self._module = module
        self._tokens = tokens
        self._ids = tokens
        self.found: dict[nn.Module, Tensor] = {}

    def vectors(self) -> Tensor:
        """Returns what they gave, side by side in the last dimension."""
        return torch.cat([output.detach() for output in self.found.values()], dim=-1)

    @contextlib.contextmanager
    def watched(self) -> Iterator[Tensor]:
        """Finds them during one forward pass of the ids that it gives."""

        def watch(layer: nn.Module, inputs: Any, output: Any) -> None:
            inside = any(part in self.found for part in layer.modules() if part is not layer)
            if not inside and layer not in self.found and self._embeds(inputs, output):
                self.found[layer] = output

        root = isinstance(self._module, nn.Embedding)
        layers = [m for m in self._module.modules() if root or m is not self._module]
        with _Hooks(layers, watch):
            yield self._fresh()

    @contextlib.contextmanager
    def replaced_by(self, vectors: Tensor) -> Iterator[Tensor]:
        """Adds `vectors` minus its own value to what they give, so that gradients reach both.

        The value stays that of `vectors`, which start as what the layers give.
        """
        widths = [output.shape[-1] for output in self.found.values()]
        parts = dict(zip(self.found, torch.split(vectors, widths, dim=-1), strict=True))

        def replace(layer: nn.Module, inputs: Any, output: Any) -> Tensor | None:
            if not self._embeds(inputs, output):
                return None
            # In front of other hooks, and the layer's own weights keep their gradient.
            replaced: Tensor = parts[layer] + (output - output.detach())
            return replaced

        with _Hooks(list(self.found), replace):
            yield self._fresh()

    def _fresh(self) -> Tensor:
        self._ids = self._tokens.clone()  # a module may change its input
        return self._ids

    def _embeds(self, inputs: Any, output: Any) -> bool:
        return (
            bool(inputs)
            and isinstance(inputs[0], Tensor)
            and inputs[0].shape == self._tokens.shape
            and not inputs[0].is_floating_point()
            and (inputs[0] is self._ids or bool((inputs[0] == self._tokens).all()))
            and isinstance(output, Tensor)
            and output.is_floating_point()
            and output.shape[:2] == self._tokens.shape
            and output.ndim == 3
        )


class _Hooks:
    """Forward hooks, before any other, for the length of a `with` block."""

    def __init__(self, layers: list[nn.Module], hook: Callable[..., Any]) -> None:
        self._layers = layers
        self._hook = hook
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        self._handles = [
            layer.register_forward_hook(self._hook, prepend=True) for layer in self._layers
        ]

    def __exit__(self, *exc: object) -> None:
        for handle in self._handles:
            handle.remove()


def _forward(module: nn.Module, inputs: Tensor, feeding: Feeding, what: str) -> Tensor:
    with user_code(f"forward with {what}"):
        output = module(inputs)
    return _time_second(_pick(output, feeding), feeding.layout)


def _pick(output: object, feeding: Feeding) -> Tensor:
    """Returns the one tensor of the output that has the time axis."""
    tensors = dict(_tensors(output))
    if feeding.pick is not None:
        if feeding.pick not in tensors:
            raise UsageError(
                f"--pick: the output has no {feeding.pick!r}",
                hint=f"it has: {', '.join(tensors) or 'no tensor'}",
            )
        tensors = {feeding.pick: tensors[feeding.pick]}
    timed = {name: t for name, t in tensors.items() if _has_time(t, feeding)}
    if not timed and feeding.resampled:
        timed = {name: t for name, t in tensors.items() if _has_some_time(t, feeding)}
    unique = {id(t): name for name, t in timed.items()}
    if len(unique) == 1:
        return timed[next(iter(unique.values()))]
    shown = timed or tensors
    shapes = ", ".join(f"{name or 'output'} {_shape(t)}" for name, t in shown.items())
    if not timed:
        expected = {
            "btd": f"({feeding.batch}, {feeding.seq_len}, ...)",
            "tbd": f"({feeding.seq_len}, {feeding.batch}, ...)",
            "bdt": f"({feeding.batch}, ..., {feeding.seq_len})",
        }[feeding.layout]
        raise UsageError(
            f"--model: the output has no time axis: it is {shapes or _described(output)}, "
            f"expected floats {expected}",
            hint="--layout says where batch and time are; the model must return every step",
        )
    raise UsageError(
        f"--model: {len(timed)} outputs have the time axis: {shapes}",
        hint=f"choose one, such as --pick {next(iter(timed))}; if time comes first, --layout tbd",
    )


def _tensors(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields the floating tensors in nested tuples, dicts and dataclasses with their paths."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield path, value
        return
    items: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = list(zip(value._fields, value, strict=True))
    elif isinstance(value, tuple | list):
        items = [(str(i), item) for i, item in enumerate(value)]
    for name, item in items:
        yield from _tensors(item, f"{path}.{name}" if path else name)


def _has_time(tensor: Tensor, feeding: Feeding) -> bool:
    batch, time = feeding.batch, feeding.seq_len
    if tensor.ndim < 2:
        return False
    if feeding.layout == "btd":
        return tensor.shape[:2] == (batch, time)
    if feeding.layout == "tbd":
        return tensor.shape[:2] == (time, batch)
    return tensor.shape[0] == batch and tensor.shape[-1] == time


def _has_some_time(tensor: Tensor, feeding: Feeding) -> bool:
    """Returns whether a tensor has the axes of a sequence, of whatever length."""
    batch_axis = 1 if feeding.layout == "tbd" else 0
    return tensor.ndim == 3 and tensor.shape[batch_axis] == feeding.batch


def _arranged(x: Tensor, layout: Layout) -> Tensor:
    """Returns (B, T, D) in the layout of the module."""
    if layout == "tbd":
        return x.transpose(0, 1)
    return x.transpose(1, 2) if layout == "bdt" else x


def _time_second(x: Tensor, layout: Layout) -> Tensor:
    """Returns an output of the module as (B, T, ...)."""
    if layout == "tbd":
        return x.transpose(0, 1)
    return x.movedim(-1, 1) if layout == "bdt" else x


def _embedded(layout: Layout) -> Layout:
    """Returns the layout of an embedding's output: the width is last whatever comes after."""
    return "tbd" if layout == "tbd" else "btd"


def _check(run: Callable[[Tensor], Tensor], inputs: Tensor, feeding: Feeding) -> None:
    """Runs once, so that what does not work is said now."""
    if not feeding.differentiable:
        with torch.no_grad():
            run(inputs.clone())
    elif not run(inputs.clone().requires_grad_().clone()).requires_grad:
        raise UsageError(
            "--model: the output carries no gradient: it is detached or depends on no input",
            hint=_HOW_TO_FEED,
        )


def _described(output: object) -> str:
    if isinstance(output, Tensor):
        return f"{str(output.dtype).removeprefix('torch.')} {_shape(output)}"
    return type(output).__name__


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
