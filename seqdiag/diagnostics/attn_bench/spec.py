"""The question that `attn-bench` answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seqdiag.errors import UsageError, unknown
from seqdiag.ops.attention import IMPLEMENTATIONS
from seqdiag.predict.work import Align, AttentionShape, Pass

DTYPES = ("float32", "float16", "bfloat16", "float64")
PASSES: tuple[Pass, ...] = ("fwd", "bwd", "both")
MODES = ("prefill", "decode")
ALIGNS: tuple[Align, ...] = ("bottom-right", "top-left")
L2 = ("cold", "warm", "both")
_INTERPRETED = "flash-triton-interpret"
_NOT_BENCHED = ("reference",)
_LARGEST_DIM = 4096


@dataclass(frozen=True, slots=True)
class AttnBenchSpec:
    """The question: which implementations, on which shapes."""

    impl: tuple[str, ...] | None = None
    """None for all; the interpreted kernels only if asked for."""
    against: str = "naive"
    seq_len: tuple[int, ...] | None = None
    """None is 1024, and 128 where kernels are interpreted."""
    kv_len: tuple[int, ...] | None = None
    """None is as long as the queries."""
    ctx: tuple[int, ...] | None = None
    batch: int = 1
    tokens: int | None = None
    """Tokens of a batch: it becomes tokens / seq_len."""
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    head_dim_v: int | None = None
    preset: str | None = None
    passes: tuple[Pass, ...] = ("fwd",)
    mode: Literal["prefill", "decode"] = "prefill"
    mask: str = "causal"
    align: Align = "bottom-right"
    dtype: str | None = None
    """None is float32 on the CPU, bfloat16 on a GPU."""
    device: str = "auto"
    seed: int = 0
    budget: float = 3.0
    l2: Literal["cold", "warm", "both"] = "cold"
    check_only: bool = False
    deterministic: bool = False
    calibrate: bool = False
    interpret: bool = False
    inspect: tuple[str, ...] | None = None

    @property
    def implementations(self) -> tuple[str, ...]:
        if self.impl is not None:
            return self.impl
        hidden = () if self.interpret else (_INTERPRETED,)
        return tuple(name for name in IMPLEMENTATIONS if name not in (*_NOT_BENCHED, *hidden))

    @property
    def window(self) -> int | None:
        kind, _, width = self.mask.partition(":")
        return int(width) if kind == "window" else None

    @property
    def shapes(self) -> list[AttentionShape]:
        """Every problem, in the order asked."""
        heads = self.heads or (2 if self.interpret else 8)
        head_dim = self.head_dim or 64
        found = []
        for q_len, kv_len in self._lengths():
            shape = AttentionShape(
                batch=self.batch if self.tokens is None else max(1, self.tokens // q_len),
                heads=heads,
                kv_heads=self.kv_heads or heads,
                q_len=q_len,
                kv_len=kv_len,
                head_dim=head_dim,
                v_head_dim=self.head_dim_v or head_dim,
                causal=self.mask != "full",
                window=self.window,
                align=self.align,
            )
            found.append(shape)
        return found

    def _lengths(self) -> list[tuple[int, int]]:
        default = (128,) if self.interpret else (1024,)
        if self.mode == "decode":
            new = self.seq_len or (1,)
            return [(q, ctx) for q in new for ctx in self.ctx or self.kv_len or default]
        lengths = self.seq_len or default
        if self.kv_len is None:
            return [(length, length) for length in lengths]
        return [(q, kv) for q in lengths for kv in self.kv_len]

    def check(self) -> None:
        """Raises `UsageError` for options that do not fit each other."""
        for name in (*(self.impl or ()), self.against):
            if name not in IMPLEMENTATIONS:
                raise unknown(
                    "--impl" if name in (self.impl or ()) else "--against", name, IMPLEMENTATIONS
                )
        if self.dtype is not None and self.dtype not in DTYPES:
            raise unknown("--dtype", self.dtype, DTYPES)
        self._check_mask()
        heads, kv_heads = self.heads or 8, self.kv_heads or self.heads or 8
        if heads % kv_heads:
            raise UsageError(
                f"--kv-heads: {heads} query heads are no multiple of {kv_heads}",
                hint=f"--kv-heads {next(n for n in range(kv_heads, 0, -1) if heads % n == 0)}",
            )
        for option, dim in (("--head-dim", self.head_dim), ("--head-dim-v", self.head_dim_v)):
            if dim is not None and dim > _LARGEST_DIM:
                raise UsageError(f"{option}: {dim} is above {_LARGEST_DIM}")
        if self.mode == "decode" and self.passes != ("fwd",):
            raise UsageError("--pass: a decode step has no backward pass", hint="--pass fwd")
        if self.mode == "prefill" and self.ctx is not None:
            raise UsageError("--ctx: is for --mode decode", hint="--kv-len gives the keys")
        if self.budget <= 0:
            raise UsageError(f"--budget: {self.budget:g} is not above 0 seconds")
        if self.tokens is not None and self.batch != 1:
            raise UsageError("--tokens sets the batch: give --tokens or --batch")

    def _check_mask(self) -> None:
        kind, _, width = self.mask.partition(":")
        windowed = kind == "window" and width.isdigit() and int(width) > 0
        if self.mask not in ("full", "causal") and not windowed:
            raise UsageError(
                f"--mask: {self.mask!r} is not full, causal or window:W with W of 1 or more"
            )
        if self.align == "top-left" and kind != "full":
            short = [(q, kv) for q, kv in self._lengths() if kv < q]
            if short:
                raise UsageError(
                    f"--align: top-left needs as many keys as queries, not {short[0][1]} for "
                    f"{short[0][0]}"
                )
