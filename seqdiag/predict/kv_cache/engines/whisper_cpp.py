"""whisper.cpp: self and cross attention in float16, padded to 256 tokens."""

from __future__ import annotations

from seqdiag.predict.kv_cache.cache_types import GGML
from seqdiag.predict.kv_cache.engines.base import Engine, copies, round_up
from seqdiag.predict.kv_cache.layout import (
    Attention,
    CrossAttention,
    DtypeChoice,
    Dtypes,
    Kept,
    Layout,
    Part,
)

_PAD = 256


class WhisperCpp(Engine):
    """What `whisper_init_state` prints as kv self and kv cross."""

    name = "whisper.cpp"
    version = "2026"
    conventions = (
        "whisper.cpp: text and audio contexts padded to 256, float16; its buffer for padding keys "
        "(kv pad) is work_bytes, beside the total"
    )
    cache_types = GGML
    settings_read = frozenset()

    def dtypes(self, layout: Layout) -> DtypeChoice:
        return DtypeChoice("float16", "float16")

    @property
    def granule(self) -> int:
        return _PAD

    def tensors(self, part: Part, tokens: int, batch: int, dtypes: Dtypes) -> tuple[Kept, ...]:
        if isinstance(part, CrossAttention):
            return copies(part.cells(round_up(part.encoder_tokens, _PAD)), batch)
        assert isinstance(part, Attention)
        return copies(part.cells(round_up(tokens, _PAD)), batch)

    def work_bytes(self, layout: Layout, dtypes: Dtypes) -> int | None:
        """One layer of cross attention to pad keys and values in: what is printed as kv pad."""
        cross = next(part for part in layout.parts() if isinstance(part, CrossAttention))
        return sum(t.bytes(dtypes) for t in self.tensors(cross, 1, 1, dtypes))

    def unsupported(self, layout: Layout, dtypes: Dtypes) -> str:
        if not any(isinstance(part, CrossAttention) for part in layout.parts()):
            return "whisper.cpp runs encoder-decoder models only"
        return super().unsupported(layout, dtypes)
