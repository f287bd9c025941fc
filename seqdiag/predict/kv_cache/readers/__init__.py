"""From a model's config to its layout. To add a model type: a word in `table`.

The table maps `model_type` of a `config.json` to the function that reads it; families share one.
Facts about fields and class defaults: the model classes of transformers 5.24.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Layer, Layout
from seqdiag.predict.kv_cache.readers.class_defaults import CLASS_DEFAULTS
from seqdiag.predict.kv_cache.readers.spellings import NAMES
from seqdiag.predict.kv_cache.readers.table import READERS

Reader = Callable[[Fields], tuple[Layer, ...]]

_DTYPES = {"float16", "bfloat16", "float32"}
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_DEEPEST = 4
_QUERY_HEADS = ("num_attention_heads", "decoder_attention_heads", "num_heads")
_MODEL_STATE = {"minimax", "xlstm"}
"""Model types whose recurrent states follow the model's dtype."""
_FLOAT32_STATE = {"qwen3_5_text", "qwen3_5_moe_text", "nemotron_h", "kimi_linear"}
"""Model types published with `mamba_ssm_cache_dtype` float32, or with a state that always is."""


def read_config(
    name: str,
    data: Mapping[str, object],
    where: str,
    source: str = "",
    enc_len: int | None = None,
    assume_attention: bool = False,
) -> Layout:
    """Returns the layout of a model from the fields of its `config.json`.

    A wrapper's language model is read instead where the wrapper itself is unknown. Raises
    `UsageError` for a missing or wrong field, and for a model type without a reader unless
    `assume_attention`.
    """
    model_type, data, where = _unwrap(data, where, assume_attention)
    if model_type not in READERS:
        from seqdiag.predict.kv_cache.readers.assumed import read_assumed

        layers, top, caution = read_assumed(model_type, data, where)
        return Layout(name, layers, _dtype(top), "float32", source, top.read, top.assumed,
            caution=caution)  # fmt: skip
    top = Fields(
        data, where, enc_len, CLASS_DEFAULTS.get(model_type, {}), NAMES.get(model_type, {})
    )
    top.read["model_type"] = model_type
    module, _, function = READERS[model_type].partition(":")
    reader: Reader = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    layers = reader(top)
    heads = top.peek(_QUERY_HEADS)
    return Layout(
        name=name,
        layers=layers,
        dtype=_dtype(top),
        state_dtype="model" if model_type in _MODEL_STATE else "float32",
        source=source,
        fields=top.read,
        assumed=top.assumed,
        conflicts=tuple(top.conflicts.values()),
        query_heads=heads if type(heads) is int and heads > 0 else None,
        float32_state=model_type in _FLOAT32_STATE
        or top.text("mamba_ssm_cache_dtype") == "float32",
    )


def _unwrap(
    data: Mapping[str, object], where: str, any_type: bool
) -> tuple[str, Mapping[str, object], str]:
    """Returns the model type, and the config that is of it with the file it stands in.

    With `any_type` an unknown one is returned too: the innermost.
    """
    found = None
    for _ in range(_DEEPEST):
        model_type = Fields(data, where).text("model_type")
        nested = next((key for key in _NESTED if isinstance(data.get(key), Mapping)), None)
        if model_type in READERS and nested is None:
            return str(model_type), data, where
        found = found or model_type
        if nested is None:
            break
        # A multimodal wrapper: the language model's own config is inside.
        inner = data[nested]
        assert isinstance(inner, Mapping)
        data = {"dtype": data.get("dtype") or data.get("torch_dtype"), **inner}
        where = f"{where}: {nested}"
    if any_type:
        return str(model_type or found or "none"), data, where
    if found is None:
        raise UsageError(f"{where}: the field 'model_type' is missing")
    raise UsageError(
        f"{where}: unknown model_type {found!r}; the fields found: {_shown(data)}",
        hint="known types: seqdiag kvcache --list; --assume attention reads it as plain attention; "
        "any other layout can be written as TOML, see configs/models/mamba-32l.toml",
    )


def _shown(data: Mapping[str, object]) -> str:
    names = [key for key, value in data.items() if type(value) is int]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "none"


def _dtype(fields: Fields) -> str:
    name = fields.either("dtype", "torch_dtype")
    if name is not None:
        value = str(fields.text(name)).removeprefix("torch.")
        if value not in _DTYPES:
            raise UsageError(
                f"{fields.where}: {name} = {value!r} is not one of {', '.join(sorted(_DTYPES))}"
            )
        return value
    fields.assumed["dtype"] = "bfloat16"
    return "bfloat16"
