"""A chain of convolutions described by numbers: its structure, without torch."""

from __future__ import annotations

from seqdiag.diagnostics.receptive_field.spec import ReceptiveFieldSpec
from seqdiag.predict.receptive_field import Chain, Conv, causal_padding


def inline_structure(spec: ReceptiveFieldSpec) -> Chain:
    """Returns the chain of `--kernel`, `--dilations` and `--strides`."""
    layers = []
    for kernel, dilation, stride in spec.convolutions():
        reach = (kernel - 1) * dilation
        if spec.padding == "causal":
            left, right = causal_padding(kernel, dilation, stride), 0
        elif spec.padding == "same":
            left, right = reach // 2, reach - reach // 2
        else:
            left = right = 0
        layers.append(Conv(kernel, stride, dilation, left, right))
    return Chain(tuple(layers))


def inline_name(spec: ReceptiveFieldSpec) -> str:
    """Returns a short name such as `conv k=2 d=1,2,4,8`."""
    convolutions = spec.convolutions()
    words = ["conv"]
    for letter, numbers in zip("kds", zip(*convolutions, strict=True), strict=True):
        same = len(set(numbers)) == 1
        shown = str(numbers[0]) if same else ",".join(map(str, numbers[:8]))
        if len(numbers) > 8 and not same:
            shown += ",..."
        if letter == "k" or numbers != (1,) * len(numbers):
            words.append(f"{letter}={shown}")
    if len(set(convolutions)) == 1:
        words.append(f"x{len(convolutions)}")
    return " ".join(words)
