"""Cache mechanisms of single model families. Engines but `ideal` and `transformers` refuse them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from seqdiag.predict.kv_cache.layout import Kept, Part


class SpecialPart(Part):
    """A part whose forms in the library and in a decode step are its own."""

    __slots__ = ()

    def library(self, tokens: int) -> tuple[Kept, ...]:
        """Returns what the cache of transformers holds of one sequence after a step."""
        return self.tensors(tokens)

    def read(self, tokens: int) -> tuple[Kept, ...]:
        """Returns what one decode step reads."""
        return self.tensors(tokens)


@dataclass(frozen=True, slots=True)
class HiddenStates(SpecialPart):
    """Inputs of a layer kept instead of keys and values, of the last `most` tokens (XLNet)."""

    width: int
    most: int | None = None
    kind: ClassVar[str] = "hidden"

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        held = tokens if self.most is None else min(tokens, self.most)
        return (Kept((held, self.width), "latent"),)

    def formula(self, tokens: int) -> str:
        held = f"{tokens} tokens" if self.most is None else f"min({tokens} tokens, {self.most})"
        return f"{self.width} x {held}"

    def saturates_at(self) -> int | None:
        return self.most


@dataclass(frozen=True, slots=True)
class PromptedAttention(SpecialPart):
    """Keys and values of the text and of learned tokens before it (CPM-Ant)."""

    kv_heads: int
    head_dim: int
    prompt: int
    kind: ClassVar[str] = "attention"

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        shape = (self.kv_heads, tokens + self.prompt, self.head_dim)
        return (Kept(shape, "key"), Kept(shape, "value"))

    def formula(self, tokens: int) -> str:
        return f"{self.kv_heads} kv heads x 2 x {self.head_dim} x ({tokens} + {self.prompt} tokens)"


@dataclass(frozen=True, slots=True)
class IndexedAttention(SpecialPart):
    """Keys and values of which an indexer chooses `chosen` tokens, and its own key a token."""

    kv_heads: int
    head_dim: int
    index_dim: int
    chosen: int
    position_bytes: int = 0
    """What transformers keeps of each token's position beside the indexer's key."""
    kind: ClassVar[str] = "indexed"

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        shape = (self.kv_heads, tokens, self.head_dim)
        return (Kept(shape, "key"), Kept(shape, "value"), Kept((tokens, self.index_dim), "index"))

    def library(self, tokens: int) -> tuple[Kept, ...]:
        kept = self.tensors(tokens)
        return (*kept, Kept((tokens, self.position_bytes), "pad")) if self.position_bytes else kept

    def read(self, tokens: int) -> tuple[Kept, ...]:
        key, value, _ = self.tensors(min(tokens, self.chosen))
        return (key, value, self.tensors(tokens)[2])

    def formula(self, tokens: int) -> str:
        return (
            f"({self.kv_heads} kv heads x 2 x {self.head_dim} + {self.index_dim} indexer key) x "
            f"{tokens} tokens"
        )


@dataclass(frozen=True, slots=True)
class IndexKeys(SpecialPart):
    """An indexer's key a token, without a latent of its own beside it."""

    dim: int
    kind: ClassVar[str] = "index"

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        return (Kept((tokens, self.dim), "index"),)

    def formula(self, tokens: int) -> str:
        return f"{self.dim} indexer key x {tokens} tokens"


@dataclass(frozen=True, slots=True)
class IndexedLatent(SpecialPart):
    """A latent of which an indexer chooses `chosen` tokens, with a key unlike DeepSeek's.

    GLM-5-Next pools its keys, dots.note keeps them in float32 whatever the model's dtype.
    """

    rank: int
    rope_dim: int
    index_dim: int
    chosen: int
    wide: bool = False
    kind: ClassVar[str] = "latent"

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        return (*self._latents(tokens), self._index(tokens))

    def read(self, tokens: int) -> tuple[Kept, ...]:
        return (*self._latents(min(tokens, self.chosen)), self._index(tokens))

    def _latents(self, held: int) -> tuple[Kept, ...]:
        return (Kept((held, self.rank), "latent"), Kept((held, self.rope_dim), "rope"))

    def _index(self, tokens: int) -> Kept:
        if self.wide:
            return Kept((tokens, 4 * self.index_dim), "pad")
        return Kept((tokens, self.index_dim), "index")

    def formula(self, tokens: int) -> str:
        wide = " of float32" if self.wide else ""
        return (
            f"({self.rank} latent + {self.rope_dim} rotary key + {self.index_dim} indexer key"
            f"{wide}) x {tokens} tokens"
        )


@dataclass(frozen=True, slots=True)
class WindowedLatent(SpecialPart):
    """A latent and a rotary key of the last `window` tokens, the current one counted."""

    rank: int
    rope_dim: int
    window: int
    kind: ClassVar[str] = "sliding-latent"

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        return self._cells(min(tokens, self.window))

    def library(self, tokens: int) -> tuple[Kept, ...]:
        return self._cells(min(tokens, self.window - 1))

    def _cells(self, held: int) -> tuple[Kept, ...]:
        return (Kept((held, self.rank), "latent"), Kept((held, self.rope_dim), "rope"))

    def formula(self, tokens: int) -> str:
        return (
            f"({self.rank} latent + {self.rope_dim} rotary key) x min({tokens} tokens, window "
            f"{self.window})"
        )

    def saturates_at(self) -> int | None:
        return self.window


@dataclass(frozen=True, slots=True)
class CompressedAttention(SpecialPart):
    """A window, and one entry for every `rate` tokens before it (DeepSeek-V4).

    Keys are values too: one vector of `head_dim`. Tokens that do not fill an entry yet wait as two
    vectors each, input and gate. With `index_dim` (compressed sparse attention) an indexer keeps
    entries of its own, entries overlap, so that waiting vectors are twice as wide, and the last
    window's half is kept, its gate in float32. The size rises and falls with T mod `rate`.
    """

    head_dim: int
    window: int
    rate: int
    index_dim: int = 0
    index_topk: int = 0
    kind: ClassVar[str] = "compressed"

    @property
    def _width(self) -> int:
        return self.head_dim + self.index_dim

    def tensors(self, tokens: int) -> tuple[Kept, ...]:
        return self._kept(tokens, self.window)

    def library(self, tokens: int) -> tuple[Kept, ...]:
        return self._kept(tokens, self.window - 1)

    def _kept(self, tokens: int, window: int) -> tuple[Kept, ...]:
        entries, waiting = divmod(tokens, self.rate)
        halves = 4 if self.index_dim else 2
        kept = [
            Kept((min(tokens, window), self.head_dim), "latent"),
            Kept((entries, self._width), "latent"),
            Kept((halves * waiting, self._width), "latent"),
        ]
        if self.index_dim and entries:
            kept += [
                Kept((self.rate, self._width), "latent"),
                Kept((self.rate, 4 * self._width), "pad"),
            ]
        return tuple(kept)

    def read(self, tokens: int) -> tuple[Kept, ...]:
        """The window, the entries (those the indexer chooses, and all of its keys)."""
        entries = tokens // self.rate
        chosen = min(entries, self.index_topk) if self.index_dim else entries
        return (
            Kept((min(tokens, self.window), self.head_dim), "latent"),
            Kept((chosen, self.head_dim), "latent"),
            Kept((entries, self.index_dim), "latent"),
        )

    @property
    def period(self) -> int:
        return self.rate

    def formula(self, tokens: int) -> str:
        entries, waiting = divmod(tokens, self.rate)
        return (
            f"{self.head_dim} x min({tokens} tokens, window {self.window}) + {self._width} x "
            f"({entries} entries of {self.rate} tokens + {4 if self.index_dim else 2} x {waiting} "
            "waiting)" + (" + the last window's half and gate" if self.index_dim else "")
        )
