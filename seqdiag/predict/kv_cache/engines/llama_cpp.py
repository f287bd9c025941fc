"""llama.cpp: cells padded to 256, streams, a smaller cache for windows, float32 states.

`src/llama-kv-cache*.cpp`, `src/llama-memory-recurrent.cpp` and the buffer sizes they print.
"""

from __future__ import annotations

from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.cache_types import GGML
from seqdiag.predict.kv_cache.engines.base import Engine, copies, round_up
from seqdiag.predict.kv_cache.layout import (
    Attention,
    CrossAttention,
    DtypeChoice,
    Dtypes,
    Kept,
    Latent,
    Layout,
    Part,
)

_PAD = 256


class LlamaCpp(Engine):
    """Every slot has room for the whole context; `--parallel` slots, else one a sequence."""

    name = "llama.cpp"
    version = "2026"
    conventions = (
        "llama.cpp: cells padded to 256; a window keeps pad256(min(context, W + ubatch)) cells; "
        "states are float32 for each slot, with K-1 columns; keys and values float16 unless said"
    )
    cache_types = GGML
    settings_read = frozenset(
        {"parallel", "ubatch", "unified", "swa_full", "swa_dtype", "mla", "spec_tokens"}
    )

    def dtypes(self, layout: Layout) -> DtypeChoice:
        return DtypeChoice("float16", "float16", "float32", "float32")

    @property
    def granule(self) -> int:
        return _PAD

    def tensors(self, part: Part, tokens: int, batch: int, dtypes: Dtypes) -> tuple[Kept, ...]:
        slots = max(self.settings.parallel or 1, batch)
        if part.is_state:
            # A draft of n tokens keeps n snapshots besides the state itself.
            return copies(part.tensors(tokens), slots * (1 + self.settings.spec_tokens))
        streams = 1 if self.settings.unified else slots
        context = round_up(tokens * (batch if self.settings.unified else 1), _PAD)
        if isinstance(part, CrossAttention):
            return copies(part.cells(round_up(part.encoder_tokens, _PAD)), slots)
        if isinstance(part, Latent):
            return copies(self.latent(part, context), streams)
        assert isinstance(part, Attention)
        return copies(self._typed(part, part.cells(self._cells(part, context, slots))), streams)

    def read(self, part: Part, tokens: int) -> tuple[Kept, ...]:
        return self._typed(part, super().read(part, tokens))

    def _typed(self, part: Part, kept: tuple[Kept, ...]) -> tuple[Kept, ...]:
        """Returns the tensors of a window as bytes where they have a type of their own."""
        own = self.settings.swa_dtype
        if own is None or not isinstance(part, Attention) or part.window is None:
            return kept
        dtypes = Dtypes(own, own, own)
        return tuple(Kept((tensor.bytes(dtypes),), "pad") for tensor in kept)

    def _cells(self, part: Attention, context: int, slots: int) -> int:
        if part.window is None or self.settings.swa_full:
            return context
        sharing = slots if self.settings.unified else 1
        return round_up(min(context, part.window * sharing + self.settings.ubatch), _PAD)

    def latent(self, part: Latent, cells: int) -> tuple[Kept, ...]:
        """The latent and the rotary key are one row; an indexer key is another."""
        if self.settings.mla == "expanded":
            if part.expanded is None:
                raise UsageError(
                    "--mla: expanded needs num_attention_heads, qk_nope_head_dim and v_head_dim, "
                    "and the config lacks one"
                )
            heads, key, value = part.expanded
            return (Kept((heads, cells, key), "key"), Kept((heads, cells, value), "value"))
        kept = [Kept((1, cells, part.rank + part.rope_dim), "key")]
        if self.settings.mla == "latent-and-value":
            kept.append(Kept((1, cells, part.rank), "value"))
        if part.index_dim:
            kept.append(Kept((1, cells, part.index_dim), "key"))
        return tuple(kept)
