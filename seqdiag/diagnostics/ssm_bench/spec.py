"""The question that `ssm-bench` answers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from seqdiag.diagnostics.ssm_bench.forms import FORMS, INTERPRETED
from seqdiag.errors import UsageError, unknown
from seqdiag.predict.scan_work import Kind

Mode = Literal["scan", "step", "stream"]
Pass = Literal["fwd", "bwd", "both"]
KINDS: tuple[Kind, ...] = ("lti", "selective", "ssd", "linear-rnn")
DEFAULT_KINDS: tuple[Kind, ...] = ("lti", "selective", "ssd")
PASSES: tuple[Pass, ...] = ("fwd", "bwd", "both")
MODES: tuple[Mode, ...] = ("scan", "step", "stream")
BESIDE = ("attention", "rnn", "lstm", "gru")
DTYPES = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class SsmBenchSpec:
    """The question: which recurrence, in which forms, how long, beside what."""

    kind: tuple[Kind, ...] | None = None
    """None is lti, selective and ssd, or what the forms asked for compute."""
    impl: tuple[str, ...] | None = None
    """None is every form that computes a kind, whether or not it can run here."""
    seq_len: tuple[int, ...] = (256, 1024)
    batch: int = 1
    d_model: int = 128
    d_state: int = 16
    heads: int = 4
    chunk: tuple[int, ...] | None = None
    pass_: tuple[Pass, ...] = ("fwd",)
    mode: Mode = "scan"
    against: tuple[str, ...] = ("attention", "lstm")
    """What stands beside the scans: attention, rnn, lstm, gru; empty for nothing."""
    position: tuple[int, ...] = (1, 1024, 32768, 1048576)
    """Steps that went by before the one that `step` times."""
    hours: int = 8
    rate: int = 50
    """Tokens a second of a stream."""
    dtype: str = "float32"
    device: str = "auto"
    dist: Literal["stable", "raw"] = "stable"
    budget_s: float = 2.0
    check_only: bool = False
    inspect: str = ""
    """The targets to compile the kernels for, `all` or a list; nothing is run then."""
    interpret: bool = False
    threads: int | None = None
    seed: int = 0

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds in force."""
        if self.kind is not None:
            return self.kind
        if self.impl is None:
            return DEFAULT_KINDS
        asked = [FORMS[name].kinds for name in self.impl]
        usual = tuple(k for k in DEFAULT_KINDS if any(k in kinds for kinds in asked))
        return usual or tuple(dict.fromkeys(k for kinds in asked for k in kinds))

    def forms(self, kind: Kind) -> list[str]:
        """Returns the forms of a kind: those asked for, or all that compute it.

        What is asked for together with its kind is listed even if it cannot compute it.
        """
        if self.impl is not None:
            return [n for n in self.impl if self.kind is not None or kind in FORMS[n].kinds]
        known = [name for name, form in FORMS.items() if kind in form.kinds]
        return [name for name in known if self.interpret or name not in INTERPRETED]

    def as_options(self) -> dict[str, Any]:
        """Returns the spec by option names, as a result keeps it to be replayed."""
        options = dataclasses.asdict(self)
        options["pass"], options["budget"] = options.pop("pass_"), f"{options.pop('budget_s'):g}s"
        return {**options, "against": self.against or "none"}

    def check(self) -> None:
        """Raises `UsageError` for options that do not fit each other."""
        for option, value, known in (
            ("--kind", self.kind or (), KINDS),
            ("--pass", self.pass_, PASSES),
            ("--impl", self.impl or (), FORMS),
            ("--against", self.against, BESIDE),
        ):
            for name in value:
                if name not in known:
                    raise unknown(option, name, known)
        if self.dtype not in DTYPES:
            raise UsageError(f"--dtype: {self.dtype!r} is not one of {', '.join(DTYPES)}")
        self._check_sizes()
        self._check_mode()
        if self.budget_s <= 0:
            raise UsageError(f"--budget: {self.budget_s:g} s is not above 0")
        interpreted = [name for name in self.impl or () if name in INTERPRETED]
        if interpreted and not self.interpret:
            raise UsageError(f"--impl: {interpreted[0]} needs --interpret", hint="--interpret")

    def _check_sizes(self) -> None:
        divided = "ssd" in self.kinds or "attention" in self.against
        if divided and self.d_model % self.heads:
            raise UsageError(
                f"--heads: {self.heads} does not divide --d-model {self.d_model}",
                hint=f"--heads {_divisor(self.d_model, self.heads)}",
            )
        longest = max(self.seq_len)
        if self.mode == "scan" and self.chunk is not None and max(self.chunk) > longest:
            raise UsageError(
                f"--chunk: {max(self.chunk)} is larger than --seq-len {longest}",
                hint=f"--chunk {min(64, longest)}",
            )

    def _check_mode(self) -> None:
        """Raises `UsageError` for options of another mode than the one in force."""
        if self.mode == "scan":
            return
        for option, given in (
            ("--impl", self.impl is not None),
            ("--chunk", self.chunk is not None),
            ("--pass", self.pass_ != ("fwd",)),
            ("--interpret", self.interpret),
        ):
            if given:
                raise UsageError(f"{option} is of --mode scan, not {self.mode}", hint="--mode scan")


def _divisor(width: int, wanted: int) -> int:
    """Returns the divisor of `width` next below `wanted`."""
    return max(d for d in range(1, min(wanted, width) + 1) if width % d == 0)
