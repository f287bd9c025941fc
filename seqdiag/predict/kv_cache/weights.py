"""How many bytes a model's weights take: from its files, else by counting parameters."""

from __future__ import annotations

import re
from pathlib import Path

from seqdiag.config import parse_json, parse_toml
from seqdiag.errors import UnavailableError, UsageError
from seqdiag.predict.kv_cache.layout import ITEMSIZE
from seqdiag.predict.kv_cache.subjects import Located, locate

_INDEX = "model.safetensors.index.json"
_LONGEST_HEADER = 100 * 2**20
_ASK = "give --weights SIZE, such as parameters x bytes each"


def weigh(name: str, dtype: str, option: str = "MODEL") -> tuple[int, str]:
    """Returns the bytes of the weights of MODEL and how they are known.

    Its safetensors or GGUF files where they are there; else its parameters, counted from its
    config, in its own `dtype`. Raises `UsageError` where neither is possible.
    """
    found = locate(name, option)
    if found.kind == "gguf":
        return _gguf(found.path, option)
    if found.kind == "config":
        data = parse_json(option, found.path)
        return _files(found.path.parent) or _hub_index(name, found) or _counted(name, data, dtype)
    config = parse_toml(option, found.path).get("config")
    if not isinstance(config, dict):
        raise UsageError(f"--weights: {name} describes a cache only", hint=_ASK)
    return _counted(name, config, dtype)


def _gguf(path: Path, option: str) -> tuple[int, str]:
    """Returns the size of the file, or of all its parts: metadata is a few MB of it."""
    paths = [path]
    part = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    if part:
        count = int(part[2])
        paths = [
            path.with_name(f"{part[1]}-{i:05d}-of-{part[2]}.gguf") for i in range(1, count + 1)
        ]
    try:
        sizes = [each.stat().st_size for each in paths]
    except OSError as error:
        raise UsageError(f"{option}: {error.filename}: {error.strerror}", hint=_ASK) from None
    return sum(sizes), "file size" if len(paths) == 1 else f"size of {len(paths)} files"


def _files(folder: Path) -> tuple[int, str] | None:
    index = folder / _INDEX
    if index.is_file():
        return _total(index)
    paths = sorted(folder.glob("*.safetensors"))
    return (sum(map(_tensor_bytes, paths)), "safetensors files") if paths else None


def _hub_index(name: str, found: Located) -> tuple[int, str] | None:
    if not found.where.endswith("of the Hub"):
        return None
    from seqdiag.predict.kv_cache.hub import fetch

    try:
        return _total(fetch("--weights", name, _INDEX))
    except (UsageError, UnavailableError):  # a single file has no index
        return None


def _total(index: Path) -> tuple[int, str]:
    metadata = parse_json("--weights", index).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if type(total) is not int or total < 1:
        raise UsageError(f"--weights: {index} names no metadata.total_size", hint=_ASK)
    return total, "safetensors index"


def _tensor_bytes(path: Path) -> int:
    """Returns the bytes of the tensors of a safetensors file: what comes after its header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
        if not 2 <= header <= min(_LONGEST_HEADER, size - 8) or file.read(1) != b"{":
            raise UsageError(f"--weights: {path} is not a whole safetensors file", hint=_ASK)
    return size - 8 - header


def _counted(name: str, config: dict[str, object], dtype: str) -> tuple[int, str]:
    from seqdiag.predict.kv_cache.readers.spellings import NAMES
    from seqdiag.predict.parameters import COUNTED, count_parameters

    model_type = config.get("model_type")
    if config.get("quantization_config") is not None:
        raise UsageError(f"--weights: {name} is quantised, so its config does not say", hint=_ASK)
    if model_type not in COUNTED:
        raise UsageError(
            f"--weights: the parameters of model_type {model_type!r} cannot be counted",
            hint=f"{_ASK}; counted: {', '.join(COUNTED)}",
        )
    try:
        count = count_parameters(str(model_type), config, name, NAMES.get(str(model_type), {}))
    except UsageError as error:
        raise UsageError(f"--weights: {error.message}", hint=_ASK) from None
    return count * ITEMSIZE[dtype], f"{count} parameters in {dtype}"
