"""Small random models of every causal class of transformers, made from the config classes alone.

Each field of a config's defaults that names a size gets a small one, in nested configs as well, by
what it is called; nothing here knows an architecture but the few lines of ``_SPECIAL``.
"""

import re

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

LAYERS, HEADS, KV_HEADS, WORDS = 4, 4, 2, 97

_SIZES = (
    (r"(src_|tgt_)?vocab_size(_per_layer_input)?|n_words", WORDS),
    (r"index_topk|indexer_topk|index_top_k|.*topk_tokens|topk_blocks?|index_topk_blocks", 5),
    (r"index(er)?_n_heads|index(er)?_num_heads|index_num_attention_heads", 2),
    (r"sparse_block_size|index_block_size|block_size", 4),
    (r"q_lora_rank|kv_lora_rank|o_lora_rank|.*_lora_rank|.*lora_dim.*", 12),
    (r"qk_rope_head_dim|rotary_dim", 4),
    (r"qk_head_dim", 12),
    (r"(.*_)?(head_dim|head_size|d_kv|kv_channels|attention_head_dim)", 8),
    (r"(.*_)?(n_routed_experts|num_(local_)?experts|n_experts|moe_num_experts|num_experts)", 4),
    (r"(.*_)?(num_experts_per_tok(en)?|moe_topk|moe_k|top_k_experts|num_selected_experts)", 2),
    (r"n_group|topk_group|n_groups|mamba_n_groups|n_shared_experts|moe_num_shared_experts", 1),
    (r"(.*_)?(num_key_value_heads|num_kv_heads|n_head_kv|multi_query_group_num)", KV_HEADS),
    (r"(.*_)?(num_attention_heads|n_heads?|num_heads|attention_heads)", HEADS),
    (r"linear_num_(key|value)_heads|lightning_nope_num_heads", HEADS),
    (r"(.*_)?(num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers)", LAYERS),
    (r"(.*_)?(intermediate_size|ffn_dim|n_inner|d_ff|d_inner|feed_forward_size)", 48),
    (r".*(intermediate|ffn|mlp|expert)_(size|dim)|(.*_)?ffn_hidden_size.*", 48),
    (r"(.*_)?(hidden_size|d_model|n_embd|dim|d_embed|embedding_size|emb_dim)", 32),
    (r"word_embed_proj_dim", 32),
    (r"hidden_size_per_layer_input|lru_width|attention_hidden_size|embed_dim|num_embeds", 32),
    (r"sliding_window(_size)?|attention_chunk_size|attention_window(_size)?|local_window.*", 6),
    (r"mamba_d_state|state_size|ssm_state_size|d_state", 8),
    (r"mamba_d_ssm", 64),

    (r"mamba_(n|num)_heads|mamba_n_heads|n_mamba_heads", 4),
    (r"mamba_d_head|mamba_head_dim", 16),
    (r"mamba_chunk_size|chunk_size", 8),
    (r"(mamba_)?(dt_rank|time_step_rank)", 4),
    (r"(.*_)?(max_position_embeddings|n_positions|n_ctx|max_seq_len|seq_length|seq_len)", 64),
    (r"original_max_position_embeddings|max_source_positions|max_target_positions", 64),
    (r"attn_hidden_size|attention_dim", 32),
    (r"image_size", 8),
    (r"patch_size", 4),
    (r"num_global_layers|num_nextn_predict_layers|num_mtp_modules", 1),
    (r"first_k_dense_replace|num_dense_layers|.*num_dense_layers.*", 1),
    (r"num_kv_shared_layers|altup_num_inputs|laurel_rank", 2),
    (r"full_attention_interval|attn_layer_period|global_attn_every_n_layers", 2),
    (r"attn_layer_offset", 1),
)  # fmt: skip

_UNSET = r"head_dim|num_key_value_heads|n_routed_experts|n_shared_experts|num_experts_per_tok"
_LATENT = {"head_dim": 4, "num_key_value_heads": HEADS}
_WIDE = {"attention_hidden_size": 64, "attention_head_dim": 16}
_SPECIAL = {
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "zamba": _WIDE,
    "zamba2": _WIDE,
    "zaya": {"num_experts_per_tok": 1},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [8, 24], "axial_pos_shape": [8, 8]},
    "xmod": {"default_language": "en_XX"},
    "bamba": {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "cohere_compass_text": {"layer_types": ["full_attention"] * 4},
    "xlm": {"causal": True},
}


def causal_kinds():
    """Every model type that has a causal class."""
    return [kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if kind in CONFIG_MAPPING_NAMES]


def small_config(kind):
    """A config of the type with small sizes."""
    cls = transformers.CONFIG_MAPPING[kind]
    fields = _small(cls().to_dict())
    fields |= _SPECIAL.get(kind, {})
    return cls(**fields, architectures=[MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]])


def small_causal(kind, attention=None):
    """Its model with random weights of some size, in evaluation mode."""
    config = small_config(kind)
    torch.manual_seed(0)
    cls = transformers.AutoModelForCausalLM
    model = cls.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.requires_grad_(False)


def _small(fields):
    """The fields whose names tell that they are sizes, small."""
    found = {}
    layers = next(
        (
            v
            for k, v in fields.items()
            if re.fullmatch(r"num_hidden_layers|n_layers?|num_layers", k)
        ),
        None,
    )
    for name, value in fields.items():
        if value is None and re.fullmatch(_UNSET, name):
            value = 1
        if name == "is_decoder":
            found[name] = True  # a text predictor of this class is one
        elif isinstance(value, dict) and "model_type" in value:
            found[name] = _small(value) | {"model_type": value["model_type"]}
        elif isinstance(value, dict) and name in ("attn_config", "ffn_config"):
            found[name] = _small(value)
        elif isinstance(value, list) and layers and len(value) == layers and layers > LAYERS:
            found[name] = _kinds_of(value)
        elif re.fullmatch(
            r"(pad|bos|eos|decoder_start|sep|cls|mask|unk|image|boi|eoi|audio|video)_token_id", name
        ):
            found[name] = {"pad": 0, "bos": 1, "eos": 2}.get(name[:3], 3)
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            size = next((size for pattern, size in _SIZES if re.fullmatch(pattern, name)), None)
            if size is not None:
                found[name] = size
    return found | (_LATENT if "qk_rope_head_dim" in found else {})


def _kinds_of(values):
    """As many as there are layers, with each kind of layer among them."""
    kinds = sorted(set(values), key=values.index)
    return [kinds[at % len(kinds)] for at in range(LAYERS)]
