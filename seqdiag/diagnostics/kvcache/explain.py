"""`--explain`: where the bytes come from."""

from __future__ import annotations

from collections.abc import Sequence

from seqdiag.diagnostics.kvcache.subject import Subject


def explain(subjects: Sequence[Subject], tokens: int) -> list[str]:
    """Returns the formula with the numbers put in, equal layers grouped."""
    lines = []
    for subject in subjects:
        layout, dtypes = subject.layout, subject.dtypes
        lines.append(f"{layout.name}, {tokens} tokens, batch {subject.batch} ({layout.source}):")
        for layer in dict.fromkeys(layout.layers):
            count = layout.layers.count(layer)
            for part in layer.parts:
                role = part.tensors(tokens)[0].role
                size = subject.allocate(tokens, [part]).total_bytes
                lines.append(
                    f"  {count} x {part.kind}: {part.formula(tokens)} x {dtypes.itemsize(role)} B "
                    f"({dtypes.of(role)}) x batch {subject.batch} = {size} B each, {count * size} B"
                )
        lines.append(f"  total = {subject.total(tokens)} B")
        fields = ", ".join(f"{name} = {value}" for name, value in layout.fields.items())
        lines.append(f"  read: {fields}")
        if layout.assumed:
            lines.append(f"  {subject.assumptions}")
    lines.append(
        "Conventions: a window of W counts the current token; a convolution of kernel K keeps "
        "K-1 columns; a latent is kept once for all heads."
    )
    return lines
