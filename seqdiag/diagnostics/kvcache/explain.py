"""`--explain`: where the bytes come from."""

from __future__ import annotations

from collections.abc import Sequence

from seqdiag.diagnostics.kvcache.subject import Subject


def explain(subjects: Sequence[Subject], tokens: int) -> list[str]:
    """Returns the formula with the numbers put in, equal layers grouped."""
    lines = []
    for subject in subjects:
        layout, dtypes = subject.layout, subject.dtypes
        if subject.unsupported:
            lines.append(f"{layout.name}: {subject.unsupported}")
            continue
        lines.append(f"{layout.name}, {tokens} tokens, batch {subject.batch} ({layout.source}):")
        for layer in dict.fromkeys(layout.layers):
            count = layout.layers.count(layer)
            for part in layer.parts:
                size = subject.allocate(tokens, [part]).total_bytes
                kept = subject.tensors(part, tokens)
                shapes = " + ".join("x".join(map(str, tensor.shape)) for tensor in kept)
                names = "/".join(
                    dict.fromkeys(
                        "bytes" if tensor.role == "pad" else dtypes.of(tensor.role)
                        for tensor in kept
                    )
                )
                lines.append(
                    f"  {count} x {part.kind}: {part.formula(tokens)}; held {shapes} {names} = "
                    f"{size} B each, {count * size} B"
                )
        lines.append(f"  total = {subject.total(tokens)} B")
        if layout.fields:
            fields = ", ".join(f"{name} = {value}" for name, value in layout.fields.items())
            lines.append(f"  read: {fields}")
        if subject.assumptions:
            lines.append(f"  {subject.assumptions}")
        lines.append(f"  conventions: {subject.engine.conventions}")
    return lines
