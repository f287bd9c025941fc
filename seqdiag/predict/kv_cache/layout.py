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

from seqdiag.predict.kv_cache.cache_types import CACHE_TYPES, kivi_bytes, row_bytes

Role = Literal["key", "value", "latent", "rope", "index", "conv", "state", "pad"]
"""Which dtype rule a tensor follows. A pad is counted in bytes."""

ITEMSIZE = {name: kind.block_bytes for name, kind in CACHE_TYPES.items() if kind.is_plain}
"""Bytes of an element, for the types that are one number an element."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One tensor kept for one sequence: its shape and which dtype rule it follows.

    Keys and values are (..., heads, tokens, dim), latents and indexer keys (..., tokens, dim).
    """

    shape: tuple[int, ...]
    role: Role

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def bytes(self, dtypes: Dtypes) -> int:
        """Returns the bytes of the tensor; quantised types take whole rows."""
        name = dtypes.of(self.role)
        if name in ITEMSIZE:
            return self.elements * ITEMSIZE[name]
        heads = self.shape[-3] if self.role in ("key", "value") else 1
        dim = self.shape[-1]
        if CACHE_TYPES[name].kivi_bits:
            held = (heads, self.shape[-2], dim, self.role)
            return prod(self.shape[:-3]) * kivi_bytes(name, *held, dtypes.group, dtypes.residual)
        return self.elements // (heads * dim) * row_bytes(name, heads, dim, self.role)


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

    @property
    def period(self) -> int:
        """Tokens after which a size that rises and falls is on its line again; 1: never."""
        return 1


@dataclass(frozen=True, slots=True)
class Attention(Part):
    """Keys and values of (grouped-query) attention, of the last `window` tokens if it slides.

    The window counts the current token. T x kv_heads x (head_dim + v_head_dim).
    """

    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    chunked: bool = False
    """Whether `window` is a chunk that attention starts anew, as in Llama 4."""
    library_heads: int | None = None
    """Heads that transformers stores where it stores keys and values already repeated."""
    trimmed: bool = True
    """Whether transformers drops what the window no longer sees."""
    kind: ClassVar[str] = "attention"

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        return self.cells(tokens if self.window is None else min(tokens, self.window))

    def cells(self, held: int, heads: int | None = None) -> tuple[Kept, ...]:
        """Returns the tensors with room for `held` tokens."""
        kv_heads = heads or self.kv_heads
        return (
            Kept((kv_heads, held, self.head_dim), "key"),
            Kept((kv_heads, held, self.v_head_dim), "value"),
        )

    def formula(self, tokens: int) -> str:
        held = f"{tokens} tokens"
        if self.window is not None:
            name = "chunk" if self.chunked else "window"
            held = f"min({tokens} tokens, {name} {self.window})"
        return (
            f"{self.kv_heads} kv heads x ({self.head_dim} key + {self.v_head_dim} value) x {held}"
        )

    def saturates_at(self) -> int | None:
        return self.window


@dataclass(frozen=True, slots=True)
class CrossAttention(Part):
    """Keys and values of the encoder's output, of fixed length: T_enc x kv_heads x 2 head_dim."""

    kv_heads: int
    head_dim: int
    encoder_tokens: int
    kind: ClassVar[str] = "cross"

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        return self.cells(self.encoder_tokens)

    def cells(self, held: int, heads: int | None = None) -> tuple[Kept, ...]:
        """Returns the tensors with room for `held` encoder tokens."""
        shape = (heads or self.kv_heads, held, self.head_dim)
        return (Kept(shape, "key"), Kept(shape, "value"))

    def formula(self, tokens: int) -> str:
        return f"{self.kv_heads} kv heads x 2 x {self.head_dim} x {self.encoder_tokens} encoded"


@dataclass(frozen=True, slots=True)
class Latent(Part):
    """Multi-head latent attention: one compressed vector and one rotary key for all heads.

    T x (kv_lora_rank + qk_rope_head_dim). DeepSeek-V2 (arXiv 2405.04434), section 2.1. With
    `index_dim`, the lightning indexer of DeepSeek-V3.2 keeps one more key for each token.
    """

    rank: int
    rope_dim: int
    index_dim: int = 0
    expanded: tuple[int, int, int] | None = None
    """Heads, key width and value width of the form that an engine without MLA stores."""
    index_heads: int | None = None
    topk: int = 0
    """How many tokens the indexer chooses for a step to attend to; 0: all."""
    kind: ClassVar[str] = "latent"

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        kept: tuple[Kept, ...] = (Kept((tokens, self.rank), "latent"),)
        if self.rope_dim:
            kept += (Kept((tokens, self.rope_dim), "rope"),)
        if self.index_dim:
            kept += (Kept((tokens, self.index_dim), "index"),)
        return kept

    def attended(self, tokens: int) -> int:
        """Returns how many of the tokens a step attends to."""
        return min(tokens, self.topk) if self.topk else tokens

    def formula(self, tokens: int) -> str:
        index = f" + {self.index_dim} indexer key" if self.index_dim else ""
        return f"({self.rank} latent + {self.rope_dim} rotary key{index}) x {tokens} tokens"


@dataclass(frozen=True, slots=True)
class ConvState(Part):
    """The last inputs of a short causal convolution: kernel K needs K-1 columns.

    Of the `channels`, `groups` x `group_width` belong to Mamba-2's groups (B and C), which tensor
    parallelism raises to the number of ranks where it does not divide them.
    """

    channels: int
    columns: int
    groups: int = 0
    group_width: int = 0
    exact: bool = False
    """Whether transformers, too, keeps no column more than is needed."""
    shift: bool = False
    """Whether it is RWKV's token shift, which mixes columns rather than convolve them."""
    wide: bool = False
    """Whether it is kept in the dtype of recurrent states."""
    kind: ClassVar[str] = "conv"
    is_state: ClassVar[bool] = True

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        return (Kept((self.channels, self.columns), "state" if self.wide else "conv"),)

    def formula(self, tokens: int) -> str:
        return f"{self.channels} channels x {self.columns} columns"


@dataclass(frozen=True, slots=True)
class RecurrentState(Part):
    """A recurrent state of fixed shape, such as d_inner x d_state (Mamba, arXiv 2312.00752)."""

    shape: tuple[int, ...]
    flops: int | None = None
    """Operations of a step for each number: 5 for decay, write, sum, read; None: not known."""
    kind: ClassVar[str] = "recurrent"
    is_state: ClassVar[bool] = True

    @property
    def numbers(self) -> int:
        return prod(self.shape)

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
        return "+".join(dict.fromkeys(map(_kind, self.parts))) or "none"


def _kind(part: Part) -> str:
    if isinstance(part, Attention) and part.window is not None:
        return "chunked" if part.chunked else "sliding"
    return part.kind


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
    conflicts: tuple[str, ...] = ()
    """Fields that the config gives twice and differently, and which won."""
    query_heads: int | None = None
    weight_bytes: int | None = None
    weights_from: str = ""
    """How `weight_bytes` is known."""
    caution: str = ""
    """Why the layout may be wrong, if it was assumed rather than read."""
    measured: str = ""
    """How the layout was measured on a module, if it was."""
    float32_state: bool = False
    """Whether the model asks every engine for float32 recurrent states."""

    def parts(self) -> Iterator[Part]:
        for layer in self.layers:
            yield from layer.parts


@dataclass(frozen=True, slots=True)
class Dtypes:
    """The dtype of each role: keys (and latents), convolution states, recurrent states, values."""

    kv: str
    conv: str
    state: str
    value: str | None = None
    """Where it differs from that of the keys."""
    group: int = 32
    """Elements that share a scale in KIVI's types."""
    residual: int = 128
    """Tokens that KIVI's types keep in 16 bits."""

    @property
    def period(self) -> int:
        """Tokens after which KIVI's keys are packed: the size falls there."""
        return self.residual if CACHE_TYPES[self.kv].kivi_bits else 1

    def of(self, role: Role) -> str:
        if role == "value":
            return self.value or self.kv
        if role == "index":
            # An indexer key of a latent in fp8_ds_mla is plain fp8.
            return "float8" if self.kv == "fp8_ds_mla" else self.kv
        if role == "pad":
            return "float8"
        return {"conv": self.conv, "state": self.state}.get(role, self.kv)

    @property
    def label(self) -> str:
        return self.kv if self.value in (None, self.kv) else f"{self.kv}/{self.value}"


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """What the user and the engine say of dtypes; None leaves it to the model."""

    key: str | None = None
    value: str | None = None
    conv: str | None = None
    state: str | None = None


def dtypes_for(
    layout: Layout, kv: str | None, state: str | None, more: DtypeChoice | None = None
) -> Dtypes:
    """Returns the dtypes in force: `None` is the model's own.

    A quantised cache leaves the convolution state in the model's dtype. `more` wins where it says
    something.
    """
    more = more or DtypeChoice()
    chosen = kv or layout.dtype
    wide = ITEMSIZE.get(chosen, 1) >= 2
    conv = chosen if wide else layout.dtype
    own = chosen if layout.state_dtype == "model" and wide else layout.state_dtype
    return Dtypes(
        kv=more.key or chosen,
        conv=more.conv or conv,
        state=state or more.state or (layout.dtype if own == "model" else own),
        value=more.value or (chosen if more.key else None),
    )
