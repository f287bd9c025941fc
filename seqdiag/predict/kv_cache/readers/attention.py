"""Keys and values of full and sliding-window attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Attention, Layer

_KINDS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class ClassDefaults:
    """What the model class puts where the config has no such field; None: heads, hidden/heads."""

    kv_heads: int | None = None
    head_dim: int | None = None
    window: int | None = None


def read_heads(fields: Fields, defaults: ClassDefaults) -> tuple[int, int]:
    """Returns kv heads and head_dim.

    A null `num_key_value_heads` means as many as query heads, a null `head_dim` hidden / heads.
    """
    if fields.absent("num_key_value_heads") and defaults.kv_heads is not None:
        kv_heads = fields.integer("num_key_value_heads", default=defaults.kv_heads)
    elif fields.has("num_key_value_heads"):
        kv_heads = fields.integer("num_key_value_heads")
    else:
        kv_heads = fields.integer("num_attention_heads")
    if fields.absent("head_dim") and defaults.head_dim is not None:
        head_dim = fields.integer("head_dim", default=defaults.head_dim)
    elif fields.has("head_dim"):
        head_dim = fields.integer("head_dim")
    else:
        heads = fields.integer("num_attention_heads")
        hidden = fields.integer("hidden_size", minimum=heads)
        if hidden % heads:
            raise fields.inconsistent(
                f"hidden_size {hidden} is no multiple of num_attention_heads {heads}, and there is "
                "no head_dim"
            )
        head_dim = hidden // heads
    if fields.has("num_attention_heads"):
        heads = fields.integer("num_attention_heads")
        if heads % kv_heads:
            raise fields.inconsistent(
                f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
            )
    return kv_heads, head_dim


def _read(
    fields: Fields, defaults: ClassDefaults, slides: Callable[[Fields, int], bool]
) -> tuple[Layer, ...]:
    """Returns one attention part a layer; `slides(fields, i)` says whether layer i has a window."""
    layers = fields.integer("num_hidden_layers")
    kv_heads, head_dim = read_heads(fields, defaults)
    kinds = fields.layer_kinds(layers, _KINDS)
    if kinds is not None:
        sliding = [kind == "sliding_attention" for kind in kinds]
    else:
        sliding = [slides(fields, i) for i in range(layers)]
    window = _window(fields, defaults) if any(sliding) else None
    return tuple(
        Layer((Attention(kv_heads, head_dim, head_dim, window if slide else None),))
        for slide in sliding
    )


def _window(fields: Fields, defaults: ClassDefaults) -> int | None:
    """Returns the window, None where the config says null: all layers are full then."""
    if fields.absent("sliding_window"):
        if defaults.window is None:
            return None
        return fields.integer("sliding_window", default=defaults.window)
    return fields.integer("sliding_window") if fields.has("sliding_window") else None


def _never(fields: Fields, layer: int) -> bool:
    return False


def _always(fields: Fields, layer: int) -> bool:
    return True


def _after_full_layers(fields: Fields, layer: int) -> bool:
    """Qwen2, Qwen3: the window counts only if switched on, from `max_window_layers` on."""
    if not fields.flag("use_sliding_window", default=False):
        return False
    return layer >= fields.integer("max_window_layers", default=28, minimum=0)


def _if_switched_on(fields: Fields, layer: int) -> bool:
    return fields.flag("use_sliding_window", default=False)


def _all_but_every(period: int) -> Callable[[Fields, int], bool]:
    """Every `period`-th layer is full, unless the config gives another period."""

    def slides(fields: Fields, layer: int) -> bool:
        every = fields.integer("sliding_window_pattern", default=period)
        return (layer + 1) % every != 0

    return slides


def read_full(fields: Fields) -> tuple[Layer, ...]:
    """Llama: every layer sees everything."""
    return _read(fields, ClassDefaults(), _never)


def read_mistral(fields: Fields) -> tuple[Layer, ...]:
    return _read(fields, ClassDefaults(kv_heads=8, window=4096), _always)


def read_mixtral(fields: Fields) -> tuple[Layer, ...]:
    return _read(fields, ClassDefaults(kv_heads=8), _always)


def read_phi3(fields: Fields) -> tuple[Layer, ...]:
    return _read(fields, ClassDefaults(), _always)


def read_qwen2(fields: Fields) -> tuple[Layer, ...]:
    return _read(fields, ClassDefaults(kv_heads=32, window=4096), _after_full_layers)


def read_qwen3(fields: Fields) -> tuple[Layer, ...]:
    return _read(fields, ClassDefaults(kv_heads=32, head_dim=128, window=4096), _after_full_layers)


def read_qwen3_moe(fields: Fields) -> tuple[Layer, ...]:
    return _read(fields, ClassDefaults(kv_heads=4, window=4096), _if_switched_on)


def read_gemma2(fields: Fields) -> tuple[Layer, ...]:
    return _read(fields, ClassDefaults(kv_heads=4, head_dim=256, window=4096), _all_but_every(2))


def read_gemma3(fields: Fields) -> tuple[Layer, ...]:
    return _read(fields, ClassDefaults(kv_heads=4, head_dim=256, window=4096), _all_but_every(6))


def read_gpt_oss(fields: Fields) -> tuple[Layer, ...]:
    return _read(fields, ClassDefaults(kv_heads=8, head_dim=64, window=128), _all_but_every(2))
