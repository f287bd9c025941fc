"""A user's own module: finding the factory, building it, and finding how to feed it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from seqdiag.errors import SeqdiagError, UnavailableError, UsageError


@contextlib.contextmanager
def user_code(what: str, option: str = "--model") -> Iterator[None]:
    """Runs a user's code: what it prints goes to stderr, what it raises becomes one line."""
    try:
        with contextlib.redirect_stdout(sys.stderr), _stdout_to_stderr():
            yield
    except (SeqdiagError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: a module must not end the program
        reason = " ".join(str(error).split()) or "no message"
        if len(reason) > 300:
            reason = f"{reason[:297]}..."
        raise UsageError(
            f"{option}: {what} raised {type(error).__name__}: {reason}",
            hint="--debug shows where",
        ) from error


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Sends what is written below Python, by a subprocess or a C library, to stderr too."""
    try:
        kept = os.dup(1)
    except OSError:  # closed: nothing can be polluted
        yield
        return
    try:
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
        with contextlib.suppress(OSError):
            os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def open_module(
    model: str | None, model_arg: Sequence[str], hf: str | None, given: nn.Module | None = None
) -> tuple[str, nn.Module, str]:
    """Returns a user's module with its name and a note: the one given, of --hf, or of --model.

    A module behind torch.compile is unwrapped, since its graph takes no hooks.
    """
    if given is not None:
        module, name = given, ""
    elif hf is not None:
        module, name = build_hf(hf), Path(hf.removesuffix("/config.json")).name
    else:
        assert model is not None
        module = build_model(model, parse_arguments(model_arg))
        name = model.rpartition(":")[2]
    inner = getattr(module, "_orig_mod", None)
    note = ""
    if isinstance(inner, nn.Module):
        module, note = inner, "measured without torch.compile"
    return name or type(module).__name__, module, note


def cast_module(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Casts a module in place: floats to `dtype`, complex numbers to those of its precision.

    `module.to(dtype)` would drop imaginary parts, of rotary frequencies for instance.
    """
    complex_of = {torch.float64: torch.complex128, torch.float16: torch.complex32}

    def cast(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(complex_of.get(dtype, torch.complex64))
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    cast_all: nn.Module = module._apply(cast)  # type: ignore[no-untyped-call]
    return cast_all


def parse_arguments(pairs: Sequence[str]) -> dict[str, object]:
    """Returns `key=value` pairs; a value is a Python literal, true or false, else the text."""
    arguments: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"--model-arg: {pair!r} is not key=value")
        try:
            arguments[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            arguments[key] = {"true": True, "false": False}.get(text, text)
    return arguments


def build_model(spec: str, arguments: Mapping[str, object]) -> nn.Module:
    """Returns the module that `spec` names: `package.module:factory` or `path/to/file.py:factory`.

    The factory is a function or class that returns an `nn.Module` when called with `arguments`, or
    a module itself. Raises `UsageError` for anything that is not there or does not work.
    """
    location, _, name = spec.rpartition(":")
    if not location or not name:
        raise UsageError(
            f"--model: {spec!r} is not package.module:factory or path/to/file.py:factory"
        )
    factory: object = _import(location)
    for part in name.split("."):
        factory = _attribute(factory, part, location)
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise UsageError(f"--model: {spec} is {factory!r:.60}, not a factory of modules")
    with user_code(f"the factory {name}"):
        module = factory(**arguments)
    if not isinstance(module, nn.Module):
        raise UsageError(f"--model: {spec} returned {module!r:.60}, not a torch.nn.Module")
    return module


def build_hf(location: str) -> nn.Module:
    """Returns a model of `transformers`: a folder's own weights, or random ones for a config.

    A causal LM where the architecture has one, else its plain model.
    `location` is a `config.json` or its folder. Nothing is downloaded. Raises `UnavailableError`
    without the package.
    """
    path = Path(location)
    folder = path.parent if path.is_file() else path
    if not (path.is_file() or (folder / "config.json").is_file()):
        raise UsageError(f"--hf: no config.json at {location}")
    if importlib.util.find_spec("transformers") is None:
        raise UnavailableError(
            "--hf: transformers is not installed", hint="pip install 'seqdiag[hf]'"
        )
    with user_code(f"building {location}", option="--hf"):
        from transformers import (
            MODEL_FOR_CAUSAL_LM_MAPPING,
            AutoConfig,
            AutoModel,
            AutoModelForCausalLM,
        )

        config = AutoConfig.from_pretrained(path, local_files_only=True)
        causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
        auto = AutoModelForCausalLM if causal else AutoModel
        if any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
            model = auto.from_pretrained(folder, local_files_only=True)
        else:
            model = auto.from_config(config)
    assert isinstance(model, nn.Module)
    return model


def _import(location: str) -> ModuleType:
    path = Path(location)
    if path.suffix == ".py" or path.is_file():
        return _import_file(path)
    if "/" in location or path.is_dir():
        raise UsageError(f"--model: no such Python file: {location}")
    with _importable(Path.cwd()):
        if _find(location) is None:
            raise UsageError(
                f"--model: no module named {location!r}",
                hint="run where it can be imported, or give path/to/file.py:factory",
            )
        with user_code(f"importing {location}"):
            return importlib.import_module(location)


def _find(name: str) -> object:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"--model: no such file: {path}")
    spec = importlib.util.spec_from_file_location(f"seqdiag_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--model: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look their module up
    with _importable(path.resolve().parent), user_code(f"importing {path}"):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Lets a user's file import its neighbours."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def _attribute(owner: object, name: str, location: str) -> object:
    if hasattr(owner, name):
        return getattr(owner, name)
    public = [word for word in dir(owner) if not word.startswith("_")]
    close = difflib.get_close_matches(name, public, n=1)
    raise UsageError(
        f"--model: {location} has no attribute {name!r}",
        hint=f"did you mean {close[0]}?" if close else f"it has: {', '.join(public[:12])}",
    )
