"""What is connected, whatever the weights: the network with |W| and no activation.

With positive weights, positive inputs and no rectifier nothing cancels and nothing is dead, so a
gradient of zero means that there is no path.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from seqdiag.measure.probes import Run

_ACTIVATIONS = {
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "elu", "elu_", "selu", "selu_", "celu",
    "gelu", "silu", "mish", "tanh", "tanh_", "sigmoid", "sigmoid_", "softplus", "hardtanh",
    "hardswish", "hardsigmoid", "logsigmoid", "softsign", "tanhshrink", "prelu", "threshold",
    "glu",
}  # fmt: skip
_NORMS = {"layer_norm", "rms_norm", "batch_norm"}
_POOLING: dict[str, Callable[..., Tensor]] = {
    "max_pool1d": F.avg_pool1d,
    "adaptive_max_pool1d": F.adaptive_avg_pool1d,
}


class _Linearised(TorchFunctionMode):
    """Takes activations and norms over features as identities, maxima as means."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "glu":
            half = args[0].chunk(2, dim=kwargs.get("dim", args[1] if len(args) > 1 else -1))
            return _bounded(half[0]) + half[1]
        if name in _ACTIVATIONS and args and isinstance(args[0], Tensor):
            return _bounded(args[0])
        if name in _NORMS and (name != "batch_norm" or not _in_training(args, kwargs)):
            return _bounded(args[0])
        if name in _POOLING and not kwargs.get("return_indices"):
            allowed = ("kernel_size", "stride", "padding", "output_size", "ceil_mode")
            passed = {k: v for k, v in kwargs.items() if k in allowed}
            if name == "max_pool1d" and kwargs.get("dilation", 1) not in (1, (1,)):
                return func(*args, **kwargs)
            return _POOLING[name](*args[:4], **passed)
        return func(*args, **kwargs)


def _bounded(x: Tensor) -> Tensor:
    """Returns x, made smaller where it grows: products of gates would leave the range."""
    return x / x.detach().abs().amax().clamp(min=1.0)


def _in_training(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("training", args[5] if len(args) > 5 else False))


def positive_copy(module: nn.Module) -> nn.Module:
    """Returns a copy with the absolute values of all parameters, but none that is zero."""
    network = copy.deepcopy(module).double()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.is_floating_point():
                parameter.abs_()
    return network


def connected_inputs(run: Run, x: Tensor, output: int) -> list[int] | None:
    """Returns the inputs that `output` has a path from, in a network of positive weights.

    `run` maps (B, T, D) to (B, N, ...). None where the gradient is not finite.
    """
    leaf = (x[:1].abs() + 0.1).expand_as(x).contiguous().requires_grad_()
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False), _Linearised():
        y = run(leaf.clone())
        (gradient,) = torch.autograd.grad(y[0, output].sum(), leaf, allow_unused=True)
    if gradient is None:
        return []
    if not bool(gradient.isfinite().all()):
        return None
    mass = gradient[0].abs().flatten(1).sum(dim=1)
    return [step for step, part in enumerate(mass.tolist()) if part > 0]


def gradient_mass(run: Run, x: Tensor, output: int, seed: int) -> list[float]:
    """Returns sum |d (a random direction of `output`) / d x_s| for each input step s, float64.

    Absolute values are summed over channels and inputs, so that signs do not cancel.
    """
    leaf = x.detach().clone().requires_grad_()
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        y = run(leaf.clone())[:, output].flatten(1)
        if not y.requires_grad:
            return [0.0] * x.shape[1]
        generator = torch.Generator().manual_seed(seed)
        direction = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)
        (gradient,) = torch.autograd.grad((y * direction).sum(), leaf, allow_unused=True)
    if gradient is None:
        return [0.0] * x.shape[1]
    mass = gradient.double().abs().transpose(0, 1).flatten(1).sum(dim=1).tolist()
    return [part if math.isfinite(part) else math.nan for part in mass]


class Suspects(TorchFunctionMode):
    """Watches a forward pass for the calls that usually let the future in."""

    def __init__(self, seq_len: int) -> None:
        super().__init__()
        self.seq_len = seq_len
        self.found: dict[str, None] = {}
        self.misaligned = ""
        self.normalises = False
        """Whether there is a softmax that a mask could be added to."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        look = getattr(self, f"on_{name.strip('_')}", None)
        if look is not None:
            look(args, kwargs)
        return func(*args, **kwargs)

    def _note(self, what: str) -> None:
        self.found[what] = None

    def _has_time(self, shape: Any) -> bool:
        return any(size == self.seq_len for size in shape)

    def on_group_norm(self, args: Any, kwargs: Any) -> None:
        if self._has_time(args[0].shape[2:]):
            self._note("group_norm takes its mean over time")

    def on_instance_norm(self, args: Any, kwargs: Any) -> None:
        if self._has_time(args[0].shape[2:]):
            self._note("instance_norm takes its mean over time")

    def on_layer_norm(self, args: Any, kwargs: Any) -> None:
        normalised = args[1] if len(args) > 1 else kwargs.get("normalized_shape", ())
        if len(args[0].shape) > 2 and self._has_time(normalised):
            self._note("layer_norm takes its mean over time")

    def on_batch_norm(self, args: Any, kwargs: Any) -> None:
        if _in_training(args, kwargs):
            self._note("batch_norm in train mode takes its mean over batch and time")

    def on_pad(self, args: Any, kwargs: Any) -> None:
        mode = args[2] if len(args) > 2 else kwargs.get("mode", "constant")
        if mode in ("reflect", "circular"):
            self._note(f"{mode} padding brings later steps before the first")

    def on_softmax(self, args: Any, kwargs: Any) -> None:
        self.normalises = True
        x = args[0]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        square = x.ndim >= 2 and x.shape[-1] == x.shape[-2] == self.seq_len
        if square and isinstance(dim, int) and dim % x.ndim == x.ndim - 2:
            self._note("softmax over the query axis: the sum runs over later queries")

    def on_scaled_dot_product_attention(self, args: Any, kwargs: Any) -> None:
        q, k = (args[i] if len(args) > i else kwargs[n] for i, n in ((0, "query"), (1, "key")))
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        causal = args[5] if len(args) > 5 else kwargs.get("is_causal", False)
        if causal and q.shape[-2] != k.shape[-2]:
            self.misaligned = (
                f"is_causal=True with {q.shape[-2]} queries and {k.shape[-2]} keys: the mask is "
                "aligned to the first key, not the last"
            )
        self.normalises = self.normalises or mask is not None
        if mask is None and not causal and q.shape[-2] > 1:
            self._note("scaled_dot_product_attention has no mask")

    def on_multi_head_attention_forward(self, args: Any, kwargs: Any) -> None:
        if kwargs.get("attn_mask") is None and not kwargs.get("is_causal", False):
            self._note("multi-head attention has no mask")

    def on_transformer_encoder_layer_fwd(self, args: Any, kwargs: Any) -> None:
        if len(args) > 18 and args[18] is None:
            self._note("the encoder layer has no mask")

    def on_lstm(self, args: Any, kwargs: Any) -> None:
        if len(args) > 7 and args[7] is True:
            self._note("a bidirectional recurrent layer")

    on_gru = on_rnn_tanh = on_rnn_relu = on_lstm
