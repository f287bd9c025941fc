"""Encoder-decoder models: the decoder's own cache, and keys and values of the encoder's output."""

from __future__ import annotations

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Attention, CrossAttention, Layer
from seqdiag.predict.kv_cache.readers.attention import read_heads, read_mixed

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
    heads, head_dim = fields.integer("num_heads"), fields.integer("d_kv", default=64)
    name = fields.given("num_decoder_layers", "num_layers") or "num_layers"
    return _layers(fields, fields.layers(name), heads, head_dim)


def read_bart(fields: Fields) -> tuple[Layer, ...]:
    """BART, Whisper and their like: keys as wide as `d_model` in all."""
    width = fields.integer(fields.either("d_model", "hidden_size") or "d_model")
    # However many heads there are, they split the whole width.
    heads, head_dim = 1, width
    if fields.has("decoder_attention_heads"):
        heads = fields.integer("decoder_attention_heads")
        if width % heads:
            raise fields.inconsistent(f"d_model {width} is no multiple of {heads} heads")
        head_dim = width // heads
    return _layers(fields, fields.layers("decoder_layers"), heads, head_dim)


def read_prophetnet(fields: Fields) -> tuple[Layer, ...]:
    """ProphetNet: the predicted streams share one cache with the main one."""
    heads = fields.integer("num_decoder_attention_heads")
    width = fields.integer("hidden_size", minimum=heads)
    return _layers(fields, fields.layers("num_decoder_layers"), heads, width // heads)


def read_nested(fields: Fields) -> tuple[Layer, ...]:
    """T5Gemma: a decoder with a config of its own, whose cross attention has its heads."""
    inner = _decoder(fields)
    layers = read_mixed(inner, None)
    heads, head_dim = read_heads(inner)
    cross = CrossAttention(heads, head_dim, encoder_length(inner))
    return tuple(Layer((*layer.parts, cross)) for layer in layers)


def _decoder(fields: Fields) -> Fields:
    """Returns the fields of the decoder. What is read of them is remembered in `fields`."""
    table = fields.raw("decoder")
    if not isinstance(table, dict):
        raise fields.inconsistent("has no table 'decoder'")
    inner = Fields(
        table, f"{fields.where}: decoder", fields.enc_len, fields.class_defaults, fields.names
    )
    inner.read, inner.assumed = fields.read, fields.assumed
    return inner


def read_moonshine(fields: Fields) -> tuple[Layer, ...]:
    """Moonshine: grouped heads in the decoder, each `hidden_size` / heads wide."""
    heads = fields.integer("decoder_num_attention_heads")
    kv_heads = fields.integer("decoder_num_key_value_heads", default=heads)
    head_dim = fields.integer("hidden_size", minimum=heads) // heads
    return _layers(fields, fields.layers("decoder_num_hidden_layers"), kv_heads, head_dim)


def _layers(fields: Fields, layers: int, heads: int, head_dim: int) -> tuple[Layer, ...]:
    cross = CrossAttention(heads, head_dim, encoder_length(fields))
    return (Layer((Attention(heads, head_dim, head_dim), cross)),) * layers
