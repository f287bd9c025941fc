"""The question that `receptive-field` answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from seqdiag.checking import check_types
from seqdiag.errors import UsageError
from seqdiag.predict.receptive_field.field import LARGEST

if TYPE_CHECKING:
    from seqdiag.models.adapting import InputKind, Layout
    from seqdiag.models.block import Norm, NormType
    from seqdiag.models.subjects import SubjectOptions

DTYPES = ("float64", "float32")
Padding = Literal["causal", "same", "none"]
DEFAULT_KERNEL, DEFAULT_DILATIONS = (2,), (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class ReceptiveFieldSpec:
    """The question: which subject, how long a sequence, which output."""

    kernel: tuple[int, ...] | None = None
    dilations: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    padding: Padding = "causal"
    convs: int = 1
    """Convolutions at each dilation: two in the blocks of a TCN."""
    stacks: int = 1
    """How often all of them stand one after the other."""
    arch: tuple[str, ...] | None = None
    pattern: str | None = None
    attn_impl: str | None = None
    depth: int | None = None
    norm: Norm | None = None
    norm_type: NormType | None = None
    hidden: int = 32
    model: str | None = None
    model_arg: tuple[str, ...] = ()
    hf: str | None = None
    seq_len: int = 64
    max_seq_len: int = 16384
    position: str | None = None
    """`last`, `middle`, `all` or an output's number; None is last, or middle if it looks ahead."""
    needs: int | None = None
    predict_only: bool = False
    fail_on_leak: bool = False
    sample_rate: float | None = None
    effective: bool = False
    streaming: bool = False
    leaks_csv: str | None = None
    align: Literal["start", "end"] | None = None
    seed: int = 0
    dtype: str = "float64"
    device: str = "auto"
    input: InputKind = "auto"
    d_in: int | None = None
    vocab: int | None = None
    layout: Layout = "btd"
    pick: str | None = None
    train_mode: bool = False
    seed_forward: bool = False

    @property
    def inline(self) -> bool:
        """Whether the subject is a chain of convolutions described by numbers."""
        described = (self.kernel, self.dilations, self.strides)
        others = (self.arch, self.pattern, self.model, self.hf)
        return any(d is not None for d in described) or all(o is None for o in others)

    @property
    def subject_options(self) -> SubjectOptions:
        from seqdiag.models.subjects import SubjectOptions

        return SubjectOptions(
            width=self.hidden,
            depth=self.depth,
            norm=self.norm,
            norm_type=self.norm_type,
            pattern=self.pattern,
            attn_impl=self.attn_impl,
        )

    def convolutions(self) -> list[tuple[int, int, int]]:
        """Returns (kernel, dilation, stride) of each convolution of the chain.

        Lists of one apply to all. Raises `UsageError` for lists of different lengths.
        """
        kernels = self.kernel or DEFAULT_KERNEL
        dilations = self.dilations or ((1,) if self.strides or self.kernel else DEFAULT_DILATIONS)
        strides = self.strides or (1,)
        count = max(len(kernels), len(dilations), len(strides))
        named = (("--kernel", kernels), ("--dilations", dilations), ("--strides", strides))
        for option, given in named:
            if len(given) not in (1, count):
                raise UsageError(
                    f"{option}: {len(given)} numbers for {count} convolutions; give 1 or {count}"
                )
        full = [given * count if len(given) == 1 else given for _, given in named]
        levels = list(zip(*full, strict=True))
        return [level for level in levels for _ in range(self.convs)] * self.stacks

    def check(self) -> None:
        """Raises `UsageError` for options that do not fit each other."""
        check_types(self, zero=("seed", "kernel", "dilations", "strides"))
        self._check_subject()
        if self.dtype not in DTYPES:
            raise UsageError(f"--dtype: {self.dtype!r} is not one of {', '.join(DTYPES)}")
        named = self.position in (None, "last", "middle", "all")
        if not named and not str(self.position).isdecimal():
            raise UsageError(
                f"--position: {self.position!r} is not last, middle, all or an output's number"
            )
        if self.max_seq_len < self.seq_len:
            raise UsageError(
                f"--max-seq-len: {self.max_seq_len} is below --seq-len, which is {self.seq_len}"
            )
        if self.sample_rate is not None and self.sample_rate <= 0:
            raise UsageError(f"--sample-rate: {self.sample_rate:g} is not above 0")
        for option, asked in (
            ("--fail-on-leak", self.fail_on_leak),
            ("--effective", self.effective),
            ("--streaming", self.streaming),
            ("--leaks-csv", self.leaks_csv is not None),
        ):
            if asked and self.predict_only:
                raise UsageError(f"{option} measures, which --predict-only forbids")

    def _check_subject(self) -> None:
        described = any(d is not None for d in (self.kernel, self.dilations, self.strides))
        ours = self.arch is not None or self.pattern is not None
        given = described + ours + (self.model is not None) + (self.hf is not None)
        if given > 1:
            raise UsageError(
                "--kernel, --dilations and --strides, --arch or --pattern, --model, and --hf "
                "exclude each other"
            )
        if not ours and (self.depth or self.norm or self.norm_type):
            raise UsageError("--depth, --norm and --norm-type stack --arch or --pattern")
        if not ours and self.attn_impl:
            raise UsageError("--attn-impl is of attention in --arch or --pattern")
        if not self.inline:
            return
        reach = 1
        step = 1
        for kernel, dilation, stride in self.convolutions():
            reach += (kernel - 1) * dilation * step
            step *= stride
        if max(reach, step) > LARGEST:
            raise UsageError(
                f"--dilations: a field of {reach} steps with stride {step} is beyond {LARGEST}"
            )
