"""Multi-head latent attention of DeepSeek-V2 and V3: `kv_lora_rank` wins over the head counts."""

from __future__ import annotations

import dataclasses

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Latent, Layer
from seqdiag.predict.kv_cache.readers.attention import layer_count

_EXPANDED = ("num_attention_heads", "qk_nope_head_dim", "v_head_dim")


def latent_part(fields: Fields, index_dim: int = 0, minimum_rope: int = 1) -> Latent:
    rope = fields.integer("qk_rope_head_dim", minimum=minimum_rope)
    expanded = None
    if all(fields.has(name) for name in _EXPANDED):
        heads, nope, value = (fields.integer(name) for name in _EXPANDED)
        expanded = (heads, nope + rope, value)
    return Latent(fields.integer("kv_lora_rank"), rope, index_dim, expanded)


def read(fields: Fields) -> tuple[Layer, ...]:
    return (Layer((latent_part(fields),)),) * layer_count(fields)


def read_indexed(fields: Fields) -> tuple[Layer, ...]:
    """DeepSeek-V3.2's indexer keeps a key a token, but not in layers that share an earlier one."""
    part, without = indexed_part(fields)
    layers = layer_count(fields)
    types = fields.raw("indexer_types")
    if not isinstance(types, list):
        return (Layer((part,)),) * layers
    if len(types) != layers:
        raise fields.inconsistent(f"indexer_types lists {len(types)} layers, not {layers}")
    return tuple(Layer((without if kind == "shared" else part,)) for kind in types)


def indexed_part(fields: Fields) -> tuple[Latent, Latent]:
    """Returns a latent with an indexer's key, and one whose layer uses an earlier indexer."""
    part = dataclasses.replace(
        latent_part(fields, fields.integer("index_head_dim")),
        index_heads=fields.integer("index_n_heads") if fields.known("index_n_heads") else None,
        topk=fields.integer("index_topk") if fields.known("index_topk") else 0,
    )
    return part, dataclasses.replace(part, index_dim=0, index_heads=None)


def read_twice(fields: Fields) -> tuple[Layer, ...]:
    """LongCat-Flash: two attention blocks a layer."""
    name = fields.either("num_layers", "num_hidden_layers") or "num_layers"
    return (Layer((latent_part(fields),)),) * (2 * fields.layers(name))
