"""Gradient probes: how much of a loss at the last step reaches each earlier one.

Norms neither underflow nor overflow: m ||g / m|| with m = max |g|. Where the gradient itself
leaves the range of float64, it is measured again with its scale carried apart as a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from seqdiag.models.mixer import State
from seqdiag.models.recurrent import Recurrent, TorchRecurrent, scan_side_by_side

Run = Callable[[Tensor], Tensor]
"""Maps inputs (B, T, D) to outputs (B, T, ...)."""
Reduce = Callable[[Tensor], Tensor]
"""Maps the outputs of the last step (B, ...) to the loss."""

_SAFE = 960
"""Powers of two within +-960 are computed without loss in float64, whose range is +-1022."""
_SEGMENT = 64
_LOG10_2 = math.log10(2.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """Gradient norms at each input step, from first to last."""

    norms: list[float]
    """||dL/dx_t|| over batch and features, in the dtype measured; it may underflow there."""
    log10_norms: list[float]
    """Finite wherever there is a gradient; -inf where there is none, nan where undefined."""
    underflowed: list[bool]
    """Where the norm is below the dtype's range although there is, or may be, a gradient."""


def along_random(seed: int) -> Reduce:
    """Returns the loss along one random unit direction of the output, the same for every batch.

    Unlike a sum it cannot cancel: the sum over the features of a LayerNorm is a constant.
    """

    def reduce(last: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        direction = torch.randn(last.shape[1:], generator=generator, dtype=torch.float64)
        loss: Tensor = (last * (direction / direction.norm()).to(last)).sum()
        return loss

    return reduce


def mixes_batch(run: Run, x: Tensor) -> bool:
    """Returns whether the last output of one of two sequences, x (2, T, D), depends on the other.

    It does in a module that takes the first axis for time, or normalises over the batch.
    """
    leaf = x.detach().requires_grad_()
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        last = run(leaf.clone())[:, -1].flatten(1)
        for one, other in ((0, 1), (1, 0)):
            (gradient,) = torch.autograd.grad(
                last[one].square().sum(), leaf, retain_graph=True, allow_unused=True
            )
            if gradient is not None and bool((gradient[other] != 0).any()):
                return True
    return False


def in_padded_batch(run: Run, x: Tensor, lengths: Sequence[int], index: int) -> tuple[Run, Tensor]:
    """Returns how to run one sequence of a padded batch, (1, L, D), and the sequence itself.

    Sequence b of x (B, T, D) is its first `lengths[b]` steps; the rest of it is zeros. The module
    sees the whole batch, the loss the last valid step of this sequence.
    """
    steps = torch.arange(x.shape[1], device=x.device)
    valid = steps < torch.tensor(lengths, device=x.device).unsqueeze(1)
    batch = x * valid.unsqueeze(-1)
    length = lengths[index]

    def run_one(sequence: Tensor) -> Tensor:
        whole = F.pad(sequence, (0, 0, 0, x.shape[1] - length))
        rows = torch.cat([batch[:index], whole, batch[index + 1 :]])
        return run(rows)[index : index + 1, :length]

    return run_one, x[index : index + 1, :length]


def input_gradient(run: Run, x: Tensor, scale: float = 1.0, reduce: Reduce = torch.sum) -> Tensor:
    """Returns d(scale * loss of the last output step) / dx, (B, T, D).

    `scale` multiplies the gradient that flows in, not the loss, so the loss cannot overflow.
    """
    leaf = x.detach().requires_grad_()
    # cuDNN's recurrent layers have no backward in eval mode.
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        loss = reduce(run(leaf.clone())[:, -1])  # not a leaf: in-place operations may touch it
        (gradient,) = torch.autograd.grad(
            loss, leaf, grad_outputs=loss.new_full((), scale), allow_unused=True
        )
    return torch.zeros_like(x) if gradient is None else gradient.detach()


def step_norms(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the norm of each step of (B, T, D) and its log2, both (T,) in float64."""
    steps = gradient.double().transpose(0, 1).flatten(1)
    largest = steps.abs().amax(dim=1)
    safe = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    unit = (steps / safe.unsqueeze(1)).norm(dim=1)
    return safe * unit, safe.log2() + unit.log2()


def profile_float64(
    run: Run, x: Tensor, recurrent: Recurrent | None = None, reduce: Reduce = torch.sum
) -> Profile:
    """Returns the profile in float64; `x` and the parameters behind `run` are float64.

    A long or steep recurrent layer is differentiated segment by segment, which has no floor and
    is faster. Any other module is run again with the gradient scaled by 2^1000 and 2^-1000.
    """
    if recurrent is not None and x.shape[1] > _SEGMENT:
        norms, log2 = _by_segments(recurrent, x, reduce)
        underflowed = (norms == 0) & log2.isfinite()
        return Profile(norms.tolist(), (log2 * _LOG10_2).tolist(), underflowed.tolist())
    norms, log2 = step_norms(input_gradient(run, x, reduce=reduce))
    unsafe = ~(log2.abs() < _SAFE)
    lost = torch.zeros_like(unsafe)
    if bool(unsafe.any()) and not bool(norms.isnan().any()):
        if recurrent is not None:
            norms, log2 = _by_segments(recurrent, x, reduce)
        else:
            log2, lost = _rescaled(run, x, log2, reduce)
            norms = torch.where(unsafe, torch.exp2(log2), norms)
    underflowed = lost | ((norms == 0) & log2.isfinite())
    return Profile(norms.tolist(), (log2 * _LOG10_2).tolist(), underflowed.tolist())


def profiles_side_by_side(
    layers: Sequence[TorchRecurrent], x: Tensor, reduces: Sequence[Reduce]
) -> list[Profile | None]:
    """Returns the profiles of layers of one kind at once, in float64; x is (S, B, T, D).

    None stands where a gradient leaves the range and is to be measured by itself.
    """
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        last = scan_side_by_side(layers, leaf)[:, :, -1]
        losses = [reduce(one) for reduce, one in zip(reduces, last, strict=True)]
        (gradients,) = torch.autograd.grad(torch.stack(losses).sum(), leaf)
    found: list[Profile | None] = []
    for norms, log2 in map(step_norms, gradients):
        safe = bool((log2.abs() < _SAFE).all())
        log10 = (log2 * _LOG10_2).tolist()
        found.append(Profile(norms.tolist(), log10, [False] * len(log10)) if safe else None)
    return found


def profile_as(gradient: Tensor, exact: Callable[[], Profile]) -> Profile:
    """Returns the profile of a gradient in lower precision; `exact` measures it in float64.

    `exact` is asked only if a step is below the normal numbers or not finite.
    """
    norms, log2 = step_norms(gradient)
    log10 = log2 * _LOG10_2
    # Below the smallest normal number digits are missing, and products stick at the last one.
    lost = ~((norms >= torch.finfo(gradient.dtype).smallest_normal) & norms.isfinite())
    if not bool(lost.any()):
        return Profile(norms.tolist(), log10.tolist(), [False] * len(log10))
    truth = exact()
    true_log10 = torch.tensor(truth.log10_norms, dtype=torch.float64)
    underflowed = (norms.cpu() == 0) & ((true_log10 != -math.inf) | torch.tensor(truth.underflowed))
    log10 = torch.where(lost.cpu(), true_log10, log10.cpu())
    return Profile(norms.tolist(), log10.tolist(), underflowed.tolist())


def _rescaled(run: Run, x: Tensor, log2: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    """Returns log2 from passes scaled by 2^1000 and 2^-1000, and where even those are no good.

    A step counts only where the scaled norm itself is well inside the range.
    """
    lost = torch.zeros_like(log2, dtype=torch.bool)
    for exponent in (1000, -1000):
        unsafe = ~(log2.abs() < _SAFE)
        scaled = step_norms(input_gradient(run, x, 2.0**exponent, reduce))[1]
        good = scaled.abs() < _SAFE
        wanted = unsafe & ((log2 < 0) if exponent > 0 else (log2 > 0))
        log2 = torch.where(wanted & good, scaled - exponent, log2)
        lost |= wanted & ~good & (scaled != -math.inf)
    # Before a step that sank below the range, a zero may be a gradient that sank further.
    sunk = lost | (log2.isfinite() & (log2 < -_SAFE - 900))
    sank = sunk.flip(0).cumsum(0).flip(0) > 0
    lost |= sank & (log2 == -math.inf)
    return log2.masked_fill(lost & (log2 < 0), -math.inf), lost


def _by_segments(
    layer: Recurrent, x: Tensor, reduce: Reduce, size: int = _SEGMENT
) -> tuple[Tensor, Tensor]:
    """Returns the norm at each step and its log2, both (T,), by backpropagation in segments.

    Between segments the gradient of the state is divided by a power of two that is remembered,
    so neither a vanishing nor an exploding gradient leaves the range.
    """
    segments = torch.split(x, size, dim=1)
    starts = [layer.init_state(x.shape[0])]
    with torch.no_grad():
        for segment in segments[:-1]:
            starts.append(layer.scan(segment, starts[-1])[1])
    upstream: State | None = None
    exponent = 0
    pieces: list[tuple[Tensor, Tensor]] = []
    for segment, start in zip(reversed(segments), reversed(starts), strict=True):
        gradient, upstream = _segment_gradient(layer, segment, start, upstream, reduce)
        norms, log2 = step_norms(gradient)
        if size > 1 and not bool((log2.abs() < _SAFE).all()):
            return _by_segments(layer, x, reduce, size=1)  # a step may change it by hundreds
        exact = norms * 2.0**exponent if abs(exponent) < _SAFE else torch.exp2(log2 + exponent)
        pieces.append((exact, log2 + exponent))
        largest = max(part.abs().max().item() for part in upstream)
        if largest > 0 and math.isfinite(largest):
            shift = math.frexp(largest)[1]
            upstream = tuple(torch.ldexp(part, torch.tensor(-shift)) for part in upstream)
            exponent += shift
    norms, log2 = (torch.cat(part) for part in zip(*reversed(pieces), strict=True))
    return norms, log2


def _segment_gradient(
    layer: Recurrent, segment: Tensor, start: State, upstream: State | None, reduce: Reduce
) -> tuple[Tensor, State]:
    """Returns the gradient at a segment's inputs and at the state it starts from."""
    inputs = segment.detach().requires_grad_()
    state = tuple(part.detach().requires_grad_() for part in start)
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        outputs, end = layer.scan(inputs, state)
        if upstream is None:
            targets: State = (reduce(outputs[:, -1]),)
        else:
            targets = end
        gradients = torch.autograd.grad(targets, (inputs, *state), upstream, allow_unused=True)
    zeros = (torch.zeros_like(inputs), *(torch.zeros_like(part) for part in state))
    first, *rest = (g if g is not None else z for g, z in zip(gradients, zeros, strict=True))
    return first, tuple(rest)
