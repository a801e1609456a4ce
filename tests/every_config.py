"""A small random config of every causal class that transformers knows, made from the class itself.

A field is shrunk by its name; what a class asks for beside that stands in ``_OWN``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig

_SIZES: dict[int, str] = {
    64: "vocab_size decoder_vocab_size max_position_embeddings n_positions max_seq_len "
    "max_target_positions unpadded_vocab_size vocab_size_per_layer_input",
    32: "hidden_size d_model n_embd emb_dim embedding_dim lru_width embedding_size "
    "attention_hidden_size word_embed_proj_dim input_embedding_size output_embedding_size",
    40: "intermediate_size moe_intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim "
    "d_inner dff dim_ff ffn_hidden_size expert_ffn_hidden_size intermediate_size_mlp "
    "shared_expert_intermediate_size shared_intermediate_size dense_intermediate_size "
    "moe_shared_expert_intermediate_size shared_experts_intermediate_size feed_forward_size",
    8: "head_dim d_head kv_channels attention_head_dim dim_head attention_head_size swa_head_dim "
    "qk_nope_head_dim v_head_dim index_head_dim linear_head_dim linear_key_head_dim "
    "linear_value_head_dim mamba_d_state state_size ssm_state_size mamba_d_head mamba_head_dim "
    "mamba_headdim mamba_n_heads mamba_num_heads hidden_size_per_layer_input router_hidden_size "
    "chunk_size mamba_chunk_size rotary_dim laurel_rank o_lora_rank adapter_rank",
    6: "num_hidden_layers n_layer n_layers num_layers num_blocks encoder_layers decoder_layers "
    "num_encoder_layers num_decoder_layers",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads "
    "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads "
    "swa_num_attention_heads attention_heads index_n_heads linear_num_heads "
    "linear_num_value_heads num_local_experts num_experts n_routed_experts moe_num_experts "
    "qk_rope_head_dim sliding_window sliding_window_size attention_window_size window_size "
    "mamba_dt_rank time_step_rank local_attention",
    2: "num_key_value_heads num_kv_heads num_query_groups swa_num_key_value_heads "
    "linear_num_key_heads num_experts_per_tok num_experts_per_token moe_topk moe_k "
    "first_k_dense_replace zero_expert_num max_window_layers index_topk index_topk_blocks",
    1: "n_group num_expert_group topk_group n_groups mamba_n_groups mamba_ngroups bos_token_id "
    "num_kv_shared_layers num_mem_blocks",
    16: "q_lora_rank kv_lora_rank",
    12: "qk_head_dim",
    0: "pad_token_id",
    3: "eos_token_id",
}
_BY_NAME = {name: size for size, names in _SIZES.items() for name in names.split()}
_OWN: dict[str, dict[str, Any]] = {
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "bamba": {"attn_layer_indices": [2, 4]},
    "blenderbot": {"num_hidden_layers": 6},
    "dory": {"n_input_layers": 2, "n_output_layers": 2},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 3]]},
    "gemma3n_text": {"hidden_size_per_layer_input": 4},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 3},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 3},
    "mamba2": {"num_heads": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8]},
    "roc_bert": {"pronunciation_vocab_size": 9, "shape_vocab_size": 9, "concat_input": False},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 12, "attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {
        "num_hidden_layers": 12,
        "layers_block_type": (["linear_attention"] * 5 + ["hybrid"]) * 2,
        "mamba_headdim": 8,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_key_value_heads": 4,
    },
}


def causal_configs() -> dict[str, type[PretrainedConfig]]:
    """The config class of each model type with a causal class of its own, by model type.

    What holds several models is left out: its causal class is its text model's.
    """
    mapping = MODEL_FOR_CAUSAL_LM_MAPPING
    found = {
        made.model_type: made for made in mapping if mapping[made].config_class in (None, made)
    }
    return dict(sorted(found.items()))


def small_config(made: type[PretrainedConfig]) -> PretrainedConfig:
    """A config of this class that a model of some ten thousand numbers can be made of."""
    fields = _shrunk(made().to_dict()) | _OWN.get(made.model_type, {})
    if "kv_lora_rank" in fields:  # latent attention: what is rotated is a head's width
        fields |= {"head_dim": 4, "num_key_value_heads": 4}
    causal = MODEL_FOR_CAUSAL_LM_MAPPING[made]
    return made(**fields, architectures=[causal.__name__])


def _shrunk(fields: Mapping[str, Any]) -> dict[str, Any]:
    small: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and "model_type" in value:
            small[name] = _shrunk(value) | {"model_type": value["model_type"]}
        elif isinstance(value, int) and not isinstance(value, bool) and name in _BY_NAME:
            small[name] = min(value, _BY_NAME[name]) if value > 0 else value
    return small
