"""Attention of families that spell or share their heads in ways of their own."""

from __future__ import annotations

from seqdiag.predict.kv_cache.fields import Fields
from seqdiag.predict.kv_cache.layout import Attention, CrossAttention, Layer
from seqdiag.predict.kv_cache.readers.attention import (
    KINDS,
    attention_kinds,
    hidden_per_head,
    layer_count,
    read_heads,
    read_mixed,
)
from seqdiag.predict.kv_cache.special import HiddenStates, PromptedAttention


def read_hidden(fields: Fields) -> tuple[Layer, ...]:
    """GPT-2 and its like: every query head has its own keys and values."""
    heads, head_dim = fields.integer("num_attention_heads"), hidden_per_head(fields)
    return (Layer((Attention(heads, head_dim, head_dim),)),) * layer_count(fields)


def read_gpt_bigcode(fields: Fields) -> tuple[Layer, ...]:
    """One key/value head if `multi_query`."""
    heads, head_dim = fields.integer("num_attention_heads"), hidden_per_head(fields)
    kv_heads = 1 if fields.flag("multi_query", default=True) else heads
    return (Layer((Attention(kv_heads, head_dim, head_dim),)),) * layer_count(fields)


def read_falcon(fields: Fields) -> tuple[Layer, ...]:
    """Falcon: one head if `multi_query`; the new architecture repeats its heads in the cache."""
    heads, head_dim = fields.integer("num_attention_heads"), hidden_per_head(fields)
    if fields.flag("new_decoder_architecture", default=False):
        kv_heads = fields.integer("num_kv_heads") if fields.has("num_kv_heads") else heads
        part = Attention(kv_heads, head_dim, head_dim, library_heads=heads)
    elif fields.flag("multi_query", default=True):
        part = Attention(1, head_dim, head_dim)
    else:
        part = Attention(heads, head_dim, head_dim)
    return (Layer((part,)),) * layer_count(fields)


def read_chatglm(fields: Fields) -> tuple[Layer, ...]:
    """ChatGLM: `multi_query_group_num` heads of `kv_channels` if `multi_query_attention`."""
    heads = fields.integer("num_attention_heads")
    if fields.has("num_key_value_heads"):
        kv_heads = fields.integer("num_key_value_heads")
    elif fields.flag("multi_query_attention", default=False):
        kv_heads = fields.integer("multi_query_group_num")
    else:
        kv_heads = heads
    name = fields.either("head_dim", "kv_channels")
    head_dim = fields.integer(name) if name else hidden_per_head(fields)
    layers = fields.layers(fields.either("num_hidden_layers", "num_layers") or "num_layers")
    return (Layer((Attention(kv_heads, head_dim, head_dim),)),) * layers


def read_nas(fields: Fields) -> tuple[Layer, ...]:
    """Nemotron-NAS (DeciLM): key/value heads layer by layer, none where attention is removed."""
    name = fields.given("head_dim")
    head_dim = fields.integer(name) if name else hidden_per_head(fields)
    listed = fields.given("kv_heads_per_layer", "num_key_value_heads_per_layer")
    if listed is not None:
        counts = fields.raw(listed)
    else:
        blocks = fields.raw("block_configs")
        if not isinstance(blocks, list):
            raise fields.inconsistent("has neither block_configs nor kv_heads_per_layer")
        heads = fields.integer("num_attention_heads")
        counts = [_nas_heads(fields, heads, block) for block in blocks]
    layers = layer_count(fields)
    if (
        not isinstance(counts, list)
        or len(counts) != layers
        or not all(type(n) is int and 0 <= n <= 2**20 for n in counts)
    ):
        raise fields.inconsistent(f"needs key/value heads for each of {layers} layers")
    return tuple(Layer((Attention(n, head_dim, head_dim),) if n else ()) for n in counts)


def _nas_heads(fields: Fields, heads: int, block: object) -> int:
    """`n_heads_in_group` counts query heads for each key/value head."""
    attention = block.get("attention") if isinstance(block, dict) else None
    if not isinstance(attention, dict):
        raise fields.inconsistent("a block of block_configs has no attention table")
    group = attention.get("n_heads_in_group")
    if attention.get("no_op") or attention.get("replace_with_linear") or group is None:
        return 0
    if type(group) is not int or group < 1 or heads % group:
        raise fields.inconsistent(f"n_heads_in_group = {group!r} does not divide {heads} heads")
    return heads // group


def read_gemma4(fields: Fields) -> tuple[Layer, ...]:
    """Gemma 4: full layers have their own head size; the last layers may share earlier caches."""
    full_dim = fields.integer("global_head_dim", default=512)
    layers = read_mixed(fields, None)
    full_heads = None
    # Configs that name global heads share keys with values there, unless they say otherwise.
    named = fields.has("num_global_key_value_heads")
    if named and fields.flag("attention_k_eq_v", default=True):
        full_heads = fields.integer("num_global_key_value_heads")
    sized = []
    for layer in layers:
        (part,) = layer.parts
        assert isinstance(part, Attention)
        if part.window is None:
            part = Attention(full_heads or part.kv_heads, full_dim, full_dim)
        sized.append(Layer((part,)))
    return _shared(fields, sized)


def read_sharing(fields: Fields) -> tuple[Layer, ...]:
    """Gemma 3n: the last `num_kv_shared_layers` layers reuse the cache of earlier ones."""
    return _shared(fields, list(read_mixed(fields, None)))


def _shared(fields: Fields, layers: list[Layer]) -> tuple[Layer, ...]:
    shared = (
        fields.integer("num_kv_shared_layers", minimum=0)
        if fields.known("num_kv_shared_layers")
        else 0
    )
    if shared >= len(layers):
        raise fields.inconsistent(f"num_kv_shared_layers {shared} leaves no layer of its own")
    kept = len(layers) - shared
    return tuple(layers[:kept]) + (Layer(()),) * shared


def read_gpt_neo(fields: Fields) -> tuple[Layer, ...]:
    """GPT-Neo: a local layer's mask is a window, but transformers keeps everything."""
    heads, head_dim = fields.integer("num_attention_heads"), hidden_per_head(fields)
    layers = layer_count(fields)
    types = fields.raw("attention_types")
    names: list[object] = []
    for entry in types if isinstance(types, list) else []:
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], list):
            raise fields.inconsistent("attention_types is no list of [kinds, count]")
        count = entry[1] if type(entry[1]) is int else 0
        names += entry[0] * min(count, layers)
    if len(names) != layers or not all(name in ("global", "local") for name in names):
        raise fields.inconsistent(f"attention_types does not name {layers} layers global or local")
    window = fields.integer("window_size", default=256)
    full = Layer((Attention(heads, head_dim, head_dim),))
    local = Layer((Attention(heads, head_dim, head_dim, window, trimmed=False),))
    return tuple(local if name == "local" else full for name in names)


def read_mimo_v2(fields: Fields) -> tuple[Layer, ...]:
    """MiMo-V2-Flash: window layers have their own heads, twice as many unless said."""
    kv_heads, head_dim = read_heads(fields)
    v_head_dim = fields.integer("v_head_dim")
    heads = fields.integer("swa_num_key_value_heads", default=2 * kv_heads)
    key = fields.integer("swa_head_dim", default=head_dim)
    value = fields.integer("swa_v_head_dim", default=v_head_dim)
    if fields.has("sliding_window_size"):
        window = fields.integer("sliding_window_size") + 1
    else:
        window = fields.integer("sliding_window")
    full = Layer((Attention(kv_heads, head_dim, v_head_dim),))
    local = Layer((Attention(heads, key, value, window),))
    layers = layer_count(fields)
    kinds = fields.layer_kinds(layers, KINDS)
    if kinds is None and fields.has("hybrid_layer_pattern"):
        pattern = fields.raw("hybrid_layer_pattern")
        if not isinstance(pattern, list) or len(pattern) != layers:
            raise fields.inconsistent(f"hybrid_layer_pattern does not list {layers} layers")
        kinds = ["sliding" if flag else "full" for flag in pattern]
    if kinds is None:
        raise fields.inconsistent("has neither layer_types nor hybrid_layer_pattern")
    return tuple(local if kind == "sliding" else full for kind in kinds)


def read_dbrx(fields: Fields) -> tuple[Layer, ...]:
    """DBRX keeps its key/value heads in a table of their own."""
    heads, width = fields.integer("n_heads"), fields.integer("d_model")
    inner = fields.raw("attn_config")
    kv_heads = heads
    if isinstance(inner, dict) and inner.get("kv_n_heads") is not None:
        kv_heads = Fields(inner, f"{fields.where}: attn_config").integer("kv_n_heads")
    head_dim = width // heads
    return (Layer((Attention(kv_heads, head_dim, head_dim),)),) * fields.layers("n_layers")


def read_jetmoe(fields: Fields) -> tuple[Layer, ...]:
    """JetMoE: `kv_channels` is the head size."""
    kv_heads, head_dim = fields.integer("num_key_value_heads"), fields.integer("kv_channels")
    return (Layer((Attention(kv_heads, head_dim, head_dim),)),) * layer_count(fields)


def read_last_full(fields: Fields) -> tuple[Layer, ...]:
    """Beam: a pattern of windows whose last layer is full whatever its turn."""

    def fallback(fields: Fields, layers: int) -> list[str]:
        return [*attention_kinds(fields, layers)[:-1], "full"]

    return read_mixed(fields, None, fallback)


def read_from_last(fields: Fields) -> tuple[Layer, ...]:
    """Muse: every fourth layer is full, counted from the last."""

    def fallback(fields: Fields, layers: int) -> list[str]:
        fields.assumed["layer_types"] = "full: the last, and every fourth before it"
        return ["sliding" if (layers - 1 - i) % 4 else "full" for i in range(layers)]

    return read_mixed(fields, None, fallback)


def read_flint(fields: Fields) -> tuple[Layer, ...]:
    """Flint: the first two layers, every fourth from the second, and the last are full."""

    def fallback(fields: Fields, layers: int) -> list[str]:
        fields.assumed["layer_types"] = "full: 0, 1, 5, 9 ... and the last"
        return [
            "full" if i < 2 or i % 4 == 1 or i == layers - 1 else "sliding" for i in range(layers)
        ]

    return read_mixed(fields, None, fallback)


def read_hrm(fields: Fields) -> tuple[Layer, ...]:
    """HRM: every pass through its two stacks keeps a cache of its own.

    A published config counts the layers of a stack; one that transformers saved counts passes too.
    """
    kv_heads, head_dim = read_heads(fields)
    if fields.has("num_layers_per_stack"):
        passes = layer_count(fields)
    else:
        cycles = fields.integer("H_cycles", default=2) * (fields.integer("L_cycles", default=3) + 1)
        passes = fields.within_layers("layers of all cycles", layer_count(fields) * cycles)
    return (Layer((Attention(kv_heads, head_dim, head_dim),)),) * passes


def read_dory(fields: Fields) -> tuple[Layer, ...]:
    """Dory: layers in the middle run several times, each time with a cache unless said.

    Published configs count attention and MLP blocks apart, and `layer_types` names both.
    """
    listed = fields.raw("layer_types")
    blocks = 2 if isinstance(listed, list) and "mlp" in listed else 1
    whole = read_mixed(fields, None)
    layers = tuple(layer for layer in whole if layer.parts) if blocks == 2 else whole
    if len(layers) * blocks != len(whole):
        raise fields.inconsistent("layer_types does not alternate attention and mlp")
    first = fields.integer("n_input_layers", default=8 * blocks) // blocks
    last = fields.integer("n_output_layers", default=8 * blocks) // blocks
    middle = layers[first : len(layers) - last]
    loops = fields.integer("n_recurrent_loops", default=2)
    kept = 1 if fields.text("recurrent_kv_cache_mode") == "last_loop" else loops
    fields.within_layers("layers of all loops", len(layers) + len(middle) * (kept - 1))
    return layers + middle * (kept - 1)


def read_cpmant(fields: Fields) -> tuple[Layer, ...]:
    """CPM-Ant: learned tokens before the text have keys and values too."""
    heads = fields.integer("num_attention_heads")
    prompt = fields.integer("prompt_length", default=32)
    part = PromptedAttention(heads, fields.integer("dim_head", default=128), prompt)
    return (Layer((part,)),) * layer_count(fields)


def read_xlnet(fields: Fields) -> tuple[Layer, ...]:
    """XLNet keeps the inputs of its layers, of `mem_len` tokens at most."""
    most = fields.integer("mem_len") if fields.known("mem_len") else None
    return (Layer((HiddenStates(fields.integer("d_model"), most),)),) * fields.layers("n_layer")


def read_mllama(fields: Fields) -> tuple[Layer, ...]:
    """Llama 3.2 Vision: some layers attend to the image alone, `--enc-len` tokens of it."""
    layers = layer_count(fields)
    kv_heads, head_dim = read_heads(fields)
    image = fields.enc_len
    if image is None:
        image = 6404
        fields.assumed["image tokens"] = "6404 (4 tiles of 1601)"
    listed = (
        fields.integers("cross_attention_layers", minimum=0)
        if fields.has("cross_attention_layers")
        else (3, 8, 13, 18, 23, 28, 33, 38)
    )
    own = Layer((Attention(kv_heads, head_dim, head_dim),))
    cross = Layer((CrossAttention(kv_heads, head_dim, image),))
    return tuple(cross if i in listed else own for i in range(layers))
