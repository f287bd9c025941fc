"""An unknown model type read as plain attention, because the user says so."""

from __future__ import annotations

from collections.abc import Mapping

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Layer
from seqdiag.predict.kv_cache.readers.attention import read

_SPELLINGS = {
    "num_hidden_layers": ("num_layers", "n_layers", "n_layer"),
    "num_attention_heads": ("num_heads", "n_heads", "n_head"),
    "num_key_value_heads": ("num_kv_heads", "n_kv_heads", "n_head_kv", "multi_query_group_num"),
    "hidden_size": ("d_model", "n_embd", "dim", "emb_dim"),
    "head_dim": ("kv_channels", "attention_head_dim", "d_kv"),
}
_TELLING = (
    "lora_rank", "mamba", "ssm", "state_size", "d_state", "conv", "linear_", "compress", "shared",
    "rwkv", "index_", "recurrent", "lru", "delta", "hybrid", "loop", "per_layer", "swa_",
)  # fmt: skip
"""Parts of field names that speak of a cache which plain attention has not."""


def read_assumed(
    model_type: str, data: Mapping[str, object], where: str
) -> tuple[tuple[Layer, ...], Fields, str]:
    """Returns one attention part a layer, the fields read, and what to doubt about it.

    Raises `UsageError` for a missing or wrong field.
    """
    names = {
        name: spelling
        for name, others in _SPELLINGS.items()
        for spelling in reversed(others)
        if name not in data and spelling in data
    }
    fields = Fields(data, where, names=names)
    layers = read(fields)
    caution = f"unknown model_type {model_type!r} read as plain attention, as --assume says"
    ignored = [
        name
        for name, value in data.items()
        if value is not None and name not in fields.read and any(part in name for part in _TELLING)
    ]
    if ignored:
        more = ", ..." if len(ignored) > 6 else ""
        caution += f", though the config also has {', '.join(ignored[:6])}{more}"
    return layers, fields, caution
