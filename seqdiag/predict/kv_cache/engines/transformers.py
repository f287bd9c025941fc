"""The dynamic cache of transformers 5.24, after a step: measured on real cache objects."""

from __future__ import annotations

import dataclasses

from seqdiag.predict.kv_cache.cache_types import FLOATS
from seqdiag.predict.kv_cache.engines.base import Engine, copies
from seqdiag.predict.kv_cache.layout import Attention, ConvState, Dtypes, Kept, Part
from seqdiag.predict.kv_cache.special import SpecialPart


class Transformers(Engine):
    """Windows keep what the next step sees; convolutions one column more than they need."""

    name = "transformers"
    version = "5.24.0"
    takes_special = True
    conventions = (
        "transformers 5.24: a window of W keeps W-1 tokens after a step; a convolution of kernel K "
        "keeps K columns; latents are kept, not expanded"
    )
    cache_types = FLOATS

    def tensors(self, part: Part, tokens: int, batch: int, dtypes: Dtypes) -> tuple[Kept, ...]:
        part = self.sharded(part)
        if isinstance(part, SpecialPart):
            return copies(part.library(tokens), batch)
        if isinstance(part, Attention):
            held = tokens
            if part.window is not None and part.trimmed:
                held = min(tokens, part.window - 1)
            return copies(part.cells(held, part.library_heads), batch)
        if isinstance(part, ConvState) and not part.exact:
            part = dataclasses.replace(part, columns=part.columns + 1)
        return copies(part.tensors(tokens), batch)

    def read(self, part: Part, tokens: int) -> tuple[Kept, ...]:
        if isinstance(part, Attention) and part.library_heads:
            part = dataclasses.replace(part, kv_heads=part.library_heads, library_heads=None)
        return super().read(part, tokens)

    def breakpoints(self, part: Part) -> set[int]:
        return {point - 1 for point in super().breakpoints(part)}
