"""The question that `gradflow` answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seqdiag.checking import check_types
from seqdiag.errors import UsageError
from seqdiag.models.adapting import InputKind, Layout
from seqdiag.models.block import Norm, NormType
from seqdiag.models.recurrent import Init
from seqdiag.models.subjects import SubjectOptions, check_architectures, subject_names

DTYPES = ("float64", "float32", "float16", "bfloat16")
View = Literal["time", "summary", "layer", "cell", "logits", "jacobian"]
_LARGEST_BIAS = 1e6
_DEEPEST = 10_000
DEFAULT_ARCH = ("rnn", "lstm", "gru")
_OF_OWN = ("model_arg", "input", "d_in", "vocab", "layout", "pick")
_OF_BUILT_IN = (
    "arch", "pattern", "hidden", "depth", "norm", "norm_type", "multiplier", "forget_bias", "init",
    "nonlinearity", "attn_impl",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GradflowSpec:
    """The question: which subject, how long a sequence, which view."""

    arch: tuple[str, ...] | None = None
    model: str | None = None
    model_arg: tuple[str, ...] = ()
    hf: str | None = None
    """A config.json of a `transformers` causal LM, or its folder."""
    seq_len: int = 60
    hidden: int = 32
    batch: int | None = None
    """None is 1, and 8 for the views by layer: one sequence says little about a deep stack."""
    by: View = "time"
    steps_back: tuple[int, ...] | None = None
    """The lags to show; None for all."""
    lengths: tuple[int, ...] | None = None
    """Of the sequences of a padded batch; each is measured from its own last step."""
    horizon_ratio: float = 1e-3
    seed: int = 0
    seeds: int = 1
    dtype: str = "float64"
    device: str = "auto"
    multiplier: tuple[float, ...] = (0.9, 0.99, 1.0, 1.1)
    forget_bias: float | None = None
    init: Init = "default"
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    input: InputKind = "auto"
    d_in: int | None = None
    vocab: int | None = None
    layout: Layout = "btd"
    pick: str | None = None
    train_mode: bool = False
    depth: int | None = None
    norm: Norm | None = None
    norm_type: NormType | None = None
    pattern: str | None = None
    attn_impl: str | None = None
    reduce: Literal["sum", "random"] | None = None
    """The loss direction; None is the sum for recurrent layers, random for anything else."""
    after_steps: int = 0
    lr: float = 1e-3
    d_k: tuple[int, ...] = (4, 16, 64, 256, 1024)

    @property
    def sequences(self) -> int:
        """The batch in force."""
        if self.lengths is not None:
            return len(self.lengths)
        return self.batch or (8 if self.by in ("layer", "cell") else 1)

    @property
    def architectures(self) -> tuple[str, ...]:
        if self.arch is None and self.pattern is not None:
            return ()
        return self.arch or DEFAULT_ARCH

    @property
    def subject_options(self) -> SubjectOptions:
        return SubjectOptions(
            width=self.hidden,
            init=self.init,
            nonlinearity=self.nonlinearity,
            forget_bias=self.forget_bias,
            multipliers=self.multiplier,
            depth=self.depth,
            norm=self.norm,
            norm_type=self.norm_type,
            pattern=self.pattern,
            attn_impl=self.attn_impl,
        )

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)

    @property
    def n_subjects(self) -> int:
        if self.model is not None or self.hf is not None:
            return 1
        return len(subject_names(self.architectures, self.subject_options))

    def check(self, given: bool = False) -> None:
        """Raises `UsageError` for options that do not fit each other.

        `given` says that the subject is a module at hand rather than an option.
        """
        check_types(self, zero=("seed", "after_steps", "steps_back"))
        self._check_nothing_ignored(given or self.model is not None or self.hf is not None)
        if given + (self.model is not None) + (self.hf is not None) > 1:
            raise UsageError("--model and --hf exclude each other")
        if self.model is None and self.hf is None:
            check_architectures(self.architectures, self.subject_options)
        if self.by in ("jacobian", "logits") and self.dtype != "float64":
            raise UsageError(f"--dtype: --by {self.by} is computed in float64, not {self.dtype}")
        if self.dtype not in DTYPES:
            raise UsageError(f"--dtype: {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if self.lengths is not None:
            self._check_lengths(self.lengths)
        longest = max(self.lengths or (self.seq_len,))
        if self.steps_back and max(self.steps_back) >= longest:
            limit = "--seq-len" if self.lengths is None else "a length"
            raise UsageError(
                f"--steps-back: {max(self.steps_back)} needs {limit} above it, "
                f"which is {longest}: at most {longest - 1} steps lie back"
            )
        if not 0 < self.horizon_ratio < 1:
            raise UsageError(f"--horizon-ratio: {self.horizon_ratio:g} is not between 0 and 1")
        if self.forget_bias is not None and abs(self.forget_bias) > _LARGEST_BIAS:
            raise UsageError(f"--forget-bias: {self.forget_bias:g} is beyond +-{_LARGEST_BIAS:g}")
        if max(self.depth or 1, len(self.pattern or "")) > _DEEPEST:
            raise UsageError(f"--depth: more than {_DEEPEST} blocks")
        if self.lr <= 0:
            raise UsageError(f"--lr: {self.lr:g} is not above 0")

    def _check_nothing_ignored(self, own: bool) -> None:
        default = GradflowSpec()
        names = _OF_BUILT_IN if own else _OF_OWN
        ignored = [name for name in names if getattr(self, name) != getattr(default, name)]
        if not ignored:
            return
        flag = "--" + ignored[0].replace("_", "-")
        if own:
            raise UsageError(f"{flag} is of the built-in layers, not of a module of your own")
        raise UsageError(f"{flag} is of a module of your own: it needs --model or --hf")

    def _check_lengths(self, lengths: tuple[int, ...]) -> None:
        if max(lengths) > self.seq_len:
            raise UsageError(f"--lengths: {max(lengths)} is beyond --seq-len {self.seq_len}")
        if self.batch not in (None, len(lengths)):
            raise UsageError(f"--lengths: {len(lengths)} of them do not make --batch {self.batch}")
        if self.by not in ("time", "summary") or self.after_steps:
            raise UsageError("--lengths is for --by time and summary, without --after-steps")
