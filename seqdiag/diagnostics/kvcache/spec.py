"""The question that `kvcache` answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seqdiag.checking import check_types
from seqdiag.errors import UsageError, unknown
from seqdiag.predict.kv_cache.cache_types import ALIASES, CACHE_TYPES, GGML
from seqdiag.predict.kv_cache.engines import ENGINES, Settings
from seqdiag.predict.kv_cache.engines.base import MambaCacheMode, MlaForm
from seqdiag.predict.kv_cache.layout import ITEMSIZE
from seqdiag.units import format_bytes

DEFAULT_RESERVE = 0.1
_OF_MODULE = ("model_arg", "input", "d_in", "vocab", "layout", "lengths")
_OF_FORMULAS = (
    "engine", "dtype", "k_dtype", "v_dtype", "conv_dtype", "state_dtype", "kv_group", "kv_residual",
    "enc_len", "assume",
)  # fmt: skip
_FEWEST_LENGTHS = 3
MLA_FORMS = ("latent", "latent-and-value", "expanded")


@dataclass(frozen=True, slots=True)
class KvcacheSpec:
    """The question: which models, at which contexts, in which dtype."""

    models: tuple[str, ...] = ()
    ctx: tuple[int, ...] = (1024, 8192, 32768, 131072, 1048576)
    batch: int = 1
    engine: tuple[str, ...] = ("ideal",)
    dtype: str | None = None
    k_dtype: str | None = None
    v_dtype: str | None = None
    conv_dtype: str | None = None
    state_dtype: str | None = None
    kv_group: int | None = None
    """Elements that share a scale in kivi-2 and kivi-4; 32 unless said."""
    kv_residual: int | None = None
    """Recent tokens that kivi-2 and kivi-4 keep in 16 bits; 128 unless said."""
    enc_len: int | None = None
    assume: Literal["attention"] | None = None
    """What an unknown model type is read as."""
    tp: int | None = None
    block_size: int | None = None
    max_batched_tokens: int | None = None
    spec_tokens: int | None = None
    parallel: int | None = None
    ubatch: int | None = None
    unified: bool = False
    swa_full: bool = False
    swa_dtype: str | None = None
    mla: MlaForm | None = None
    mamba_cache_mode: MambaCacheMode | None = None
    disable_hybrid_kv_cache_manager: bool = False
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    window: int | None = None
    model: str | None = None
    model_arg: tuple[str, ...] = ()
    hf: str | None = None
    input: Literal["auto", "floats", "tokens", "samples"] = "auto"
    d_in: int | None = None
    vocab: int | None = None
    layout: Literal["btd", "tbd", "bdt"] = "btd"
    lengths: tuple[int, ...] = (16, 24, 40)
    """Tokens of the runs that a module's cache is measured by, rising."""
    memory: int | None = None
    weights: int | Literal["auto"] | None = None
    reserve: float | None = None
    """Share of the memory left alone; 0.1 unless said."""
    bandwidth: float | None = None
    """Bytes a second."""
    against: str | None = None
    per_layer: bool = False
    curve: bool = False
    explain: bool = False
    measure: bool = False
    device: str = "auto"
    limit: int | None = None

    def check(self, given: bool = False) -> None:
        """Raises `UsageError` for unknown names and half a description.

        `given` says that modules at hand are to be measured.
        """
        check_types(self, zero=("weights",))
        self._check_module(given)
        for name in self.engine:
            if name not in ENGINES:
                raise unknown("--engine", name, ENGINES)
        for option, dtype in (
            ("--dtype", self.dtype),
            ("--k-dtype", self.k_dtype),
            ("--v-dtype", self.v_dtype),
            ("--swa-dtype", self.swa_dtype),
        ):
            if dtype is not None and canonical(dtype) not in CACHE_TYPES:
                raise unknown(option, dtype, (*CACHE_TYPES, *ALIASES))
        for option, dtype in (
            ("--conv-dtype", self.conv_dtype),
            ("--state-dtype", self.state_dtype),
        ):
            if dtype is not None and canonical(dtype) not in ITEMSIZE:
                raise unknown(option, dtype, ITEMSIZE)
        self._check_kivi()
        self._check_settings()
        self._check_views()
        self._check_memory()
        described = (self.layers, self.kv_heads, self.head_dim)
        if self.describes_model and None in described:
            raise UsageError(
                "--layers, --kv-heads and --head-dim describe a model together: give all three"
            )

    @property
    def has_module(self) -> bool:
        """Whether an option names a module to measure."""
        return self.model is not None or self.hf is not None

    def sizes_by_formula(self, given: bool) -> bool:
        """Whether any model is sized by formulas, the examples if nothing else is in question."""
        return bool(self.models) or self.describes_model or not (given or self.has_module)

    @property
    def describes_model(self) -> bool:
        """Whether any option describes a model by its numbers."""
        numbers = (self.layers, self.kv_heads, self.head_dim, self.v_head_dim, self.window)
        return any(number is not None for number in numbers)

    def given_settings(self) -> dict[str, object]:
        """Returns the engines' flags that were given."""
        names = Settings.__slots__
        values = {name: getattr(self, name) for name in names}
        if self.swa_dtype is not None:
            values["swa_dtype"] = canonical(self.swa_dtype)
        return {name: value for name, value in values.items() if value not in (None, False)}

    def settings(self) -> Settings:
        return Settings(**self.given_settings())  # type: ignore[arg-type]

    def cache_room(self, weights: int) -> int:
        """Returns the bytes that weights and the reserve leave for the cache."""
        memory = self.memory or 0
        reserved = round(memory * (DEFAULT_RESERVE if self.reserve is None else self.reserve))
        return memory - reserved - weights

    def _check_kivi(self) -> None:
        packed = any(
            dtype is not None and CACHE_TYPES[canonical(dtype)].kivi_bits
            for dtype in (self.dtype, self.k_dtype, self.v_dtype)
        )
        for option, value in (("--kv-group", self.kv_group), ("--kv-residual", self.kv_residual)):
            if value is not None and not packed:
                raise UsageError(f"{option}: is of --dtype kivi-2 and kivi-4")

    def _check_module(self, given: bool) -> None:
        if self.model is not None and self.hf is not None:
            raise UsageError("--model and --hf exclude each other")
        default = KvcacheSpec()
        measures = given or self.has_module
        names: tuple[str, ...] = () if measures else _OF_MODULE
        if not self.sizes_by_formula(given):
            names = _OF_FORMULAS
            if settings := list(self.given_settings()):
                names = (*names, settings[0])
        for name in names:
            if getattr(self, name) != getattr(default, name):
                option = "--" + name.replace("_", "-")
                if measures:
                    raise UsageError(f"{option}: a module is measured as it is; leave it out")
                raise UsageError(f"{option}: needs --model or --hf, a module to measure")
        rising = sorted(set(self.lengths))
        if list(self.lengths) != rising or len(rising) < _FEWEST_LENGTHS:
            raise UsageError(
                f"--lengths: {','.join(map(str, self.lengths))} is not {_FEWEST_LENGTHS} or more "
                "rising token counts"
            )

    def _check_memory(self) -> None:
        if self.memory is None:
            for option, value in (("--weights", self.weights), ("--reserve", self.reserve)):
                if value is not None:
                    raise UsageError(f"{option}: needs --memory")
            return
        if self.weights is None:
            raise UsageError(
                "--memory: needs --weights, the bytes of the weights on the device",
                hint="auto reads or counts them; or parameters x bytes each, such as --weights "
                "16GB for 8B in bfloat16; 0 if --memory is for the cache alone",
            )
        if self.weights == "auto":
            if self.describes_model:
                raise UsageError("--weights: auto needs a MODEL; a described one has no weights")
            return
        if self.cache_room(self.weights) < 0:
            raise UsageError(
                f"--memory: {format_bytes(self.memory)} less the reserve is below --weights "
                f"{format_bytes(self.weights)}"
            )

    def _check_views(self) -> None:
        """Refuses what a view has no column for."""
        of_a_model = {
            "--memory": self.memory is not None,
            "--bandwidth": self.bandwidth is not None,
            "--against": self.against is not None,
        }
        of_a_context = {"--per-layer": self.per_layer, "--measure": self.measure, **of_a_model}
        for option, given in of_a_context.items():
            if self.curve and given:
                raise UsageError(f"--curve: is of every context; leave out {option}")
        for option, given in of_a_model.items():
            if self.per_layer and given:
                raise UsageError(f"{option}: is of a whole model; leave out --per-layer")

    def _check_settings(self) -> None:
        """Refuses a flag that no engine in question has."""
        for name in self.given_settings():
            readers = [e for e, engine in ENGINES.items() if name in engine.settings_read]
            if not set(readers) & set(self.engine):
                option = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{option}: {', '.join(self.engine)} has no such setting",
                    hint=f"engines that have it: {', '.join(readers)}",
                )
        if self.swa_dtype is not None and canonical(self.swa_dtype) not in GGML:
            raise unknown("--swa-dtype", self.swa_dtype, GGML)
        if self.mla is not None and self.mla not in MLA_FORMS:
            raise unknown("--mla", self.mla, MLA_FORMS)


def canonical(dtype: str) -> str:
    """Returns the name that the tables use."""
    return ALIASES.get(dtype, dtype)
