"""What every engine shares: its settings, and bytes from the tensors it holds."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from seqdiag.predict.kv_cache.cache_types import CACHE_TYPES
from seqdiag.predict.kv_cache.layout import (
    Attention,
    ConvState,
    CrossAttention,
    DtypeChoice,
    Dtypes,
    Kept,
    Latent,
    Layout,
    Part,
)
from seqdiag.predict.kv_cache.special import SpecialPart

MlaForm = Literal["latent", "latent-and-value", "expanded"]
MambaCacheMode = Literal["none", "align", "all"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The flags of the engines. An engine reads those that its `settings` names."""

    tp: int = 1
    block_size: int = 16
    max_batched_tokens: int = 8192
    spec_tokens: int = 0
    parallel: int | None = None
    ubatch: int = 512
    unified: bool = False
    swa_full: bool = False
    swa_dtype: str | None = None
    """Of layers with a window, where it differs from the others'."""
    mla: MlaForm = "latent"
    mamba_cache_mode: MambaCacheMode = "none"
    disable_hybrid_kv_cache_manager: bool = False


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes for a whole batch at one context, of one rank if there are several."""

    kv_bytes: int = 0
    state_bytes: int = 0
    kv_read_bytes: int = 0
    """Cache bytes that one decode step reads."""
    window_bytes: int = 0
    """The part of `kv_bytes` in layers with a window or chunk."""
    cross_bytes: int = 0
    """The part of `kv_bytes` that belongs to the encoder's output."""
    recurrent_bytes: int = 0
    """The part of `state_bytes` that is no convolution state."""

    @property
    def total_bytes(self) -> int:
        return self.kv_bytes + self.state_bytes


class Engine(ABC):
    """Says how many bytes parts take at `tokens` tokens in each of `batch` sequences."""

    name: ClassVar[str]
    version: ClassVar[str] = ""
    """The release or form that the rules were checked against."""
    conventions: ClassVar[str]
    """The rules in force, in one line."""
    cache_types: ClassVar[tuple[str, ...]] = tuple(CACHE_TYPES)
    settings_read: ClassVar[frozenset[str]] = frozenset({"tp"})
    knows_parts: ClassVar[bool] = True
    """Whether it is known what each part is and how much of it a decode step reads."""
    takes_special: ClassVar[bool] = False
    """Whether it is known how mechanisms of single families are stored."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()

    @abstractmethod
    def tensors(self, part: Part, tokens: int, batch: int, dtypes: Dtypes) -> tuple[Kept, ...]:
        """Returns the tensors held for the whole batch."""

    def prepare(self, layout: Layout, dtypes: Dtypes) -> None:
        """Looks at the whole model; only engines whose rules need it do more than nothing."""
        return

    def dtypes(self, layout: Layout) -> DtypeChoice:
        """Returns what the engine itself says of dtypes."""
        return DtypeChoice()

    def unsupported(self, layout: Layout, dtypes: Dtypes) -> str:
        """Returns why the engine cannot hold this model in these dtypes; empty if it can."""
        special = [part for part in layout.parts() if isinstance(part, SpecialPart)]
        if special and not self.takes_special:
            return f"how {self.name} keeps a layer of the kind {special[0].kind} is not known"
        for name in dict.fromkeys((dtypes.kv, dtypes.value or dtypes.kv)):
            if name not in self.cache_types:
                return f"{self.name} has no {name} cache; it has {', '.join(self.cache_types)}"
        return ""

    def work_bytes(self, layout: Layout, dtypes: Dtypes) -> int | None:
        """Returns the bytes of a buffer beside the cache that belongs to no layer, if any."""
        return None

    @property
    def granule(self) -> int:
        """How many tokens a sequence's cache grows by."""
        return 1

    @property
    def pages(self) -> tuple[int | None, float | None]:
        """Returns the tokens of a page, and by what share of itself a state's page is padded."""
        return None, None

    def breakpoints(self, part: Part) -> set[int]:
        """Returns the token counts around which the size stops being linear."""
        point = part.saturates_at()
        return set() if point is None else {point}

    def allocate(
        self, parts: Iterable[Part], tokens: int, batch: int, dtypes: Dtypes
    ) -> Allocation:
        """Returns the bytes of `parts`. Equal parts are sized once."""
        sums = dict.fromkeys(Allocation.__slots__, 0)
        for part, count in Counter(parts).items():
            kept = self.tensors(part, tokens, batch, dtypes)
            size = count * sum(tensor.bytes(dtypes) for tensor in kept)
            if part.is_state:
                sums["state_bytes"] += size
                if not isinstance(part, ConvState):
                    sums["recurrent_bytes"] += count * sum(
                        tensor.bytes(dtypes) for tensor in kept if tensor.role == "state"
                    )
                continue
            sums["kv_bytes"] += size
            read = self.read(part, tokens)
            sums["kv_read_bytes"] += count * batch * sum(tensor.bytes(dtypes) for tensor in read)
            if isinstance(part, Attention) and part.window is not None:
                sums["window_bytes"] += size
            if isinstance(part, CrossAttention):
                sums["cross_bytes"] += size
        return Allocation(**sums)

    def read(self, part: Part, tokens: int) -> tuple[Kept, ...]:
        """Returns what one decode step of one sequence reads of a cache, as it is stored.

        Each key and value in reach is read once. An indexer reads all of its keys to choose the
        tokens whose latents are read.
        """
        part = self.sharded(part)
        if isinstance(part, SpecialPart):
            return part.read(tokens)
        if not isinstance(part, Latent):
            return part.tensors(tokens)
        whole = self.latent(part, tokens)
        chosen = self.latent(dataclasses.replace(part, index_dim=0), part.attended(tokens))
        # Without the indexer's keys, the last of the whole, nothing can be chosen.
        return chosen + whole[len(chosen) :] if len(whole) > len(chosen) else whole

    def latent(self, part: Latent, cells: int) -> tuple[Kept, ...]:
        """Returns the tensors of a latent for `cells` tokens; an indexer's key is the last."""
        return part.tensors(cells)

    def sharded(self, part: Part) -> Part:
        """Returns what one of `tp` ranks holds of a part."""
        from seqdiag.predict.kv_cache.engines.sharding import shard

        return part if self.settings.tp == 1 else shard(part, self.settings.tp)


def copies(kept: Iterable[Kept], batch: int) -> tuple[Kept, ...]:
    """Returns the tensors of one sequence for `batch` of them."""
    return tuple(Kept((batch, *tensor.shape), tensor.role) for tensor in kept)


def with_index_scale(kept: Iterable[Kept], tokens: int) -> tuple[Kept, ...]:
    """Returns the tensors with each indexer key as fp8 and a float32 scale for every 128 of it."""
    return tuple(
        Kept((tokens, tensor.shape[-1] + 4 * -(-tensor.shape[-1] // 128)), "pad")
        if tensor.role == "index"
        else tensor
        for tensor in kept
    )


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
