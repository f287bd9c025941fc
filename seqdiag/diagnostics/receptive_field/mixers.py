"""The structures of the built-in layers and stacks."""

from __future__ import annotations

from torch import nn

from seqdiag.models.attention import Attention
from seqdiag.models.block import Block
from seqdiag.models.conv import BaseConv, CausalConv, Chained, ReLU, TcnLevel, WaveNet
from seqdiag.models.mixer import Mixer, Stateless
from seqdiag.models.stack import Stack
from seqdiag.predict.receptive_field import Chain, Conv, Parallel, Past, Structure, window


def mixer_structure(mixer: nn.Module) -> Structure:
    """Returns the structure of a built-in layer; whatever is none of the others recurs."""
    if isinstance(mixer, CausalConv):
        return _causal(mixer)
    if isinstance(mixer, BaseConv):
        return Parallel((_causal(mixer.conv), Conv()))
    if isinstance(mixer, TcnLevel):
        return Parallel((Conv(), Chain((_causal(mixer.first), _causal(mixer.second)))))
    if isinstance(mixer, WaveNet):
        return _wavenet(mixer)
    if isinstance(mixer, Attention):
        return Past("attention") if mixer.window is None else window(mixer.window)
    if isinstance(mixer, Chained):
        return Chain(tuple(mixer_structure(layer) for layer in mixer.layers))
    if isinstance(mixer, Block):
        return Parallel((Conv(), mixer_structure(mixer.mixer)))
    if isinstance(mixer, Stack):
        return Chain(tuple(mixer_structure(block) for block in mixer.blocks))
    if isinstance(mixer, Stateless | ReLU):
        return Conv()
    assert isinstance(mixer, Mixer)
    return Past("recurrent")


def _causal(conv: CausalConv) -> Structure:
    return Conv(conv.conv.kernel_size[0], dilation=conv.dilation, left=conv.reach)


def _wavenet(net: WaveNet) -> Structure:
    """Returns the union over levels: each adds its own output to the skips."""
    paths: list[Structure] = []
    before: list[Structure] = []
    for conv in net.convs:
        assert isinstance(conv, CausalConv)
        paths.append(Chain((*before, _causal(conv))))
        before.append(Parallel((Conv(), _causal(conv))))
    return Parallel(tuple(paths))
