"""Encoder-decoder models: the decoder's own cache, and keys and values of the encoder's output."""

from __future__ import annotations

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Attention, CrossAttention, Layer

_LENGTHS = (
    "max_source_positions",
    "max_encoder_position_embeddings",
    "max_position_embeddings",
    "n_positions",
)


def encoder_length(fields: Fields) -> int:
    """Returns the encoder tokens: the user's, else the most that the config names."""
    if fields.enc_len is not None:
        return fields.enc_len
    name = fields.given(*_LENGTHS)
    if name is None:
        name = next((n for n in _LENGTHS if n in fields.class_defaults), None)
    if name is None:
        raise fields.inconsistent("names no length of the encoder: give --enc-len")
    length = fields.integer(name)
    fields.assumed["encoder tokens"] = f"{length} ({name})"
    return length


def read_t5(fields: Fields) -> tuple[Layer, ...]:
    """T5: heads x d_kv, which need not be d_model."""
    heads, head_dim = fields.integer("num_heads"), fields.integer("d_kv")
    name = fields.given("num_decoder_layers", "num_layers") or "num_layers"
    return _layers(fields, fields.integer(name), heads, head_dim)


def read_bart(fields: Fields) -> tuple[Layer, ...]:
    """BART, Whisper and their like: keys as wide as `d_model` in all."""
    width = fields.integer(fields.given("d_model", "hidden_size") or "d_model")
    # However many heads there are, they split the whole width.
    heads, head_dim = 1, width
    if fields.has("decoder_attention_heads"):
        heads = fields.integer("decoder_attention_heads")
        if width % heads:
            raise fields.inconsistent(f"d_model {width} is no multiple of {heads} heads")
        head_dim = width // heads
    return _layers(fields, fields.integer("decoder_layers"), heads, head_dim)


def _layers(fields: Fields, layers: int, heads: int, head_dim: int) -> tuple[Layer, ...]:
    cross = CrossAttention(heads, head_dim, encoder_length(fields))
    return (Layer((Attention(heads, head_dim, head_dim), cross)),) * layers
