"""What a model keeps between decode steps: a list of layers, each a list of parts.

A part names the tensors it keeps for one sequence after T tokens; bytes follow from those, and
`--measure` allocates exactly those. To add a mechanism: one class here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar, Literal

Role = Literal["kv", "conv", "state"]

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
"""Bytes of an element. float8 is one byte with a scale for a whole tensor, too small to count."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One tensor kept for one sequence: its shape and which dtype rule it follows."""

    shape: tuple[int, ...]
    role: Role

    @property
    def elements(self) -> int:
        return prod(self.shape)


class Part(ABC):
    """One cache mechanism of one layer."""

    kind: ClassVar[str]
    is_state: ClassVar[bool] = False
    """Whether the size is fixed from the first token on."""

    __slots__ = ()

    @abstractmethod
    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        """Returns what is kept for one sequence after `tokens` tokens."""

    @abstractmethod
    def formula(self, tokens: int) -> str:
        """Returns the number of elements as a product, with the numbers put in."""

    def saturates_at(self) -> int | None:
        """Returns the token count from which the size no longer grows, if there is one."""
        return None


@dataclass(frozen=True, slots=True)
class Attention(Part):
    """Keys and values of (grouped-query) attention, of the last `window` tokens if it slides.

    The window counts the current token. T x kv_heads x (head_dim + v_head_dim).
    """

    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    kind: ClassVar[str] = "attention"

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        held = self._held(tokens)
        return (
            Kept((self.kv_heads, held, self.head_dim), "kv"),
            Kept((self.kv_heads, held, self.v_head_dim), "kv"),
        )

    def formula(self, tokens: int) -> str:
        held = f"{tokens} tokens"
        if self.window is not None:
            held = f"min({tokens} tokens, window {self.window})"
        return (
            f"{self.kv_heads} kv heads x ({self.head_dim} key + {self.v_head_dim} value) x {held}"
        )

    def saturates_at(self) -> int | None:
        return self.window

    def _held(self, tokens: int) -> int:
        return tokens if self.window is None else min(tokens, self.window)


@dataclass(frozen=True, slots=True)
class Latent(Part):
    """Multi-head latent attention: one compressed vector and one rotary key for all heads.

    T x (kv_lora_rank + qk_rope_head_dim). DeepSeek-V2 (arXiv 2405.04434), section 2.1.
    """

    rank: int
    rope_dim: int
    kind: ClassVar[str] = "latent"

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        return (Kept((tokens, self.rank), "kv"), Kept((tokens, self.rope_dim), "kv"))

    def formula(self, tokens: int) -> str:
        return f"({self.rank} latent + {self.rope_dim} rotary key) x {tokens} tokens"


@dataclass(frozen=True, slots=True)
class ConvState(Part):
    """The last inputs of a short causal convolution: kernel K needs K-1 columns."""

    channels: int
    columns: int
    kind: ClassVar[str] = "conv"
    is_state: ClassVar[bool] = True

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        return (Kept((self.channels, self.columns), "conv"),)

    def formula(self, tokens: int) -> str:
        return f"{self.channels} channels x {self.columns} columns"


@dataclass(frozen=True, slots=True)
class RecurrentState(Part):
    """A recurrent state of fixed shape, such as d_inner x d_state (Mamba, arXiv 2312.00752)."""

    shape: tuple[int, ...]
    kind: ClassVar[str] = "recurrent"
    is_state: ClassVar[bool] = True

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        return (Kept(self.shape, "state"),)

    def formula(self, tokens: int) -> str:
        return " x ".join(map(str, self.shape)) + " state"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: what it keeps. An MLP keeps nothing and has no parts."""

    parts: tuple[Part, ...]

    @property
    def kind(self) -> str:
        return "+".join(_kind(part) for part in self.parts) or "none"


def _kind(part: Part) -> str:
    return "sliding" if isinstance(part, Attention) and part.window is not None else part.kind


@dataclass(frozen=True, slots=True)
class Layout:
    """A model's layers and where they were read."""

    name: str
    layers: tuple[Layer, ...]
    dtype: str
    """The model's own dtype: the default for keys, values and convolution states."""
    state_dtype: str = "float32"
    """The dtype of recurrent states."""
    source: str = ""
    fields: dict[str, object] = field(default_factory=dict)
    """The config fields that decided, with their values."""
    assumed: dict[str, object] = field(default_factory=dict)
    """Values the config lacks, taken from the model class."""

    def parts(self) -> Iterator[Part]:
        for layer in self.layers:
            yield from layer.parts


@dataclass(frozen=True, slots=True)
class Dtypes:
    """The dtype of each role."""

    kv: str
    conv: str
    state: str

    def of(self, role: Role) -> str:
        return {"kv": self.kv, "conv": self.conv, "state": self.state}[role]

    def itemsize(self, role: Role) -> int:
        return ITEMSIZE[self.of(role)]


def dtypes_for(layout: Layout, kv: str | None, state: str | None) -> Dtypes:
    """Returns the dtypes in force: `None` is the model's own.

    A quantised cache (float8) leaves the convolution state in the model's dtype.
    """
    chosen = kv or layout.dtype
    conv = chosen if ITEMSIZE[chosen] >= 2 else layout.dtype
    own = chosen if layout.state_dtype == "model" and ITEMSIZE[chosen] >= 2 else layout.state_dtype
    return Dtypes(chosen, conv, state or (layout.dtype if own == "model" else own))
