"""Every layer: forward = step by step, causal, splittable, with a state of the size it says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seqdiag.errors import UsageError
from seqdiag.models.mixer import Mixer, state_tensors
from seqdiag.models.positions import Rope
from seqdiag.models.registry import LETTERS, MIXERS, build_mixer, parse_pattern

WIDTH = 16
STEPS = [1, 2, 7, 63, 64, 65, 130]
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in MIXERS},
    "multi-query": ("attention", {"kv_heads": 1, "rope": Rope(4), "qk_norm": True}),
    "grouped window": ("sliding-attention", {"kv_heads": 2, "window": 5, "rope": Rope(4)}),
    "window of one": ("sliding-attention", {"window": 1}),
    "blocked": ("attention", {"impl": "blocked"}),
    "own head": ("attention", {"head_dim": 6, "bias": True, "scale": 0.3}),
    "relu": ("linear-attention", {"feature": "relu"}),
    "taylor2": ("linear-attention", {"feature": "taylor2"}),
    "narrow keys": ("gated-delta", {"key_dim": 3}),
    "groups": ("mamba2", {"groups": 2, "head_dim": 8, "d_state": 3}),
    "odd mamba": ("mamba", {"d_state": 3, "d_conv": 2, "expand": 1, "dt_rank": 2}),
    "wide tcn": ("tcn", {"kernel": 3, "levels": 3}),
    "relu rnn": ("rnn", {"nonlinearity": "relu"}),
}


def build(name: str) -> Mixer:
    torch.manual_seed(0)
    kind, options = VARIANTS[name]
    mixer = build_mixer(kind, WIDTH, dict(options)).double()
    with torch.no_grad():  # no parameter may stay at a value that hides a mistake
        for parameter in mixer.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return mixer


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    if theirs.numel() == 0:
        return
    scale = theirs.abs().max().clamp(min=1e-6)
    assert ((ours - theirs).abs().max() / scale).item() <= 1e-10


def step_through(mixer: Mixer, x: Tensor) -> tuple[Tensor, tuple[object, ...]]:
    state, outputs = mixer.init_state(x.shape[0]), []
    for x_t in x.unbind(1):
        y_t, state = mixer.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", VARIANTS)
def test_forward_is_step_by_step(name: str, steps: int) -> None:
    mixer, x = build(name), randn(2, steps, WIDTH)
    with torch.no_grad():
        y, state = mixer.scan(x, mixer.init_state(2))
        stepped, last = step_through(mixer, x)
        assert_close(mixer(x), stepped)
    assert y.shape == x.shape
    for ours, theirs in zip(state_tensors(state), state_tensors(last), strict=True):
        assert_close(ours.double(), theirs.double())


@pytest.mark.parametrize("name", VARIANTS)
def test_carried_state_splits_anywhere(name: str) -> None:
    mixer, x = build(name), randn(2, 90, WIDTH)
    with torch.no_grad():
        whole = mixer(x)
        state, pieces = mixer.init_state(2), []
        for piece in x.split([37, 1, 20, 32], dim=1):
            y, state = mixer.scan(piece, state)
            pieces.append(y)
        assert_close(torch.cat(pieces, 1), whole)


@pytest.mark.parametrize("name", VARIANTS)
def test_causal(name: str) -> None:
    mixer, x = build(name), randn(1, 40, WIDTH)
    with torch.no_grad():
        clean = mixer(x)
        for cut in (1, 2, 3, 7, 16, 23, 39):
            changed = x.clone()
            changed[:, cut:] = 1e3 * randn(1, 40, WIDTH)[:, cut:]
            assert_close(mixer(changed)[:, :cut], clean[:, :cut])


@pytest.mark.parametrize("name", VARIANTS)
def test_state_bytes_and_gradients(name: str) -> None:
    mixer = build(name)
    x = randn(3, 20, WIDTH).requires_grad_()
    y, state = mixer.scan(x, mixer.init_state(3))
    assert mixer.state_bytes(state) == sum(t.nbytes for t in state_tensors(state))
    fixed = mixer.scan(x[:, :5], mixer.init_state(3))[1]
    grows = "attention" in VARIANTS[name][0] and "linear" not in VARIANTS[name][0]
    if not grows:
        assert mixer.state_bytes(state) == mixer.state_bytes(fixed)
    gradients = torch.autograd.grad(y.sin().sum(), [x, *mixer.parameters()], allow_unused=True)
    used = [g for g in gradients if g is not None]
    assert len(used) == len(gradients)
    assert all(g.isfinite().all() for g in used)


def test_a_kv_cache_has_the_size_that_kvcache_predicts() -> None:
    from seqdiag.predict.kv_cache.engines import Ideal
    from seqdiag.predict.kv_cache.layout import Attention, Dtypes

    wide = Dtypes("float32", "float32", "float32")
    for window in (None, 8):
        mixer = build_mixer("attention", 16, {"kv_heads": 2, "window": window})
        _, state = mixer.scan(torch.randn(3, 20, 16), mixer.init_state(3))
        held = mixer.state_bytes(state) - 8  # the count of steps
        need = Ideal().allocate([Attention(2, 4, 4, window)], 20, 3, wide).kv_bytes
        # What the next step can see, less the step itself: W - 1 of a window of W.
        assert held == (need if window is None else need * (window - 1) // window)


@pytest.mark.parametrize("name", ["tcn", "dilated-conv", "wavenet", "short-conv"])
def test_convolutions_see_as_far_as_they_say(name: str) -> None:
    reach = {"tcn": 31, "dilated-conv": 32, "wavenet": 16, "short-conv": 4}[name]
    mixer, x = build(name), randn(1, 60, WIDTH).requires_grad_()
    (gradient,) = torch.autograd.grad(mixer(x)[0, -1].sum(), x)
    seen = gradient[0].abs().amax(1).nonzero()
    assert 60 - int(seen.min()) <= reach
    if name != "tcn" and name != "dilated-conv":  # a dead ReLU may hide the far end
        assert 60 - int(seen.min()) == reach


def test_patterns() -> None:
    assert parse_pattern("mma") == ["mamba", "mamba", "attention"]
    assert len(LETTERS) == len(MIXERS)
    with pytest.raises(UsageError) as caught:
        parse_pattern("mmx")
    assert "m mamba" in caught.value.hint
    with pytest.raises(UsageError, match="empty"):
        parse_pattern("")
    with pytest.raises(UsageError, match="--arch"):
        build_mixer("hyena", 8)
    with pytest.raises(UsageError, match="unexpected keyword"):
        build_mixer("mamba", 8, {"d_stat": 3})
