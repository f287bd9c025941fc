"""The question that `kvcache` answers."""

from __future__ import annotations

from dataclasses import dataclass

from seqdiag.checking import check_types
from seqdiag.errors import UsageError, unknown
from seqdiag.predict.kv_cache.engines import ENGINES
from seqdiag.predict.kv_cache.layout import ITEMSIZE


@dataclass(frozen=True, slots=True)
class KvcacheSpec:
    """The question: which models, at which contexts, in which dtype."""

    models: tuple[str, ...] = ()
    ctx: tuple[int, ...] = (1024, 8192, 32768, 131072, 1048576)
    batch: int = 1
    engine: tuple[str, ...] = ("ideal",)
    dtype: str | None = None
    state_dtype: str | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    window: int | None = None
    against: str | None = None
    per_layer: bool = False
    explain: bool = False
    measure: bool = False
    device: str = "auto"
    limit: int | None = None

    def check(self) -> None:
        """Raises `UsageError` for unknown names and half a description."""
        check_types(self)
        for name in self.engine:
            if name not in ENGINES:
                raise unknown("--engine", name, ENGINES)
        for option, dtype in (("--dtype", self.dtype), ("--state-dtype", self.state_dtype)):
            if dtype is not None and dtype not in ITEMSIZE:
                raise unknown(option, dtype, ITEMSIZE)
        described = (self.layers, self.kv_heads, self.head_dim)
        if self.describes_model and None in described:
            raise UsageError(
                "--layers, --kv-heads and --head-dim describe a model together: give all three"
            )

    @property
    def describes_model(self) -> bool:
        """Whether any option describes a model by its numbers."""
        numbers = (self.layers, self.kv_heads, self.head_dim, self.v_head_dim, self.window)
        return any(number is not None for number in numbers)
