"""vLLM (V1): pages of tokens, and pages of state that attention pages must match.

`vllm/v1/kv_cache_interface.py`, `vllm/v1/core/kv_cache_utils.py`,
`vllm/model_executor/layers/mamba/mamba_utils.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from seqdiag.predict.kv_cache.engines.base import (
    Engine,
    Settings,
    copies,
    round_up,
    with_index_scale,
)
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

_ALIGN = 16


class Vllm(Engine):
    """Need of the batch in whole pages, of one rank."""

    name = "vllm"
    version = "V1, 2026"
    conventions = (
        "vLLM V1: whole pages of block_tokens; a window keeps the pages of W-1 and a prefill step, "
        "and one more; a state takes a page that attention's is raised to; K-1 and the draft's "
        "columns; states follow the model's dtype unless it asks for float32"
    )
    cache_types = (
        "float32", "float16", "bfloat16", "float8", "fp8_ds_mla", "int8", "nvfp4",
    )  # fmt: skip
    settings_read = frozenset(
        {
            "tp", "block_size", "max_batched_tokens", "spec_tokens", "mamba_cache_mode",
            "disable_hybrid_kv_cache_manager",
        }
    )  # fmt: skip

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings)
        self.block = self.settings.block_size
        self._page_by_layer: dict[Part, int] = {}
        self.padding: float | None = None
        """By what share of itself the state page is padded."""

    def dtypes(self, layout: Layout) -> DtypeChoice:
        return DtypeChoice(state="float32" if layout.float32_state else layout.dtype)

    def prepare(self, layout: Layout, dtypes: Dtypes) -> None:
        """Raises the block until one attention page holds one state page, and pads the latter."""
        states = {}
        for layer in set(layout.layers):
            parts = [part for part in layer.parts if part.is_state]
            if parts:
                size = sum(
                    kept.bytes(dtypes) for part in parts for kept in self._state(part).tensors(1)
                )
                states[layer] = (size, parts[-1])
        per_token = max(
            (self._token_bytes(part, dtypes) for part in set(layout.parts()) if not part.is_state),
            default=0,
        )
        if not states or not per_token:
            return
        page = max(size for size, _ in states.values())
        aligned = max(_ALIGN, self.settings.block_size)
        self.block = max(self.settings.block_size, aligned * -(-page // (aligned * per_token)))
        attention_page = self.block * per_token
        self.padding = attention_page / page - 1
        # The part that ends a layer's state carries the layer's padding.
        self._page_by_layer = {last: attention_page - size for size, last in states.values()}

    def _token_bytes(self, part: Part, dtypes: Dtypes) -> int:
        part = self.sharded(part)
        if isinstance(part, Attention | CrossAttention):
            return _size(part.cells(1), dtypes)
        return _size(part.tensors(1), dtypes)

    @property
    def granule(self) -> int:
        return self.block

    @property
    def pages(self) -> tuple[int | None, float | None]:
        return self.block, self.padding

    def tensors(self, part: Part, tokens: int, batch: int, dtypes: Dtypes) -> tuple[Kept, ...]:
        if part.is_state:
            kept = self._state(part).tensors(tokens)
            padding = self._page_by_layer.get(part, 0)
            pad = (Kept((padding,), "pad"),) if padding else ()
            # A draft keeps one more state for each of its tokens.
            pages = self._state_pages(tokens) + self.settings.spec_tokens
            return copies((*kept, *pad), batch * pages)
        part = self.sharded(part)
        if isinstance(part, CrossAttention):
            return copies(part.cells(round_up(part.encoder_tokens, self.block)), batch)
        if isinstance(part, Latent):
            return copies(self.latent(part, round_up(tokens, self.block)), batch)
        assert isinstance(part, Attention)
        return copies(part.cells(self._cells(part, tokens)), batch)

    def latent(self, part: Latent, cells: int) -> tuple[Kept, ...]:
        return with_index_scale(part.tensors(cells), cells)

    def _state_pages(self, tokens: int) -> int:
        """Returns the states of one sequence: prefix caching keeps more than the last."""
        if self.settings.mamba_cache_mode == "all":
            return -(-tokens // self.block)
        return 2 if self.settings.mamba_cache_mode == "align" else 1

    def _cells(self, part: Attention, tokens: int) -> int:
        if part.window is None or self.settings.disable_hybrid_kv_cache_manager:
            return round_up(tokens, self.block)
        budget = self.settings.max_batched_tokens
        if part.chunked:
            return round_up(min(part.window + budget, tokens), self.block)
        return round_up(min(part.window - 1 + budget, tokens), self.block) + self.block

    def _state(self, part: Part) -> Part:
        """A draft widens the convolution by a column a token."""
        part = self.sharded(part)
        if isinstance(part, ConvState):
            return dataclasses.replace(part, columns=part.columns + self.settings.spec_tokens)
        return part


def _size(kept: Iterable[Kept], dtypes: Dtypes) -> int:
    return sum(tensor.bytes(dtypes) for tensor in kept)
