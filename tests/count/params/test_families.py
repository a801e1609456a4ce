"""The arithmetic against the library, which builds each claimed class on the meta device."""

import pytest
import transformers
from transformers.utils import logging as transformers_logging

from attnviz.count.params.families import families, spec_from_config
from attnviz.count.params.meta_count import count_on_meta
from attnviz.count.params.specs import total

from ...quick import one_in
from .small_configs import BART, BERT, DECODER, GPT, LATENT, ROUTED, SLIDING, T5, VIT, WHISPER, WIDE

transformers_logging.set_verbosity_error()

CLASSES = [(kind, name) for kind, adapter in families().items() for name in adapter.classes]

# What the default config of the library itself lacks to build a model.
COMPLETED = {
    "dots1": {
        "n_routed_experts": 5,
        "n_shared_experts": 3,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "glm4_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
}

NEO = {
    "vocab_size": 29,
    "hidden_size": 30,
    "num_layers": 3,
    "num_heads": 5,
    "intermediate_size": 17,
    "max_position_embeddings": 37,
}
DISTIL = {
    "vocab_size": 29,
    "dim": 30,
    "n_layers": 3,
    "n_heads": 5,
    "hidden_dim": 17,
    "max_position_embeddings": 37,
}

# Sizes that cannot be mistaken for one another, and switches away from their defaults.
ODD = {
    "llama": [WIDE, dict(WIDE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)],
    "mistral": [dict(WIDE, **SLIDING), dict(DECODER, head_dim=None, sliding_window=None)],
    "ministral": [dict(WIDE, **SLIDING)],
    "mixtral": [dict(WIDE, num_local_experts=5, num_experts_per_tok=3)],
    "qwen2": [DECODER, dict(DECODER, **SLIDING, use_sliding_window=True, max_window_layers=2)],
    "qwen2_moe": [
        dict(
            DECODER,
            num_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=13,
            shared_expert_intermediate_size=19,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
            qkv_bias=False,
        )
    ],
    "qwen3": [dict(WIDE, attention_bias=True)],
    "qwen3_moe": [
        dict(WIDE, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=13),
        dict(WIDE, num_experts=5, moe_intermediate_size=13, decoder_sparse_step=3),
    ],
    "gemma": [dict(WIDE, attention_bias=True)],
    "gemma2": [dict(WIDE, **SLIDING, tie_word_embeddings=False)],
    "gemma3_text": [dict(WIDE, **SLIDING)],
    "phi": [DECODER, dict(DECODER, qk_layernorm=True, tie_word_embeddings=True)],
    "phi3": [dict(DECODER, **SLIDING)],
    "phimoe": [dict(DECODER, num_local_experts=5, attention_bias=True, lm_head_bias=True)],
    **{key: [DECODER, dict(DECODER, attention_bias=True)] for key in ("olmo", "olmo2")},
    "olmo3": [dict(DECODER, **SLIDING)],
    "olmoe": [dict(DECODER, num_experts=5, num_experts_per_tok=2)],
    "cohere": [DECODER, dict(DECODER, use_qk_norm=True, attention_bias=True)],
    "cohere2": [dict(WIDE, **SLIDING)],
    "stablelm": [
        DECODER,
        dict(DECODER, use_qkv_bias=True, qk_layernorm=True, use_parallel_residual=True),
    ],
    "starcoder2": [DECODER, dict(DECODER, use_bias=False, tie_word_embeddings=False)],
    "granite": [dict(DECODER, attention_bias=True, mlp_bias=True)],
    "granitemoe": [dict(DECODER, num_local_experts=5)],
    "smollm3": [dict(DECODER, attention_bias=True, mlp_bias=True)],
    "gpt_oss": [dict(WIDE, **SLIDING, num_local_experts=5), dict(WIDE, attention_bias=False)],
    "glm": [WIDE, dict(WIDE, attention_bias=False)],
    "glm4": [WIDE],
    "glm4_moe": [dict(WIDE, **ROUTED, use_qk_norm=True, attention_bias=True)],
    "dots1": [dict(WIDE, **ROUTED), dict(WIDE, **ROUTED | {"n_shared_experts": 1})],
    "nemotron": [dict(WIDE, attention_bias=True, mlp_bias=True)],
    "persimmon": [
        dict(DECODER, num_key_value_heads=6),
        dict(DECODER, num_key_value_heads=6, qk_layernorm=False),
    ],
    "exaone4": [dict(WIDE, **SLIDING)],
    "seed_oss": [dict(WIDE, attention_bias=False, attention_out_bias=True, mlp_bias=True)],
    "arcee": [dict(WIDE, attention_bias=True, mlp_bias=True)],
    "ernie4_5": [WIDE, dict(WIDE, use_bias=True)],
    "deepseek_v2": [
        dict(DECODER, **ROUTED, **LATENT, num_key_value_heads=6),
        dict(DECODER, **ROUTED, **LATENT | {"q_lora_rank": None}, attention_bias=True),
    ],
    "deepseek_v3": [
        dict(DECODER, **ROUTED, **LATENT, num_key_value_heads=6, attention_bias=True),
        {**DECODER, **ROUTED, **LATENT, "q_lora_rank": None, "first_k_dense_replace": 5},
    ],
    "gpt2": [GPT, dict(GPT, n_inner=17, tie_word_embeddings=False)],
    "gpt_bigcode": [dict(GPT, n_inner=17), dict(GPT, multi_query=False)],
    "gpt_neo": [dict(NEO, attention_types=[[["global"], 1], [["local"], 2]])],
    "gptj": [dict(GPT, n_inner=17, rotary_dim=2)],
    "codegen": [dict(GPT, n_embd=32, n_head=8, n_inner=17, rotary_dim=2)],
    "gpt_neox": [DECODER, dict(DECODER, attention_bias=False, tie_word_embeddings=True)],
    "bloom": [{"vocab_size": 29, "hidden_size": 30, "n_layer": 3, "n_head": 5}],
    "falcon": [
        dict(DECODER, bias=True, num_kv_heads=6),
        dict(DECODER, multi_query=False, parallel_attn=False, ffn_hidden_size=17),
        dict(DECODER, new_decoder_architecture=True, num_kv_heads=2),
        dict(DECODER, new_decoder_architecture=True, num_ln_in_parallel_attn=1),
        dict(DECODER, alibi=True, multi_query=False),
    ],
    "mpt": [{"vocab_size": 29, "d_model": 30, "n_heads": 5, "n_layers": 3, "max_seq_len": 37}],
    "opt": [
        dict(DECODER, ffn_dim=17, word_embed_proj_dim=7),
        dict(DECODER, ffn_dim=17, word_embed_proj_dim=48, enable_bias=False),
        dict(DECODER, ffn_dim=17, word_embed_proj_dim=48, do_layer_norm_before=False),
        dict(DECODER, ffn_dim=17, word_embed_proj_dim=48, layer_norm_elementwise_affine=False),
    ],
    **{
        key: [BERT, dict(BERT, tie_word_embeddings=False)]
        for key in ("bert", "roberta", "xlm-roberta", "camembert")
    },
    **{
        key: [
            dict(BERT, embedding_size=7),
            dict(BERT, embedding_size=30, tie_word_embeddings=False),
        ]
        for key in ("electra", "albert")
    },
    "distilbert": [dict(DISTIL, tie_word_embeddings=tied) for tied in (True, False)],
    "t5": [T5, dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)],
    "mt5": [T5],
    "umt5": [dict(T5, feed_forward_proj="relu"), T5],
    **{key: [BART] for key in ("bart", "mbart", "pegasus", "blenderbot", "m2m_100")},
    "marian": [dict(BART, decoder_vocab_size=29)],
    "whisper": [WHISPER],
    "vit": [VIT, dict(VIT, pooler_output_size=13, num_labels=5)],
    "deit": [dict(VIT, num_labels=7)],
    "dinov2": [dict(VIT, mlp_ratio=3), dict(VIT, mlp_ratio=2, use_mask_token=False)],
}


def compare(kind, architecture, fields):
    """Count once by arithmetic from the fields alone, and once from the library's own model."""
    config = {"model_type": kind, "architectures": [architecture], **fields}
    built = count_on_meta(config, name=kind)
    spec = spec_from_config(config, name=kind)
    assert (spec.total, total(spec.buffers)) == (built.total, built.buffers)
    return spec


def test_at_least_25_architectures_are_claimed():
    assert len(families()) >= 50
    assert set(ODD) == set(families())


@pytest.mark.parametrize(("kind", "architecture"), one_in(2, dict(CLASSES).items()))
def test_default_sizes(kind, architecture):
    compare(kind, architecture, COMPLETED.get(kind, {}))


@pytest.mark.parametrize(
    ("kind", "architecture", "fields"),
    one_in(
        2,
        [
            (kind, name, fields)
            for kind, name in CLASSES
            for fields in (ODD[kind] if dict(CLASSES)[kind] == name else ODD[kind][:1])
        ],
    ),
)
def test_odd_sizes(kind, architecture, fields):
    """Of every class the first fields, and of the last class of a kind all of them.

    Half of them in the quick run: the default sizes are of every second class there, too.
    """
    spec = compare(kind, architecture, fields)
    # What the library writes into a config.json reads as the same design.
    written = transformers.AutoConfig.for_model(kind, **fields).to_diff_dict()
    again = spec_from_config({**written, "architectures": [architecture]}, name=kind)
    assert again == spec


DECODERS = families("decoder")
SLIDES = [
    kind
    for kind, adapter in DECODERS.items()
    if any(read.keywords.get("slides") for read in adapter.classes.values())
]
SWITCHED = {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 2}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        *((kind, COMPLETED.get(kind, {})) for kind in DECODERS),
        *((kind, fields) for kind in DECODERS for fields in ODD[kind]),
        *((kind, {**ODD[kind][0], **SWITCHED}) for kind in SLIDES),
        ("smollm3", {**DECODER, **SWITCHED, "no_rope_layers": [1, 0, 0, 1, 0]}),
        ("gemma2", {**DECODER, **SLIDING, "layer_types": ["full_attention"] * 5}),
    ],
)
def test_the_same_layers_slide(kind, fields):
    config = transformers.AutoConfig.for_model(kind, **fields)
    cache = transformers.DynamicCache(config=config)
    slides = [getattr(layer, "sliding_window", None) for layer in cache.layers]
    spec = spec_from_config({"model_type": kind, **fields})
    windows = {}
    for group in spec.main.groups:
        attention = group.layer.attentions[0]
        indices = range(group.repeat) if group.indices is None else group.indices
        windows |= dict.fromkeys(indices, attention.window)
    assert [windows[layer] for layer in range(spec.main.depth)] == slides
