"""From a model's config to its layout. To add a model type: one line in `READERS`.

The table maps `model_type` of a `config.json` to the function that reads it; families share one.
Facts about fields and class defaults: the model classes of transformers 5.24.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Layer, Layout

Reader = Callable[[Fields], tuple[Layer, ...]]

READERS = {
    "deepseek_v2": "latent:read",
    "deepseek_v3": "latent:read",
    "falcon_h1": "hybrid:read_falcon_h1",
    "falcon_mamba": "mamba:read_mamba",
    "gemma2": "attention:read_gemma2",
    "gemma3_text": "attention:read_gemma3",
    "gpt_oss": "attention:read_gpt_oss",
    "jamba": "hybrid:read_jamba",
    "llama": "attention:read_full",
    "mamba": "mamba:read_mamba",
    "mamba2": "mamba:read_mamba2",
    "mistral": "attention:read_mistral",
    "mixtral": "attention:read_mixtral",
    "phi3": "attention:read_phi3",
    "qwen2": "attention:read_qwen2",
    "qwen3": "attention:read_qwen3",
    "qwen3_moe": "attention:read_qwen3_moe",
}

_DTYPES = {"float16", "bfloat16", "float32"}


def read_config(name: str, data: Mapping[str, object], where: str, source: str = "") -> Layout:
    """Returns the layout of a model from the fields of its `config.json`.

    Raises `UsageError` for a model type without a reader and for a missing or wrong field.
    """
    top = Fields(data, where)
    model_type = top.text("model_type")
    if model_type is None:
        raise UsageError(f"{where}: the field 'model_type' is missing")
    nested = data.get("text_config")
    if model_type not in READERS and isinstance(nested, Mapping):
        # A multimodal wrapper: the language model's own config is inside.
        inner = {"dtype": data.get("dtype") or data.get("torch_dtype"), **nested}
        return read_config(name, inner, f"{where}: text_config", source)
    if model_type not in READERS:
        raise UsageError(
            f"{where}: unknown model_type {model_type!r}",
            hint=f"known: {', '.join(READERS)}; any other layout can be written as TOML, "
            "see configs/models/mamba-32l.toml",
        )
    module, _, function = READERS[model_type].partition(":")
    reader: Reader = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    layers = reader(top)
    dtype = _dtype(top)
    return Layout(
        name=name,
        layers=layers,
        dtype=dtype,
        source=source,
        fields=top.read,
        assumed=top.assumed,
    )


def _dtype(fields: Fields) -> str:
    for name in ("dtype", "torch_dtype"):
        value = fields.text(name)
        if value is not None:
            value = value.removeprefix("torch.")
            if value not in _DTYPES:
                raise UsageError(
                    f"{fields.where}: {name} = {value!r} is not one of {', '.join(sorted(_DTYPES))}"
                )
            return value
    fields.assumed["dtype"] = "bfloat16"
    return "bfloat16"
