"""From what a user names to a layout: a preset, a file or folder, a model of the Hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seqdiag.config import config_dir, config_names, parse_json, parse_toml
from seqdiag.errors import UsageError, unknown
from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import (
    ITEMSIZE,
    Attention,
    ConvState,
    CrossAttention,
    Latent,
    Layer,
    Layout,
    Part,
    RecurrentState,
)

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_MOST_LAYERS = 100_000
_PART_FIELDS = {
    "attention": ("kv_heads", "head_dim", "v_head_dim", "window"),
    "latent": ("rank", "rope_dim", "index_dim"),
    "cross": ("kv_heads", "head_dim", "encoder_tokens"),
    "conv": ("channels", "columns", "groups", "group_width"),
    "recurrent": ("shape", "flops"),
}


@dataclass(frozen=True, slots=True)
class Located:
    """Where MODEL was found."""

    kind: Literal["preset", "spec", "config", "gguf"]
    path: Path
    where: str
    """How messages name it."""


def locate(name: str, option: str = "MODEL") -> Located:
    """Returns what MODEL names.

    A name of `configs/models/` is that preset; anything else is a path: a `config.json`, a folder
    that holds one (`./name` if a preset has the same name), a `.gguf` of which only the header is
    read, or a TOML spec as the presets are. `owner/name` that is no path is a model of the Hub.
    """
    if not name:
        raise UsageError(f"{option}: is empty")
    presets = config_names("models")
    if name in presets:
        return Located("preset", config_dir("models") / f"{name}.toml", f"preset {name}")
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise UsageError(f"{option}: {name} is a folder without a config.json")
    if path.suffix == ".gguf":
        return Located("gguf", path, str(path))
    if path.suffix == ".toml":
        return Located("spec", path, str(path))
    if path.suffix == ".json" or path.exists():
        return Located("config", path, str(path))
    if path.parent == Path():
        raise unknown(option, name, presets)
    if _HUB_ID.fullmatch(name) and not path.parent.exists():
        from seqdiag.predict.kv_cache.hub import fetch

        return Located("config", fetch(option, name, "config.json"), f"{name} of the Hub")
    raise UsageError(f"{option}: no such file or folder: {name}")


def load_subject(
    name: str, option: str = "MODEL", enc_len: int | None = None, assume_attention: bool = False
) -> Layout:
    """Returns the layout of MODEL."""
    found = locate(name, option)
    if found.kind == "gguf":
        from seqdiag.predict.kv_cache.readers.gguf import read_gguf
        from seqdiag.predict.kv_cache.readers.gguf_header import read_header

        return read_gguf(name, read_header(option, found.path), found.where)
    if found.kind == "config":
        from seqdiag.predict.kv_cache.readers import read_config

        data = parse_json(option, found.path)
        return read_config(name, data, found.where, found.where, enc_len, assume_attention)
    return read_spec(name, parse_toml(option, found.path), found.where, enc_len)


def read_spec(
    name: str, data: Mapping[str, object], where: str, enc_len: int | None = None
) -> Layout:
    """Returns the layout of a TOML spec: `[config]` with a config.json's fields, or `[[layers]]`.

    A layer is `count = N` and `parts`, each with its `kind` and numbers:
    `{kind = "attention", kv_heads, head_dim, v_head_dim?, window?}`,
    `{kind = "latent", rank, rope_dim, index_dim?}`,
    `{kind = "cross", kv_heads, head_dim, encoder_tokens}`,
    `{kind = "conv", channels, columns, groups?, group_width?}`,
    `{kind = "recurrent", shape = [...], flops?}` with the operations of a step for each number.
    `query_heads` of the whole model gives `decode_flops`.
    """
    known = {"source", "config", "layers", "dtype", "state_dtype", "query_heads"}
    if extra := sorted(set(data) - known):
        raise unknown(where, extra[0], sorted(known))
    source = str(data.get("source", where))
    config = data.get("config")
    if config is not None and "layers" in data:
        raise UsageError(f"{where}: has both [config] and [[layers]]; give one")
    if isinstance(config, Mapping):
        from seqdiag.predict.kv_cache.readers import read_config

        return read_config(name, config, where, source, enc_len)
    groups = data.get("layers")
    if not isinstance(groups, list) or not groups:
        raise UsageError(f"{where}: needs a [config] table or [[layers]] tables")
    layers = tuple(layer for group in groups for layer in _read_group(group, where))
    if len(layers) > _MOST_LAYERS:
        raise UsageError(f"{where}: {len(layers)} layers are more than {_MOST_LAYERS}")
    return Layout(
        name=name,
        layers=layers,
        dtype=_dtype(data, "dtype", "bfloat16", where),
        state_dtype=_dtype(data, "state_dtype", "float32", where, "model"),
        source=source,
        fields={"layers": f"{len(groups)} groups"},
        query_heads=Fields(data, where).integer("query_heads") if "query_heads" in data else None,
        float32_state=data.get("state_dtype") == "float32",
    )


def custom_layout(
    layers: int, kv_heads: int, head_dim: int, v_head_dim: int | None, window: int | None
) -> Layout:
    """Returns the layout of the model that the command line describes."""
    part = Attention(kv_heads, head_dim, v_head_dim or head_dim, window)
    return Layout(
        name="custom",
        layers=(Layer((part,)),) * layers,
        dtype="float16",
        source="the command line",
        fields={"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim},
    )


def _read_group(group: object, where: str) -> tuple[Layer, ...]:
    if not isinstance(group, Mapping):
        raise UsageError(f"{where}: [[layers]] must be tables")
    if extra := sorted(set(group) - {"count", "parts"}):
        raise unknown(f"{where}: layers", extra[0], ["count", "parts"])
    count = Fields(group, f"{where}: layers").integer("count", default=1)
    parts = group.get("parts")
    if not isinstance(parts, list):
        raise UsageError(f"{where}: a layer needs parts = [...]")
    if count > _MOST_LAYERS:
        raise UsageError(f"{where}: count = {count} is more than {_MOST_LAYERS}")
    return (Layer(tuple(_read_part(part, where) for part in parts)),) * count


def _read_part(part: object, where: str) -> Part:
    if not isinstance(part, Mapping) or not isinstance(part.get("kind"), str):
        raise UsageError(f"{where}: a part is a table with a kind")
    kind = str(part["kind"])
    fields = Fields(part, f"{where}: {kind}")
    if kind == "attention":
        head_dim = fields.integer("head_dim")
        v_head_dim = fields.integer("v_head_dim") if fields.has("v_head_dim") else head_dim
        window = fields.integer("window") if fields.has("window") else None
        result: Part = Attention(fields.integer("kv_heads"), head_dim, v_head_dim, window)
    elif kind == "latent":
        index = fields.integer("index_dim") if fields.has("index_dim") else 0
        result = Latent(fields.integer("rank"), fields.integer("rope_dim", minimum=0), index)
    elif kind == "cross":
        result = CrossAttention(*(fields.integer(name) for name in _PART_FIELDS[kind]))
    elif kind == "conv":
        groups = fields.integer("groups") if fields.has("groups") else 0
        width = fields.integer("group_width") if fields.has("group_width") else 0
        channels = fields.integer("channels", minimum=1 + groups * width)
        result = ConvState(channels, fields.integer("columns", minimum=0), groups, width)
    elif kind == "recurrent":
        flops = fields.integer("flops") if fields.has("flops") else None
        result = RecurrentState(fields.integers("shape"), flops)
    else:
        raise unknown(f"{where}: kind", kind, _PART_FIELDS)
    if extra := sorted(set(part) - set(fields.read) - {"kind"}):
        raise unknown(f"{where}: {kind}", extra[0], _PART_FIELDS[kind])
    return result


def _dtype(data: Mapping[str, object], name: str, default: str, where: str, *also: str) -> str:
    value = data.get(name, default)
    if value not in (*ITEMSIZE, *also):
        raise UsageError(
            f"{where}: {name} = {value!r} is not one of {', '.join((*ITEMSIZE, *also))}"
        )
    return str(value)
