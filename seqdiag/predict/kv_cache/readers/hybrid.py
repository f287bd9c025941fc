"""Models that mix attention with a recurrent state, between layers or inside one."""

from __future__ import annotations

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Attention, ConvState, Layer, Part
from seqdiag.predict.kv_cache.readers.attention import (
    KINDS,
    hidden_per_head,
    layer_count,
    read_heads,
    read_mixed,
)
from seqdiag.predict.kv_cache.readers.mamba import check_heads, mamba2_parts, mamba_parts


def read_jamba(fields: Fields) -> tuple[Layer, ...]:
    """Jamba (arXiv 2403.19887): layer i is attention where i % period == offset, else Mamba."""

    def parts() -> tuple[Part, ...]:
        d_inner = int(fields.number("mamba_expand", default=2) * fields.integer("hidden_size"))
        return mamba_parts(
            d_inner,
            fields.integer("mamba_d_state", default=16),
            fields.integer("mamba_d_conv", default=4),
        )

    return read_mixed(fields, parts, _periodic)


def _periodic(fields: Fields, layers: int) -> list[str]:
    period = fields.integer("attn_layer_period", default=8)
    offset = fields.integer("attn_layer_offset", default=4, minimum=0)
    if offset >= period:
        raise fields.inconsistent(
            f"attn_layer_offset {offset} is not below attn_layer_period {period}"
        )
    return ["full" if i % period == offset else "linear" for i in range(layers)]


def _mamba2(fields: Fields, groups: int = 1) -> tuple[Part, ...]:
    """Mamba-2 as Bamba, Granite and Falcon-H1 spell it; `mamba_d_ssm` wins over expand."""
    if fields.has("mamba_d_ssm"):
        d_inner = fields.integer("mamba_d_ssm")
    else:
        d_inner = int(fields.number("mamba_expand", default=2) * fields.integer("hidden_size"))
    heads = fields.integer("mamba_n_heads", default=128)
    if fields.has("mamba_d_head") and not fields.is_auto("mamba_d_head"):
        head_dim = fields.integer("mamba_d_head")
    else:
        head_dim = d_inner // heads
    check_heads(fields, heads, head_dim, d_inner)
    return mamba2_parts(
        heads,
        head_dim,
        fields.integer("mamba_d_state", default=256),
        fields.integer("mamba_n_groups", default=groups),
        fields.integer("mamba_d_conv", default=4),
        d_inner,
    )


def read_bamba(fields: Fields) -> tuple[Layer, ...]:
    """Bamba and Granite 4: Mamba-2 but for the layers listed."""

    def fallback(fields: Fields, layers: int) -> list[str]:
        listed: tuple[int, ...] = ()
        if fields.has("attn_layer_indices"):
            listed = fields.integers("attn_layer_indices", minimum=0)
        if listed and max(listed) >= layers:
            raise fields.inconsistent(f"attn_layer_indices names layer {max(listed)} of {layers}")
        return ["full" if i in listed else "linear" for i in range(layers)]

    return read_mixed(fields, lambda: _mamba2(fields), fallback)


def read_falcon_h1(fields: Fields) -> tuple[Layer, ...]:
    """Falcon-H1 (arXiv 2507.22448): attention and Mamba-2 side by side in every layer."""
    kv_heads, head_dim = read_heads(fields)
    layer = Layer((Attention(kv_heads, head_dim, head_dim), *_mamba2(fields)))
    return (layer,) * layer_count(fields)


_PATTERN = {"M": "linear", "*": "full", "-": "none", "E": "none"}


def read_nemotron_h(fields: Fields) -> tuple[Layer, ...]:
    """Nemotron-H (arXiv 2504.03624): a letter a layer, M Mamba-2, * attention, - MLP, E MoE."""
    pattern = fields.text("hybrid_override_pattern")
    if pattern is not None:
        if not pattern or not set(pattern) <= set(_PATTERN):
            raise fields.inconsistent(f"hybrid_override_pattern has letters beyond {_PATTERN}")
        kinds = [_PATTERN[letter] for letter in pattern]
        if fields.has("num_hidden_layers") and len(kinds) != fields.integer("num_hidden_layers"):
            raise fields.inconsistent(
                f"hybrid_override_pattern has {len(kinds)} letters, num_hidden_layers is "
                f"{fields.integer('num_hidden_layers')}"
            )
    else:
        given = fields.layer_kinds(layer_count(fields), KINDS)
        if given is None:
            raise fields.inconsistent("has neither hybrid_override_pattern nor layers_block_type")
        kinds = given
    kv_heads, head_dim = read_heads(fields)
    if fields.has("attention_head_dim"):  # as the first of these models spell it
        head_dim = fields.integer("attention_head_dim")
        fields.assumed.pop("head_dim", None)
    heads, mamba_dim = fields.integer("mamba_num_heads"), fields.integer("mamba_head_dim")
    mamba = mamba2_parts(
        heads,
        mamba_dim,
        fields.integer("ssm_state_size"),
        fields.integer("n_groups"),
        fields.integer("conv_kernel"),
        heads * mamba_dim,
    )
    by_kind = {
        "linear": Layer(mamba),
        "full": Layer((Attention(kv_heads, head_dim, head_dim),)),
        "none": Layer(()),
    }
    return tuple(by_kind[kind] for kind in kinds)


def read_zamba(fields: Fields) -> tuple[Layer, ...]:
    """Zamba (arXiv 2405.16712): Mamba everywhere; the shared attention has its own cache a use."""
    d_inner = int(fields.number("mamba_expand", default=2) * fields.integer("hidden_size"))
    mamba = mamba_parts(
        d_inner,
        fields.integer("mamba_d_state", default=16),
        fields.integer("mamba_d_conv", default=4),
    )
    return _zamba_layers(fields, mamba)


def read_zamba2(fields: Fields) -> tuple[Layer, ...]:
    """Zamba2 (arXiv 2411.15242): Mamba-2 everywhere, attention as in Zamba."""
    d_inner = int(fields.number("mamba_expand", default=2) * fields.integer("hidden_size"))
    heads = fields.integer("n_mamba_heads", default=8)
    head_dim = d_inner // heads
    if fields.has("mamba_headdim"):
        head_dim = fields.integer("mamba_headdim")
    check_heads(fields, heads, head_dim, d_inner)
    mamba = mamba2_parts(
        heads,
        head_dim,
        fields.integer("mamba_d_state", default=64),
        fields.integer("mamba_ngroups", default=1),
        fields.integer("mamba_d_conv", default=4),
        d_inner,
    )
    return _zamba_layers(fields, mamba)


def _zamba_layers(fields: Fields, mamba: tuple[Part, ...]) -> tuple[Layer, ...]:
    layers = layer_count(fields)
    kv_heads = fields.integer(fields.given("num_key_value_heads") or "num_attention_heads")
    name = fields.given("attention_head_dim")
    # The attention reads the layer's input beside the embedding: twice the width.
    head_dim = fields.integer(name) if name else 2 * hidden_per_head(fields)
    kinds = fields.layer_kinds(layers, KINDS)
    if kinds is None:
        if fields.has("hybrid_layer_ids"):
            listed = set(fields.integers("hybrid_layer_ids", minimum=0))
            kinds = ["hybrid" if i in listed else "linear" for i in range(layers)]
        else:
            kinds = ["hybrid" if k == "full" else k for k in _periodic(fields, layers)]
    both = Layer((Attention(kv_heads, head_dim, head_dim), *mamba))
    return tuple(both if kind == "hybrid" else Layer(mamba) for kind in kinds)


_TURNS = {"S": "sliding", "F": "full", "L": "linear"}


def read_lfm2(fields: Fields) -> tuple[Layer, ...]:
    """LFM2: a gated short convolution, attention at the layers listed."""

    def parts() -> tuple[Part, ...]:
        columns = fields.integer("conv_L_cache") - 1
        return (ConvState(fields.integer("hidden_size"), columns),)

    def fallback(fields: Fields, layers: int) -> list[str]:
        turns = fields.class_defaults.get("turns")
        if isinstance(turns, str) and not fields.has("full_attn_idxs"):
            fields.assumed["layer_types"] = "a window, two convolutions and full attention by turns"
            return ["linear", *(_TURNS[turns[i % len(turns)]] for i in range(1, layers))]
        listed = fields.integers("full_attn_idxs", minimum=0)
        return ["full" if i in listed else "linear" for i in range(layers)]

    return read_mixed(fields, parts, fallback)


def read_zaya(fields: Fields) -> tuple[Layer, ...]:
    """ZAYA: attention whose queries and keys pass two short convolutions, in every layer."""
    kv_heads, head_dim = read_heads(fields)
    layers = layer_count(fields)
    kinds = fields.layer_kinds(layers, _ZAYA) or ["full"] * layers
    window = fields.integer("sliding_window") if "sliding" in kinds else None
    columns = fields.integer("cca_time0", default=2) + fields.integer("cca_time1", default=2) - 2
    if columns < 1 or kv_heads * head_dim % 2:
        raise fields.inconsistent("cca_time0, cca_time1 and num_key_value_heads keep no state")
    channels = (fields.integer("num_attention_heads") + kv_heads) * head_dim
    states = (
        ConvState(channels, columns, exact=True),
        # Half of the values come from the token before.
        ConvState(kv_heads * head_dim // 2, 1, exact=True, shift=True),
    )
    by_kind = {
        "full": Layer((Attention(kv_heads, head_dim, head_dim), *states)),
        "sliding": Layer((Attention(kv_heads, head_dim, head_dim, window), *states)),
    }
    return tuple(by_kind[kind] for kind in kinds)


_ZAYA = {"hybrid": "full", "hybrid_sliding": "sliding"}


def read_inkling(fields: Fields) -> tuple[Layer, ...]:
    """Inkling: every layer convolves keys, values and both of its outputs, in float32."""
    layers = layer_count(fields)
    kinds = fields.layer_kinds(layers, _ZAYA)
    if kinds is None and fields.has("local_layer_ids"):
        local = fields.integers("local_layer_ids", minimum=0)
        kinds = ["sliding" if i in local else "full" for i in range(layers)]
    if kinds is None:
        fields.assumed["layer_types"] = "a window but for every sixth layer"
        kinds = ["sliding" if (i + 1) % 6 else "full" for i in range(layers)]
    window = fields.integer(fields.given("sliding_window_size") or "sliding_window_size")
    columns = fields.integer("conv_kernel_size", default=4) - 1
    hidden = fields.integer("hidden_size")

    def layer(heads: int, dim: int, window: int | None) -> Layer:
        channels = 2 * heads * dim + 2 * hidden
        return Layer((Attention(heads, dim, dim, window), ConvState(channels, columns, wide=True)))

    by_kind = {
        "full": layer(*read_heads(fields), None),
        "sliding": layer(
            fields.integer("swa_num_key_value_heads"), fields.integer("swa_head_dim"), window
        ),
    }
    return tuple(by_kind[kind] for kind in kinds)


def read_inkling_loop(fields: Fields) -> tuple[Layer, ...]:
    """Inkling 2 Loop: layers in the middle run several times, each time with a cache."""
    layers = read_inkling(fields)
    inner, names = fields, ("loop_layer_index_start", "loop_layer_index_end", "loop_num_passes")
    published = fields.raw("loop_config")
    if isinstance(published, dict):
        inner = Fields(published, f"{fields.where}: loop_config")
        names = ("core_start", "core_end", "num_passes")
    first, last, passes = (
        inner.integer(name, default=default)
        for name, default in zip(names, (6, 18, 3), strict=True)
    )
    if not first < last <= len(layers):
        raise fields.inconsistent(f"the loop from {first} to {last} is not within the layers")
    fields.within_layers("layers of all passes", len(layers) + (last - first) * (passes - 1))
    return layers + layers[first:last] * (passes - 1)
