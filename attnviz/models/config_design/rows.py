"""The decoders that differ only in spellings and switches, one row each.

Checked against the modeling files of transformers 5.23 by building each on the meta device.
"""

from __future__ import annotations

from typing import Any

from attnviz.models.config_design.row import ExpertsRow, Row

__all__ = ["ROWS"]


def _sizes(
    vocab: int,
    width: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int | None = None,
    positions: int = 2048,
    **more: Any,
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
        **more,
    }


def _but_every(layer: int, pattern: int) -> bool:
    """All but every ``pattern``-th layer slide (Gemma 2 and 3, OLMo 3, Cohere 2)."""
    return (layer + 1) % pattern != 0


_BIAS: dict[str, Any] = {"qkv_bias": "attention_bias", "output_bias": "attention_bias"}
_TIED: dict[str, Any] = {"tie_word_embeddings": True}
_ROUTED = ExpertsRow(
    count="n_routed_experts",
    width="moe_intermediate_size",
    shared="n_shared_experts",
    every="first_k_dense_replace",
)
_CORRECTED = ExpertsRow(
    count="n_routed_experts",
    width="moe_intermediate_size",
    shared="n_shared_experts",
    corrected=True,
    every="first_k_dense_replace",
)

ROWS: dict[str, Row] = {
    "llama": Row("Llama", _sizes(32000, 4096, 11008, 32, 32), ffn_bias="mlp_bias", **_BIAS),
    "mistral": Row(
        "Mistral",
        _sizes(32000, 4096, 14336, 32, 32, 8, 131072, sliding_window=4096),
        windows="all",
    ),
    "ministral": Row(
        "Ministral",
        _sizes(32000, 4096, 14336, 32, 32, 8, 131072, sliding_window=4096),
        windows="all",
    ),
    "mixtral": Row(
        "Mixtral",
        _sizes(32000, 4096, 14336, 32, 32, 8, 131072, num_local_experts=8, num_experts_per_tok=2),
        windows="all",
        experts=ExpertsRow(),
    ),
    "qwen2": Row(
        "Qwen2",
        _sizes(151936, 4096, 22016, 32, 32, 32, 32768, sliding_window=4096, max_window_layers=28),
        qkv_bias=True,
        windows="late",
    ),
    "qwen2_moe": Row(
        "Qwen2Moe",
        _sizes(
            *(151936, 2048, 5632, 24, 16, 16, 32768),
            sliding_window=4096,
            max_window_layers=28,
            decoder_sparse_step=1,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            num_experts_per_tok=4,
            num_experts=60,
            mlp_only_layers=[],
            qkv_bias=True,
        ),
        qkv_bias="qkv_bias",
        windows="late",
        experts=ExpertsRow(
            count="num_experts",
            width="moe_intermediate_size",
            shared_width="shared_expert_intermediate_size",
            shared_gate=True,
            every="decoder_sparse_step",
        ),
    ),
    "qwen3": Row(
        "Qwen3",
        _sizes(
            *(151936, 4096, 22016, 32, 32, 32, 32768),
            head_dim=128,
            sliding_window=4096,
            max_window_layers=28,
        ),
        query_norm=True,
        windows="late",
        **_BIAS,
    ),
    "qwen3_moe": Row(
        "Qwen3Moe",
        _sizes(
            *(151936, 2048, 6144, 24, 32, 4, 32768),
            sliding_window=4096,
            decoder_sparse_step=1,
            moe_intermediate_size=768,
            num_experts_per_tok=8,
            num_experts=128,
            mlp_only_layers=[],
        ),
        query_norm=True,
        windows="switched",
        experts=ExpertsRow(
            count="num_experts", width="moe_intermediate_size", every="decoder_sparse_step"
        ),
        **_BIAS,
    ),
    "gemma": Row(
        "Gemma", _sizes(256000, 3072, 24576, 28, 16, 16, 8192, head_dim=256, **_TIED), **_BIAS
    ),
    "gemma2": Row(
        "Gemma2",
        _sizes(
            *(256000, 2304, 9216, 26, 8, 4, 8192),
            head_dim=256,
            sliding_window=4096,
            sliding_window_pattern=2,
            **_TIED,
        ),
        layer_norms=4,
        windows=_but_every,
        **_BIAS,
    ),
    "gemma3_text": Row(
        "Gemma3",
        _sizes(
            *(262208, 2304, 9216, 26, 8, 4, 131072),
            head_dim=256,
            sliding_window=4096,
            sliding_window_pattern=6,
            **_TIED,
        ),
        layer_norms=4,
        query_norm=True,
        windows=_but_every,
        **_BIAS,
    ),
    "phi": Row(
        "Phi",
        _sizes(51200, 2048, 8192, 24, 32),
        norm="layer",
        layer_norms=1,
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        head_bias=True,
        gated=False,
        query_norm="qk_layernorm",
        query_norm_kind="layer",
    ),
    "phi3": Row("Phi3", _sizes(32064, 3072, 8192, 32, 32, None, 4096), windows="all"),
    "phimoe": Row(
        "Phimoe",
        _sizes(32064, 4096, 6400, 32, 32, 8, 131072, num_local_experts=16, num_experts_per_tok=2),
        norm="layer",
        windows="all",
        head_bias="lm_head_bias",
        experts=ExpertsRow(),
        **_BIAS,
    ),
    "olmo": Row("Olmo", _sizes(50304, 4096, 11008, 32, 32), norm="none", **_BIAS),
    "olmo2": Row(
        "Olmo2",
        _sizes(50304, 4096, 11008, 32, 32),
        query_norm=True,
        query_norm_span="all",
        **_BIAS,
    ),
    "olmo3": Row(
        "Olmo3",
        _sizes(50304, 4096, 11008, 32, 32, sliding_window=4096, sliding_window_pattern=4),
        query_norm=True,
        query_norm_span="all",
        windows=_but_every,
        **_BIAS,
    ),
    "olmoe": Row(
        "Olmoe",
        _sizes(*(50304, 2048, 2048, 16, 16, None, 4096), num_experts=64, num_experts_per_tok=8),
        query_norm=True,
        query_norm_span="all",
        experts=ExpertsRow(count="num_experts"),
        **_BIAS,
    ),
    "cohere": Row(
        "Cohere",
        _sizes(256000, 8192, 22528, 40, 64, None, 8192, **_TIED),
        norm="scale",
        layer_norms=1,
        query_norm="use_qk_norm",
        query_norm_span="each",
        query_norm_kind="scale",
        **_BIAS,
    ),
    "cohere2": Row(
        "Cohere2",
        _sizes(
            *(256000, 8192, 22528, 40, 64, None, 8192),
            sliding_window=4096,
            sliding_window_pattern=4,
            **_TIED,
        ),
        norm="scale",
        layer_norms=1,
        windows=_but_every,
        **_BIAS,
    ),
    "stablelm": Row(
        "StableLm",
        _sizes(50304, 2560, 6912, 32, 32, 32, 4096),
        norm="layer",
        layer_norms="parallel",
        qkv_bias="use_qkv_bias",
        query_norm="qk_layernorm",
        query_norm_span="each",
        query_norm_kind="scale",
        own_head_dim=False,
    ),
    "starcoder2": Row(
        "Starcoder2",
        _sizes(49152, 3072, 12288, 30, 24, 2, 4096, use_bias=True, **_TIED),
        norm="layer",
        qkv_bias="use_bias",
        output_bias="use_bias",
        ffn_bias="use_bias",
        gated=False,
        windows="all",
    ),
    "granite": Row("Granite", _sizes(32000, 4096, 11008, 32, 32), ffn_bias="mlp_bias", **_BIAS),
    "granitemoe": Row(
        "GraniteMoe",
        _sizes(32000, 4096, 11008, 32, 32, num_local_experts=8, num_experts_per_tok=2),
        experts=ExpertsRow(),
        **_BIAS,
    ),
    "smollm3": Row(
        "SmolLM3",
        _sizes(128256, 2048, 11008, 36, 16, 4, 32768, **_TIED),
        ffn_bias="mlp_bias",
        windows="switched",
        **_BIAS,
    ),
    "gpt_oss": Row(
        "GptOss",
        _sizes(
            *(201088, 2880, 2880, 36, 64, 8, 131072),
            head_dim=64,
            sliding_window=128,
            sliding_window_pattern=2,
            num_local_experts=128,
            num_experts_per_tok=4,
            attention_bias=True,
        ),
        windows=_but_every,
        sinks=True,
        experts=ExpertsRow(bias=True, router_bias=True),
        **_BIAS,
    ),
    "glm": Row(
        "Glm",
        _sizes(151552, 4096, 13696, 40, 32, 2, 131072, head_dim=128, attention_bias=True),
        qkv_bias="attention_bias",
    ),
    "glm4": Row(
        "Glm4",
        _sizes(151552, 4096, 13696, 40, 32, 2, 131072, head_dim=128, attention_bias=True),
        layer_norms=4,
        qkv_bias="attention_bias",
    ),
    "glm4_moe": Row(
        "Glm4Moe",
        _sizes(
            *(151552, 4096, 10944, 46, 96, 8, 131072),
            moe_intermediate_size=1408,
            num_experts_per_tok=8,
            n_shared_experts=1,
            n_routed_experts=128,
            first_k_dense_replace=1,
        ),
        qkv_bias="attention_bias",
        query_norm="use_qk_norm",
        experts=_CORRECTED,
    ),
    "dots1": Row(
        "Dots1",
        _sizes(
            152064,
            4608,
            10944,
            62,
            32,
            sliding_window=4096,
            max_window_layers=62,
            moe_intermediate_size=1408,
            first_k_dense_replace=0,
        ),
        query_norm=True,
        windows="late",
        experts=_CORRECTED,
        **_BIAS,
    ),
    "nemotron": Row(
        "Nemotron",
        _sizes(256000, 6144, 24576, 32, 48, None, 4096),
        norm="layer",
        ffn_bias="mlp_bias",
        gated=False,
        **_BIAS,
    ),
    "persimmon": Row(
        "Persimmon",
        _sizes(262144, 4096, 16384, 36, 64, None, 16384, qk_layernorm=True),
        norm="layer",
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        gated=False,
        query_norm="qk_layernorm",
        query_norm_kind="layer",
        own_head_dim=False,
    ),
    "exaone4": Row(
        "Exaone4",
        _sizes(*(102400, 4096, 16384, 32, 32), sliding_window=4096, sliding_window_pattern=4),
        query_norm=True,
        windows=_but_every,
    ),
    "seed_oss": Row(
        "SeedOss",
        _sizes(*(155136, 4096, 27648, 64, 80, 8, 524288), head_dim=128, attention_bias=True),
        qkv_bias="attention_bias",
        output_bias="attention_out_bias",
        ffn_bias="mlp_bias",
    ),
    "arcee": Row(
        "Arcee",
        _sizes(32000, 2560, 18432, 32, 32, None, 4096),
        ffn_bias="mlp_bias",
        gated=False,
        **_BIAS,
    ),
    "ernie4_5": Row(
        "Ernie4_5",
        _sizes(103424, 1024, 3072, 18, 16, 2, 131072, head_dim=128, **_TIED),
        qkv_bias="use_bias",
        output_bias="use_bias",
        ffn_bias="use_bias",
    ),
    "deepseek_v2": Row(
        "DeepseekV2",
        _sizes(
            *(102400, 4096, 11008, 32, 32),
            first_k_dense_replace=0,
            kv_lora_rank=512,
            q_lora_rank=1536,
            n_routed_experts=64,
            n_shared_experts=2,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            moe_intermediate_size=1407,
        ),
        ffn_bias="mlp_bias",
        latent=True,
        experts=_ROUTED,
    ),
    "deepseek_v3": Row(
        "DeepseekV3",
        _sizes(
            *(129280, 7168, 18432, 61, 128, 128, 4096),
            first_k_dense_replace=3,
            kv_lora_rank=512,
            q_lora_rank=1536,
            n_routed_experts=256,
            n_shared_experts=1,
            num_experts_per_tok=8,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            moe_intermediate_size=2048,
        ),
        latent=True,
        experts=_CORRECTED,
    ),
}
