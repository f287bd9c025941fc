"""SGLang: pages of one token, and one state slot more than there are sequences."""

from __future__ import annotations

from seqdiag.predict.kv_cache.engines.base import Engine, copies, with_index_scale
from seqdiag.predict.kv_cache.layout import DtypeChoice, Dtypes, Kept, Latent, Layout, Part


class SGLang(Engine):
    """Need of the batch, of one rank."""

    name = "sglang"
    version = "2026"
    conventions = (
        "SGLang: pages of one token; one state slot more than sequences; K-1 columns; states are "
        "float32; an indexer key is fp8 with a float32 scale"
    )
    cache_types = ("float32", "float16", "bfloat16", "float8", "nvfp4")

    def dtypes(self, layout: Layout) -> DtypeChoice:
        return DtypeChoice(conv=layout.dtype, state="float32")

    def tensors(self, part: Part, tokens: int, batch: int, dtypes: Dtypes) -> tuple[Kept, ...]:
        part = self.sharded(part)
        kept = self.latent(part, tokens) if isinstance(part, Latent) else part.tensors(tokens)
        return copies(kept, batch + 1 if part.is_state else batch)

    def latent(self, part: Latent, cells: int) -> tuple[Kept, ...]:
        return with_index_scale(part.tensors(cells), cells)
