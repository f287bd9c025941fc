"""Multi-head latent attention of DeepSeek-V2 and V3: `kv_lora_rank` wins over the head counts."""

from __future__ import annotations

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Latent, Layer


def read(fields: Fields) -> tuple[Layer, ...]:
    part = Latent(rank=fields.integer("kv_lora_rank"), rope_dim=fields.integer("qk_rope_head_dim"))
    return (Layer((part,)),) * fields.integer("num_hidden_layers")
