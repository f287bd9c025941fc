"""Modules with a known answer: causal ones that look wrong, and leaks that look right."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    """One head, (B, T, D) to (B, T, D), masked in the way asked for."""

    def __init__(self, mask: str = "causal", width: int = 8, sharpness: float = 1.0) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.mask, self.sharpness = mask, sharpness

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        length = x.shape[1]
        diagonal = {"off by one": 2}.get(self.mask, 1)
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(diagonal)
        if self.mask in ("additive", "additive, unit"):
            if self.mask == "additive, unit":  # logits between -1 and 1, whatever the input
                q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            scores = self.sharpness * (q @ k.transpose(1, 2)) - 1e4 * hidden
            return scores.softmax(-1) @ v
        scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        if self.mask == "none":
            scores = q @ k.transpose(1, 2)
        if self.mask == "times zero":  # a mask that is multiplied away
            scores = q @ k.transpose(1, 2) + 0.0 * hidden
        axis = -2 if self.mask == "wrong axis" else -1
        return scores.softmax(axis) @ v


class OnTheLeft(nn.Module):
    """A causal convolution (B, T, D) to (B, T, D), padded on the left as asked for."""

    def __init__(self, kernel: int = 3, width: int = 4, mode: str = "constant") -> None:
        super().__init__()
        self.conv, self.mode = nn.Conv1d(width, width, kernel), mode

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x.transpose(1, 2), (self.conv.kernel_size[0] - 1, 0), mode=self.mode)
        return self.conv(padded).transpose(1, 2)


class Normalised(nn.Module):
    """A causal convolution, then a norm over (B, D, T)."""

    def __init__(self, norm: nn.Module, kernel: int = 3, width: int = 4) -> None:
        super().__init__()
        self.conv, self.norm = OnTheLeft(kernel, width), norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x).transpose(1, 2)).transpose(1, 2)


class DetachedNorm(nn.Module):
    """Divides by a statistic over all of time that has no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (1 + x.detach().std(dim=1, keepdim=True))


class HardCode(nn.Module):
    """Chooses one of two codes by the sign of the mean over time: no gradient at all."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (x.mean(dim=1, keepdim=True) > 0).to(x)


class FftConv(nn.Module):
    """A convolution by FFT; without zero padding it wraps around."""

    def __init__(self, padded: bool, length: int = 512, width: int = 4) -> None:
        super().__init__()
        self.padded = padded
        self.kernel = nn.Parameter(torch.randn(length, width))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        size = 2 * length if self.padded else length
        kernel = torch.fft.rfft(self.kernel[:length], n=size, dim=0)
        return torch.fft.irfft(torch.fft.rfft(x, n=size, dim=1) * kernel, n=size, dim=1)[:, :length]


class BlockMeans(nn.Module):
    """Adds the mean of its block of 8 to each step."""

    def forward(self, x: Tensor) -> Tensor:
        blocks = x.unflatten(1, (-1, 8))
        return x + blocks.mean(dim=2, keepdim=True).expand_as(blocks).flatten(1, 2)


class Bidirectional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(4, 4, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.core(x)[0]


class PrefixTokens(nn.Module):
    """is_causal=True with more keys than queries: the mask starts at the first key."""

    def __init__(self, width: int = 8, prefix: int = 3) -> None:
        super().__init__()
        self.prefix = nn.Parameter(torch.randn(prefix, width))

    def forward(self, x: Tensor) -> Tensor:
        keys = torch.cat([self.prefix.expand(x.shape[0], -1, -1), x], dim=1).unsqueeze(1)
        q = x.unsqueeze(1)
        return F.scaled_dot_product_attention(q, keys, keys, is_causal=True).squeeze(1)


class Chomp(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : -self.steps].contiguous()


class TemporalBlock(nn.Module):
    """Two convolutions that are padded on both sides and chomped, around them the residual."""

    def __init__(self, before: int, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        padding = (kernel - 1) * dilation
        layers: list[nn.Module] = []
        for channels in (before, width):
            conv = nn.Conv1d(channels, width, kernel, padding=padding, dilation=dilation)
            weighted = nn.utils.parametrizations.weight_norm(conv)
            layers += [weighted, Chomp(padding), nn.ReLU(), nn.Dropout(0.2)]
        self.net = nn.Sequential(*layers)
        self.downsample = nn.Conv1d(before, width, 1) if before != width else None

    def forward(self, x: Tensor) -> Tensor:
        residual = x if self.downsample is None else self.downsample(x)
        return F.relu(self.net(x) + residual)


def temporal_net(kernel: int, dilations: list[int], stacks: int = 1, width: int = 2) -> nn.Module:
    """(B, D, T) to (B, D, T)."""
    levels = dilations * stacks
    return nn.Sequential(
        *(TemporalBlock(2 if i == 0 else width, width, kernel, d) for i, d in enumerate(levels))
    )


class Branches(nn.Module):
    """Kernels of 7 and 3 side by side, (B, D, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv1d(4, 4, 7, padding=3)
        self.narrow = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x) + self.narrow(x)


class WholeMean(nn.Module):
    """A convolution scaled by an adaptive pool over all of time, (B, D, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool1d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) * torch.sigmoid(self.pool(x))


class PooledInside(nn.Module):
    """A functional max pool between two convolutions, (B, D, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool1d(F.relu(self.conv(x)), 2, stride=1)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class LearnedPositions(nn.Module):
    def __init__(self, most: int = 48) -> None:
        super().__init__()
        self.positions = nn.Embedding(most, 8)
        self.conv = OnTheLeft(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x + self.positions(torch.arange(x.shape[1])))


CAUSAL: dict[str, Callable[[], nn.Module]] = {
    "causal attention": SelfAttention,
    "layer norm of each token": lambda: nn.Sequential(OnTheLeft(), nn.LayerNorm(4)),
    "additive mask, unit logits": lambda: SelfAttention("additive, unit"),
    "fft, zero padded": lambda: FftConv(padded=True),
    "batch norm in eval mode": lambda: Normalised(nn.BatchNorm1d(4)),
}
LEAKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "mask includes t + 1": (lambda: SelfAttention("off by one"), 1),
    "additive mask, large logits": (lambda: SelfAttention("additive", sharpness=1e5), 23),
    "additive mask, large inputs": (lambda: SelfAttention("additive"), 23),
    "softmax over the query axis": (lambda: SelfAttention("wrong axis"), 23),
    "mask times zero": (lambda: SelfAttention("times zero"), 23),
    "no mask": (lambda: SelfAttention("none"), 23),
    "group norm": (lambda: Normalised(nn.GroupNorm(1, 4)), 23),
    "instance norm": (lambda: Normalised(nn.InstanceNorm1d(4)), 23),
    "bidirectional": (Bidirectional, 23),
    "same padding": (lambda: Transposed(nn.Conv1d(4, 4, 3, padding=1)), 1),
    "circular fft": (lambda: FftConv(padded=False), 23),
    "detached statistics": (DetachedNorm, 23),
    "hard code of a mean": (HardCode, 23),
    "block means": (BlockMeans, 7),
    "reflect padding": (lambda: OnTheLeft(mode="reflect"), 2),
}


class Transposed(nn.Module):
    """A module of (B, D, T) for (B, T, D)."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Tensor) -> Tensor:
        return self.core(x.transpose(1, 2)).transpose(1, 2)
