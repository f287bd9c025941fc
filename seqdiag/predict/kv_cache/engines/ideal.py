"""What the mechanism needs and no more: no padding, no paging, no copies."""

from __future__ import annotations

from seqdiag.predict.kv_cache.engines.base import Engine, copies
from seqdiag.predict.kv_cache.layout import Dtypes, Kept, Part


class Ideal(Engine):
    """The bare need."""

    name = "ideal"
    takes_special = True
    conventions = (
        "ideal: a window of W counts the current token; a convolution of kernel K keeps K-1 "
        "columns; a latent is kept once for all heads"
    )

    def tensors(self, part: Part, tokens: int, batch: int, dtypes: Dtypes) -> tuple[Kept, ...]:
        return copies(self.sharded(part).tensors(tokens), batch)
