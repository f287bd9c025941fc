"""Finding the data files of `configs/` and reading option files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from seqdiag.errors import UsageError, unknown


def config_dir(kind: str) -> Path:
    """Returns the folder of `kind` (`models`, `studies`).

    A wheel carries `configs/` inside the package; an editable checkout has it beside the package.
    """
    package = Path(__file__).parent
    for root in (package / "configs", package.parent / "configs"):
        if (root / kind).is_dir():
            return root / kind
    raise FileNotFoundError(f"seqdiag was installed without its configs/{kind} folder")


def config_names(kind: str) -> list[str]:
    """Returns the names of the TOML files of `kind`, sorted."""
    return sorted(path.stem for path in config_dir(kind).glob("*.toml"))


def read_text(option: str, path: Path) -> str:
    """Returns the text of `path`; a file that cannot be read is the user's error."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{option}: no such file: {path}") from None
    except IsADirectoryError:
        raise UsageError(f"{option}: {path} is a folder, not a file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{option}: {path} is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{option}: cannot read {path}: {error.strerror}") from None


def parse_json(option: str, path: Path) -> dict[str, object]:
    """Returns the JSON object in `path`; NaN and Infinity are refused, as RFC 8259 does."""
    import json

    def refuse(constant: str) -> object:
        raise UsageError(f"{option}: {path} holds {constant}, which is not JSON")

    text = read_text(option, path)
    try:
        data = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option}: {path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        raise UsageError(f"{option}: {path} holds {kind}, not a JSON object")
    return data


def parse_toml(option: str, path: Path) -> dict[str, object]:
    """Returns the TOML table in `path`."""
    import tomllib

    try:
        return tomllib.loads(read_text(option, path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option}: {path} is not TOML: {error}") from None


def load_options(
    value: str, command: str, known: Iterable[str], preset: str | None = None
) -> dict[str, Any]:
    """Returns the options of `command` in a TOML file, a named study or an earlier result's JSON.

    Keys are option names with `-` or `_`. Raises `UsageError` for an unknown key, and for options
    of another command. `preset` names a table `[presets.NAME]` of the file that goes before it.
    """
    path = Path(value)
    if path.suffix.lower() not in (".toml", ".json") and not path.exists():
        studies = config_names("studies")
        study = value.removeprefix("studies/")
        if study not in studies:
            raise unknown("--config", value, studies)
        path = config_dir("studies") / f"{study}.toml"
    if path.suffix.lower() not in (".toml", ".json"):
        raise UsageError(f"--config: {path} is neither .toml nor .json")
    data: Mapping[str, object]
    if path.suffix.lower() == ".json":
        data = parse_json("--config", path)
        if not isinstance(data.get("spec"), dict):
            raise UsageError(f"--config: {path} is not a seqdiag result: it holds no spec")
        written_by, options = data.get("command"), data["spec"]
        assert isinstance(options, dict)
    else:
        data = parse_toml("--config", path)
        written_by = data.get("command", command)
        options = {k: v for k, v in data.items() if k not in ("command", "description", "presets")}
        options |= _preset(path, data.get("presets", {}), preset)
        preset = None
    if preset is not None:
        raise UsageError(f"--preset: {path} is a result, which has no presets")
    if written_by != command:
        raise UsageError(
            f"--config: {path} is for the command {written_by!r}, not {command!r}",
            hint=f"seqdiag {written_by} --config {value}",
        )
    accepted = set(known)
    result: dict[str, Any] = {}
    for key, option in options.items():
        name = key.replace("-", "_")
        if name not in accepted:
            raise unknown(f"--config: {path}", key, sorted(accepted))
        if option is not None:
            result[name] = option
    return result


def _preset(path: Path, presets: object, name: str | None) -> Mapping[str, object]:
    """Returns the options of a preset of a study, none where no preset is asked for."""
    if not isinstance(presets, dict) or not all(isinstance(p, dict) for p in presets.values()):
        raise UsageError(f"--config: {path}: presets must be tables such as [presets.small]")
    if name is None:
        return {}
    if name not in presets:
        raise unknown(f"--preset: {path}", name, sorted(presets))
    options: dict[str, object] = presets[name]
    return options
