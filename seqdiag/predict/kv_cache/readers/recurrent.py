"""Models that are recurrent throughout, or recurrent with a window: RWKV-4, xLSTM, Griffin."""

from __future__ import annotations

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Attention, ConvState, Layer, RecurrentState
from seqdiag.predict.kv_cache.readers.attention import layer_count, read_heads

_XLSTM_MULTIPLE = 64
_DIAGONAL = 2
"""Operations of a step for each number of a state that is its own readout: decay and sum."""


def read_rwkv(fields: Fields) -> tuple[Layer, ...]:
    """RWKV-4 (arXiv 2305.13048): two token shifts, and numerator, denominator and maximum."""
    hidden = fields.integer("hidden_size")
    attention = hidden
    if fields.has("attention_hidden_size"):
        attention = fields.integer("attention_hidden_size")
    parts = (ConvState(hidden, 2, exact=True, shift=True), RecurrentState((attention, 3)))
    return (Layer(parts),) * layer_count(fields)


def read_rwkv7(fields: Fields) -> tuple[Layer, ...]:
    """RWKV-5 to 7 (arXiv 2404.05892, 2503.14456): two token shifts, heads x head_size^2."""
    hidden = fields.integer("hidden_size")
    name = fields.either("head_size", "head_dim") or "head_size"
    head = fields.integer(name)
    if hidden % head:
        raise fields.inconsistent(f"hidden_size {hidden} is no multiple of {name} {head}")
    parts = (
        ConvState(hidden, 2, exact=True, shift=True),
        RecurrentState((hidden // head, head, head)),
    )
    return (Layer(parts),) * layer_count(fields)


def read_xlstm(fields: Fields) -> tuple[Layer, ...]:
    """mLSTM (arXiv 2405.04517): matrix memory, normaliser and stabiliser of each head."""
    heads, hidden = fields.integer("num_heads"), fields.integer("hidden_size")
    key = _rounded(hidden * fields.number("qk_dim_factor", default=0.5)) // heads
    value = _rounded(hidden * fields.number("v_dim_factor", default=1.0)) // heads
    name = fields.either("num_blocks", "num_hidden_layers") or "num_hidden_layers"
    # C is key x value, n is key long and m a single number.
    return (Layer((RecurrentState((heads, key * value + key + 1)),)),) * fields.layers(name)


def _rounded(width: float) -> int:
    return -(-int(width) // _XLSTM_MULTIPLE) * _XLSTM_MULTIPLE


def read_recurrent_gemma(fields: Fields) -> tuple[Layer, ...]:
    """Griffin (arXiv 2402.19427): RG-LRU states, and windowed attention in every third layer."""
    name = fields.given("lru_width", "hidden_size") or "hidden_size"
    width = fields.integer(name)
    kernel = fields.integer("conv1d_width", default=4)
    state = Layer((ConvState(width, kernel - 1, exact=True), RecurrentState((width,), _DIAGONAL)))
    kv_heads, head_dim = read_heads(fields)
    window = fields.integer("attention_window_size", default=2048)
    local = Layer((Attention(kv_heads, head_dim, head_dim, window),))
    kinds = fields.raw("block_types") or ["recurrent", "recurrent", "attention"]
    if not isinstance(kinds, list) or not all(k in ("recurrent", "attention") for k in kinds):
        raise fields.inconsistent("block_types is no list of recurrent and attention")
    layers = layer_count(fields)
    return tuple(local if kinds[i % len(kinds)] == "attention" else state for i in range(layers))
