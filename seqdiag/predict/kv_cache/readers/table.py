"""Which function reads which model type. A new type is a word here.

Sizes were compared with the cache tensors of tiny models in transformers 5.24, where it has them.
"""

from __future__ import annotations

_TYPES = {
    "attention:read": (
        "afmoe apertus apertus1p5_text arcee aria_text bitnet chameleon cohere cohere2 "
        "cohere2_moe cohere_compass_text cosmos3_edge_text cwm diffllama doge dots1 "
        "emu3_text_model ernie4_5 ernie4_5_moe ernie4_5_vl_moe_text exaone exaone4 exaone_moe "
        "flex_olmo gemma gemma2 gemma3_text glm glm4 glm4_moe glm4v_moe_text glm4v_text "
        "glm_ocr_text gpt_oss granite granite4_vision_text granite_docling_text granite_swa "
        "granitemoe granitemoe_swa granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe "
        "hunyuan_vl_text hy_v3 hyperclovax internlm3 iquestcoder jais2 kolibri1 "
        "kyutai_speech_to_text laguna llama llama4_text mellum minimax_m2 ministral ministral3 "
        "mistral mixtral modernbert-decoder molmo2_text moshi nanochat nemotron olmo olmo2 "
        "olmo3 olmoe paddleocr_vl_text persimmon phi phi3 phi4_multimodal phimoe qwen2 "
        "qwen2_5_omni_text qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text qwen3 "
        "qwen3_moe qwen3_omni_moe_text qwen3_vl_moe_text qwen3_vl_text sarvam_moe seed_oss "
        "smollm3 solar_open stablelm starcoder2 trocr vaultgemma"
    ),
    "encoder_decoder:read_bart": (
        "bart bigbird_pegasus blenderbot blenderbot-small fsmt led m2m_100 marian mbart mvp "
        "nllb-moe pegasus pegasus_x plbart seamless_m4t seamless_m4t_v2 speech_to_text speecht5 "
        "whisper"
    ),
    "encoder_decoder:read_moonshine": "moonshine",
    "encoder_decoder:read_nested": "t5gemma t5gemma2",
    "encoder_decoder:read_prophetnet": "prophetnet",
    "encoder_decoder:read_t5": "longt5 mt5 pop2piano switch_transformers t5 udop umt5",
    "hybrid:read_bamba": "bamba granitemoehybrid",
    "hybrid:read_falcon_h1": "falcon_h1",
    "hybrid:read_inkling": "inkling2_text inkling_text",
    "hybrid:read_inkling_loop": "inkling2_loop_text",
    "hybrid:read_jamba": "jamba",
    "hybrid:read_lfm2": "lfm2 lfm2_moe lfm3",
    "hybrid:read_nemotron_h": "nemotron_h",
    "hybrid:read_zamba": "zamba",
    "hybrid:read_zamba2": "zamba2",
    "hybrid:read_zaya": "zaya",
    "latent:read": (
        "axk1 deepseek_v2 deepseek_v3 glm4_moe_lite kimi_k2 minicpm3 mistral4 sarvam_mla youtu"
    ),
    "latent:read_indexed": "axk2 deepseek_v32 glm_moe_dsa",
    "latent:read_twice": "longcat_flash",
    "linear:read_delta_net": "lara_mini olmo_hybrid qwen3_5_moe_text qwen3_5_text qwen3_next",
    "linear:read_kimi_linear": "bailing_hybrid kimi_linear",
    "linear:read_minimax": "minimax",
    "mamba:read_mamba": "falcon_mamba mamba",
    "mamba:read_mamba2": "mamba2",
    "recurrent:read_recurrent_gemma": "recurrent_gemma",
    "recurrent:read_rwkv": "rwkv",
    "recurrent:read_rwkv7": "rwkv5 rwkv6 rwkv7",
    "recurrent:read_xlstm": "xlstm",
    "sparse:read_deepseek_v4": "deepseek_v4",
    "sparse:read_dots3": "dots3_note_text",
    "sparse:read_glm5_next": "glm5_next_text",
    "sparse:read_hy_v4": "hy_v4 hy_v4_vl_text",
    "sparse:read_minimax_m3": "minimax_m3_vl_text",
    "sparse:read_mistral_large4": "mistral_large4_text",
    "sparse:read_qwen4": "qwen4_exp_text",
    "variants:read_chatglm": "chatglm",
    "variants:read_cpmant": "cpmant",
    "variants:read_dbrx": "dbrx",
    "variants:read_dory": "dory",
    "variants:read_falcon": "falcon",
    "variants:read_flint": "flint",
    "variants:read_from_last": "muse_glimmer_text muse_spark_text",
    "variants:read_gemma4": "gemma4_text gemma4_unified_text",
    "variants:read_gpt_bigcode": "gpt_bigcode",
    "variants:read_gpt_neo": "gpt_neo",
    "variants:read_hidden": (
        "bert bert-generation big_bird biogpt bloom camembert codegen ctrl data2vec-text "
        "electra ernie git gpt-sw3 gpt2 gpt_neox gpt_neox_japanese gptj megatron-bert mpt "
        "musicgen_decoder musicgen_melody_decoder opt rembert roberta roberta-prelayernorm "
        "roc_bert roformer xglm xlm-roberta xlm-roberta-xl xmod"
    ),
    "variants:read_hrm": "hrm_text",
    "variants:read_jetmoe": "jetmoe",
    "variants:read_last_full": "beam",
    "variants:read_mimo_v2": "mimo_v2_flash",
    "variants:read_mllama": "mllama_text_model",
    "variants:read_nas": "deci nemotron-nas",
    "variants:read_sharing": "gemma3n_text",
    "variants:read_xlnet": "xlnet",
}

READERS = {name: reader for reader, names in _TYPES.items() for name in names.split()}
"""Model type -> `module:function` of this package."""
