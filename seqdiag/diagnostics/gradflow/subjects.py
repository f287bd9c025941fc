"""The subjects of a question, each at one seed, ready to be probed in any dtype."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqdiag.diagnostics.gradflow.spec import GradflowSpec
from seqdiag.errors import UsageError
from seqdiag.measure.probes import Reduce, Run, along_random, in_padded_batch, mixes_batch
from seqdiag.measure.training import train_to_copy
from seqdiag.models.adapting import Feeding, feed
from seqdiag.models.loading import cast_module, open_module, user_code
from seqdiag.models.recurrent import Recurrent
from seqdiag.models.subjects import draw_subjects

Feed = Callable[[nn.Module, torch.dtype], tuple[Run, Tensor]]
"""Returns how to run a module and its inputs (B, T, D), in a dtype."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One module at one seed."""

    name: str
    seed: int
    module: nn.Module
    feed: Feed
    reduce: Reduce
    own: bool = False
    """Whether the module is the user's."""
    note: str = ""

    def guarded(self) -> contextlib.AbstractContextManager[None]:
        """Guards a forward and backward pass: what a user's module raises is the user's error."""
        return user_code("the backward pass") if self.own else contextlib.nullcontext()

    @property
    def recurrent(self) -> Recurrent | None:
        return self.module if isinstance(self.module, Recurrent) else None

    def cast(self, dtype: torch.dtype) -> Subject:
        """Returns a copy in another dtype; this one stays as it is."""
        try:
            module = copy.deepcopy(self.module)
        except Exception:  # locks, cached tensors: a module built for us alone may change
            module = self.module
        with user_code(f"casting the module to {dtype}"):
            module = cast_module(module, dtype)
        return dataclasses.replace(self, module=module)

    def fed(self) -> tuple[Run, Tensor]:
        """Returns how to run the module and its inputs, in the dtype of its parameters."""
        floats = (p.dtype for p in self.module.parameters() if p.is_floating_point())
        return self.feed(self.module, next(floats, torch.float32))

    def fed_as(self, dtype: torch.dtype) -> tuple[Subject, Run, Tensor]:
        """Returns a copy in `dtype` with how to run it and its inputs."""
        subject = self.cast(dtype)
        return (subject, *self.feed(subject.module, dtype))


def subjects(
    spec: GradflowSpec, device: torch.device, module: nn.Module | None = None
) -> Iterator[Subject]:
    """Yields every subject of `spec`, seed by seed, trained where that was asked."""
    if spec.by == "logits":
        return
    if module is not None or spec.model is not None or spec.hf is not None:
        found = _own_module(spec, device, module)
    else:
        found = _built_in(spec, device)
    for subject in found:
        if spec.after_steps:
            run, x = subject.fed()
            with subject.guarded():
                train_to_copy(subject.module, run, x, spec.after_steps, spec.lr)
        yield from [subject] if spec.lengths is None else _sequences(subject, spec.lengths)


def _sequences(subject: Subject, lengths: Sequence[int]) -> Iterator[Subject]:
    """Yields the sequences of a padded batch, each to be measured to its own last step."""
    for index in range(len(lengths)):

        def feed_one(
            module: nn.Module, dtype: torch.dtype, index: int = index
        ) -> tuple[Run, Tensor]:
            return in_padded_batch(*subject.feed(module, dtype), lengths, index)

        yield dataclasses.replace(subject, name=f"{subject.name}[{index}]", feed=feed_one)


def _built_in(spec: GradflowSpec, device: torch.device) -> Iterator[Subject]:
    for seed in spec.all_seeds:
        x, layers = draw_subjects(
            spec.architectures, spec.subject_options, spec.sequences, spec.seq_len, seed
        )

        def feed_layer(module: nn.Module, dtype: torch.dtype, x: Tensor = x) -> tuple[Run, Tensor]:
            return module, x.to(device, dtype)

        for name, layer in layers.items():
            module = layer.to(device).train(spec.train_mode)
            yield Subject(name, seed, module, feed_layer, _reduce(spec, layer, seed))


def _own_module(
    spec: GradflowSpec, device: torch.device, given: nn.Module | None
) -> Iterator[Subject]:
    for seed in spec.all_seeds:

        def feed_module(
            module: nn.Module, dtype: torch.dtype, seed: int = seed, batch: int = spec.sequences
        ) -> tuple[Run, Tensor]:
            feeding = Feeding(
                batch=batch,
                seq_len=spec.seq_len,
                dtype=dtype,
                device=device,
                kind=spec.input,
                d_in=spec.d_in,
                vocab=spec.vocab,
                layout=spec.layout,
                pick=spec.pick,
            )
            with user_code("feeding the module"):
                fed = feed(module, feeding, torch.Generator().manual_seed(seed))
            return fed.run, fed.inputs

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            name, module, note = open_module(spec.model, spec.model_arg, spec.hf, given)
            if given is not None or spec.after_steps:  # the user's stays as it was
                with user_code("copying the module"):
                    module = copy.deepcopy(module)
            module = module.to(device).train(spec.train_mode)
            reduce = _reduce(spec, module, seed)
            subject = Subject(name, seed, module, feed_module, reduce, own=True, note=note)
            if spec.layout == "btd" and _mixes_batch(subject, feed_module):
                said = "sequences of a batch mix: if it is time first, give --layout tbd"
                subject = dataclasses.replace(subject, note="; ".join(filter(None, (note, said))))
            yield subject


def _mixes_batch(subject: Subject, feed_module: Callable[..., tuple[Run, Tensor]]) -> bool:
    copied = subject.cast(torch.float64).module
    try:
        with torch.random.fork_rng(devices=[]), user_code("a batch of two"):
            return mixes_batch(*feed_module(copied, torch.float64, batch=2))
    except UsageError:  # what is wrong will be said when it is measured
        return False


def _reduce(spec: GradflowSpec, module: nn.Module, seed: int) -> Reduce:
    """Returns the loss: the articles' sum for recurrent layers, a random direction otherwise."""
    kind = spec.reduce or ("sum" if isinstance(module, Recurrent) else "random")
    return torch.sum if kind == "sum" else along_random(seed)
