"""The models in question, each under one engine in the dtypes in force."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING

from seqdiag.diagnostics.kvcache.spec import KvcacheSpec, canonical
from seqdiag.errors import UsageError
from seqdiag.predict.kv_cache.engines import ENGINES, Allocation, Engine
from seqdiag.predict.kv_cache.layout import (
    CrossAttention,
    DtypeChoice,
    Dtypes,
    Kept,
    Layout,
    Part,
    dtypes_for,
)
from seqdiag.predict.kv_cache.measured import Measured
from seqdiag.predict.kv_cache.subjects import custom_layout, load_subject

if TYPE_CHECKING:
    from torch import nn

EXAMPLES = ("gqa-32l", "mamba-32l")
"""The subjects when none is named: a grouped-query transformer and a Mamba of the same size."""
FIXED_STATE = "mamba-32l"


@dataclass(frozen=True, slots=True)
class Subject:
    """A layout under one engine in the dtypes in force."""

    layout: Layout
    engine: Engine
    dtypes: Dtypes
    batch: int

    def allocate(self, tokens: int, parts: Sequence[Part] | None = None) -> Allocation:
        chosen = self.layout.parts() if parts is None else parts
        return self.engine.allocate(chosen, tokens, self.batch, self.dtypes)

    def tensors(self, part: Part, tokens: int) -> tuple[Kept, ...]:
        return self.engine.tensors(part, tokens, self.batch, self.dtypes)

    def of_batch(self, batch: int) -> Subject:
        return dataclasses.replace(self, batch=batch)

    def total(self, tokens: int) -> int:
        return self.allocate(tokens).total_bytes

    @property
    def step(self) -> int:
        """Tokens after which the size is on its line again: a page, or the period of a sawtooth."""
        return lcm(self.engine.granule, self._period)

    @property
    def _period(self) -> int:
        return lcm(self.dtypes.period, *{part.period for part in self.layout.parts()})

    def peak(self, tokens: int) -> int:
        """Returns the most bytes held at any context up to `tokens`. It never falls."""
        first = max(tokens - self._period + 1, 1)
        return max(self.total(t) for t in range(first, tokens + 1))

    @property
    def unsupported(self) -> str:
        """Why the engine cannot hold this, if it cannot."""
        return self.engine.unsupported(self.layout, self.dtypes)

    @property
    def work_bytes(self) -> int | None:
        return None if self.unsupported else self.engine.work_bytes(self.layout, self.dtypes)

    def per_token(self, tokens: int, parts: Sequence[Part] | None = None) -> int:
        """Returns the growth for one more token, averaged over a step."""
        page = self.step
        more = self.allocate(tokens + page, parts).kv_bytes
        return (more - self.allocate(tokens, parts).kv_bytes) // (self.batch * page)

    def breakpoints(self) -> set[int]:
        points: set[int] = set()
        for part in set(self.layout.parts()):
            points |= self.engine.breakpoints(part)
        return points

    @property
    def assumptions(self) -> str:
        """Says which values the config lacks or gives twice."""
        said = [self.layout.caution] if self.layout.caution else []
        if self.layout.measured:
            said.append(self.layout.measured)
        said += self.layout.conflicts
        if self.layout.assumed:
            values = ", ".join(f"{name} = {value}" for name, value in self.layout.assumed.items())
            said.append(f"not in the config, taken from the model class: {values}")
        return "; ".join(said)


def subjects_of(spec: KvcacheSpec, modules: Sequence[nn.Module] = ()) -> list[Subject]:
    """Returns the models named, described and measured, the examples where there are none."""
    subjects = _described(spec) if spec.sizes_by_formula(bool(modules)) else []
    if not (modules or spec.has_module):
        return subjects
    from seqdiag.diagnostics.kvcache.running import measured_layout

    if spec.has_module:
        subjects.append(subject_of(measured_layout(spec), "measured", spec))
    return subjects + [
        subject_of(measured_layout(spec, module), "measured", spec) for module in modules
    ]


def _described(spec: KvcacheSpec) -> list[Subject]:
    layouts = [_load(name, spec) for name in dict.fromkeys(spec.models or _default(spec))]
    if spec.layers is not None and spec.kv_heads is not None and spec.head_dim is not None:
        layouts.append(
            custom_layout(spec.layers, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.window)
        )
    if spec.enc_len is not None and not any(map(_has_encoder, layouts)):
        names = ", ".join(layout.name for layout in layouts)
        raise UsageError(f"--enc-len: {names} has no encoder")
    if spec.assume is not None and not any(layout.caution for layout in layouts):
        raise UsageError("--assume: no MODEL is of an unknown model_type; leave it out")
    return [subject_of(layout, engine, spec) for layout in layouts for engine in spec.engine]


def _load(name: str, spec: KvcacheSpec) -> Layout:
    layout = load_subject(name, enc_len=spec.enc_len, assume_attention=spec.assume is not None)
    if spec.weights != "auto":
        return layout
    from seqdiag.predict.kv_cache.weights import weigh

    size, how = weigh(name, layout.dtype)
    return dataclasses.replace(layout, weight_bytes=size, weights_from=how)


def _has_encoder(layout: Layout) -> bool:
    return any(isinstance(part, CrossAttention) for part in layout.parts())


def _default(spec: KvcacheSpec) -> tuple[str, ...]:
    return () if spec.describes_model else EXAMPLES


def subject_of(layout: Layout, engine: str, spec: KvcacheSpec) -> Subject:
    """Returns a layout as `spec` wants it; a measured one as it was measured."""
    if layout.measured:
        own = dtypes_for(layout, None, None)
        return Subject(layout, Measured(), own, spec.batch)
    # What was measured is held against what a mechanism needs.
    built = ENGINES["ideal" if engine == Measured.name else engine](spec.settings())
    dtypes = _dtypes(layout, built, spec)
    if not built.unsupported(layout, dtypes):
        built.prepare(layout, dtypes)
    subject = Subject(layout, built, dtypes, spec.batch)
    if not subject.unsupported:
        subject.allocate(1)  # refuses ranks and rows that do not fit before the first row
    return subject


def _dtypes(layout: Layout, engine: Engine, spec: KvcacheSpec) -> Dtypes:
    """Returns the dtypes in force: the user's word, then the engine's, then the model's."""

    def given(name: str | None) -> str | None:
        return None if name is None else canonical(name)

    both, own = given(spec.dtype), engine.dtypes(layout)
    key = given(spec.k_dtype) or both or own.key
    value = given(spec.v_dtype) or both or own.value or layout.dtype
    choice = DtypeChoice(key, value, given(spec.conv_dtype) or own.conv, own.state)
    chosen = dtypes_for(layout, both, given(spec.state_dtype), choice)
    group, residual = spec.kv_group, spec.kv_residual
    return dataclasses.replace(
        chosen, group=group or chosen.group, residual=residual or chosen.residual
    )


def against_of(spec: KvcacheSpec, subjects: Sequence[Subject]) -> Layout | None:
    """Returns the model that the others are held against."""
    by_name = {subject.layout.name: subject.layout for subject in subjects}
    if spec.against is None:
        return by_name.get(FIXED_STATE)
    return by_name.get(spec.against) or load_subject(
        spec.against, "--against", spec.enc_len, spec.assume is not None
    )
