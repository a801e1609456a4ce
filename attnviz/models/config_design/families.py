"""Which model types the arithmetic claims, with the classes whose weights it can count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from attnviz.designs import Design
from attnviz.models.config_design import gpt
from attnviz.models.config_design.bart import BartRow, bart, whisper
from attnviz.models.config_design.decoder import decoder
from attnviz.models.config_design.encoder import EncoderRow, encoder
from attnviz.models.config_design.fields import Fields
from attnviz.models.config_design.rows import ROWS, Row
from attnviz.models.config_design.t5 import t5
from attnviz.models.config_design.vision import VisionRow, vision

__all__ = ["FAMILIES", "Family"]

Reader = Callable[[Fields], Design]


@dataclass(frozen=True)
class Family:
    """One model type.

    classes: the class names that are claimed, each with what reads its design.
    assumed: the class that is counted where a config names none.
    defaults: the fields that its config class fills in.
    spellings: other names of a field, the family's own first.
    """

    classes: Mapping[str, Reader]
    assumed: str
    defaults: Mapping[str, Any]
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _row(row: Row) -> Family:
    bare, causal = f"{row.prefix}Model", f"{row.prefix}ForCausalLM"
    if row.prefix == "Gemma3":
        bare = "Gemma3TextModel"
    classes = {
        bare: partial(decoder, row=row, with_head=False),
        causal: partial(decoder, row=row, with_head=True),
    }
    spellings = {
        "num_experts": ("num_local_experts",),
        "num_local_experts": ("num_experts",),
        "sliding_window_pattern": ("_sliding_window_pattern",),
    }
    return Family(classes, causal, row.defaults, spellings)


_GPT_NAMES = {
    "hidden_size": ("n_embd",),
    "num_attention_heads": ("n_head",),
    "num_hidden_layers": ("n_layer",),
    "max_position_embeddings": ("n_positions",),
}


def _gpt(
    read: Callable[..., Design],
    bare: str,
    causal: str,
    defaults: Mapping[str, Any],
    spellings: Mapping[str, tuple[str, ...]],
) -> Family:
    classes = {bare: partial(read, with_head=False), causal: partial(read, with_head=True)}
    return Family(classes, causal, defaults, spellings)


def _gpt_sizes(
    vocab: int, positions: int, width: int, layers: int, heads: int, *, tied: bool, **more: Any
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
        **more,
    }


_DECODERS = {
    "gpt2": _gpt(
        *(gpt.gpt2, "GPT2Model", "GPT2LMHeadModel"),
        _gpt_sizes(50257, 1024, 768, 12, 12, tied=True),
        _GPT_NAMES,
    ),
    "gpt_bigcode": _gpt(
        *(gpt.gpt_bigcode, "GPTBigCodeModel", "GPTBigCodeForCausalLM"),
        _gpt_sizes(50257, 1024, 768, 12, 12, tied=True, multi_query=True),
        _GPT_NAMES,
    ),
    "gpt_neo": _gpt(
        *(gpt.gpt_neo, "GPTNeoModel", "GPTNeoForCausalLM"),
        _gpt_sizes(
            *(50257, 2048, 2048, 24, 16),
            tied=True,
            window_size=256,
            attention_types=[[["global", "local"], 12]],
        ),
        {"num_attention_heads": ("num_heads",), "num_hidden_layers": ("num_layers",)},
    ),
    "gptj": _gpt(
        *(gpt.gptj, "GPTJModel", "GPTJForCausalLM"),
        _gpt_sizes(50400, 2048, 4096, 28, 16, tied=False),
        _GPT_NAMES,
    ),
    "codegen": _gpt(
        *(gpt.gptj, "CodeGenModel", "CodeGenForCausalLM"),
        _gpt_sizes(50400, 2048, 4096, 28, 16, tied=False),
        _GPT_NAMES,
    ),
    "gpt_neox": _gpt(
        *(gpt.gpt_neox, "GPTNeoXModel", "GPTNeoXForCausalLM"),
        _gpt_sizes(
            *(50432, 2048, 6144, 44, 64), tied=False, intermediate_size=24576, attention_bias=True
        ),
        {},
    ),
    "bloom": _gpt(
        *(gpt.bloom, "BloomModel", "BloomForCausalLM"),
        _gpt_sizes(250880, 2048, 64, 2, 8, tied=True),
        {
            "hidden_size": ("n_embed",),
            "num_attention_heads": ("n_head",),
            "num_hidden_layers": ("n_layer",),
        },
    ),
    "falcon": _gpt(
        *(gpt.falcon, "FalconModel", "FalconForCausalLM"),
        _gpt_sizes(65024, 2048, 4544, 32, 71, tied=True, multi_query=True, parallel_attn=True),
        {"num_attention_heads": ("n_head",), "num_hidden_layers": ("n_layer",)},
    ),
    "mpt": _gpt(
        *(gpt.mpt, "MptModel", "MptForCausalLM"),
        _gpt_sizes(50368, 2048, 2048, 24, 16, tied=True),
        {
            "hidden_size": ("d_model",),
            "num_attention_heads": ("n_heads",),
            "num_hidden_layers": ("n_layers",),
            "max_position_embeddings": ("max_seq_len",),
        },
    ),
    "opt": _gpt(
        *(gpt.opt, "OPTModel", "OPTForCausalLM"),
        _gpt_sizes(
            *(50272, 2048, 768, 12, 12),
            tied=True,
            ffn_dim=3072,
            do_layer_norm_before=True,
            enable_bias=True,
            layer_norm_elementwise_affine=True,
        ),
        {},
    ),
}


def _encoder(
    prefix: str,
    defaults: Mapping[str, Any],
    row: EncoderRow,
    *,
    pretraining: bool = False,
    spellings: Mapping[str, tuple[str, ...]] | None = None,
) -> Family:
    classes: dict[str, Reader] = {
        f"{prefix}Model": partial(encoder, row=row, purpose="bare"),
        f"{prefix}ForMaskedLM": partial(encoder, row=row, purpose="masked"),
    }
    if pretraining:
        classes[f"{prefix}ForPreTraining"] = partial(encoder, row=row, purpose="pretraining")
    return Family(classes, f"{prefix}Model", defaults, spellings or {})


def _bert_sizes(vocab: int = 30522, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "tie_word_embeddings": True,
        **more,
    }


_ENCODERS = {
    "bert": _encoder("Bert", _bert_sizes(), EncoderRow(), pretraining=True),
    "roberta": _encoder("Roberta", _bert_sizes(50265), EncoderRow()),
    "xlm-roberta": _encoder("XLMRoberta", _bert_sizes(), EncoderRow()),
    "camembert": _encoder("Camembert", _bert_sizes(), EncoderRow()),
    "electra": _encoder(
        "Electra",
        _bert_sizes(
            embedding_size=128, hidden_size=256, num_attention_heads=4, intermediate_size=1024
        ),
        EncoderRow(pooled=False, narrow=True),
    ),
    "distilbert": _encoder(
        "DistilBert",
        _bert_sizes(num_hidden_layers=6),
        EncoderRow(pooled=False, types=False),
        spellings={
            "hidden_size": ("dim",),
            "num_attention_heads": ("n_heads",),
            "num_hidden_layers": ("n_layers",),
            "intermediate_size": ("hidden_dim",),
        },
    ),
    "albert": _encoder(
        "Albert",
        _bert_sizes(
            30000,
            embedding_size=128,
            hidden_size=4096,
            num_attention_heads=64,
            intermediate_size=16384,
            num_hidden_groups=1,
            inner_group_num=1,
        ),
        EncoderRow(narrow=True, always_widened=True, shared=True),
    ),
}


def _t5(prefix: str, defaults: Mapping[str, Any], *, biased_layers: bool = False) -> Family:
    read = partial(t5, biased_layers=biased_layers)
    classes = {
        f"{prefix}Model": partial(read, purpose="bare"),
        f"{prefix}ForConditionalGeneration": partial(read, purpose="generating"),
        f"{prefix}EncoderModel": partial(read, purpose="encoder"),
    }
    names = {
        "d_model": ("hidden_size",),
        "d_kv": ("head_dim",),
        "num_heads": ("num_attention_heads",),
        "num_layers": ("num_hidden_layers",),
    }
    return Family(classes, f"{prefix}ForConditionalGeneration", defaults, names)


def _t5_sizes(vocab: int, inner: int, layers: int, heads: int, kind: str) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": inner,
        "num_layers": layers,
        "num_heads": heads,
        "relative_attention_num_buckets": 32,
        "feed_forward_proj": kind,
    }


def _bart(prefix: str, row: BartRow, **more: Any) -> Family:
    classes = {
        f"{prefix}Model": partial(bart, row=row, purpose="bare"),
        f"{'Marian' if prefix == 'Marian' else prefix}"
        f"{'MTModel' if prefix == 'Marian' else 'ForConditionalGeneration'}": partial(
            bart, row=row, purpose="generating"
        ),
    }
    defaults = {
        "vocab_size": 50265,
        "max_position_embeddings": 1024,
        "d_model": 1024,
        "encoder_layers": 12,
        "decoder_layers": 12,
        "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "tie_word_embeddings": True,
        **more,
    }
    return Family(classes, list(classes)[-1], defaults)


_GATED = "gated-gelu"
_PAIRS = {
    "t5": _t5("T5", _t5_sizes(32128, 2048, 6, 8, "relu")),
    "mt5": _t5("MT5", _t5_sizes(250112, 1024, 8, 6, _GATED)),
    "umt5": _t5("UMT5", _t5_sizes(250112, 1024, 8, 6, _GATED), biased_layers=True),
    "bart": _bart("Bart", BartRow(positions=2, first_norm=True, final_norm=False)),
    "mbart": _bart("MBart", BartRow(positions=2, first_norm=True)),
    "marian": _bart("Marian", BartRow(final_norm=False), vocab_size=58101),
    "pegasus": _bart("Pegasus", BartRow()),
    "blenderbot": _bart(
        "Blenderbot",
        BartRow(),
        vocab_size=8008,
        max_position_embeddings=128,
        d_model=2560,
        encoder_layers=2,
        decoder_layers=24,
        encoder_ffn_dim=10240,
        decoder_ffn_dim=10240,
        encoder_attention_heads=32,
        decoder_attention_heads=32,
    ),
    "m2m_100": _bart("M2M100", BartRow(positions=None, logits_buffer=False), vocab_size=128112),
    "whisper": Family(
        {
            "WhisperModel": partial(whisper, purpose="bare"),
            "WhisperForConditionalGeneration": partial(whisper, purpose="generating"),
        },
        "WhisperForConditionalGeneration",
        {
            "vocab_size": 51865,
            "num_mel_bins": 80,
            "d_model": 384,
            "encoder_layers": 4,
            "decoder_layers": 4,
            "encoder_ffn_dim": 1536,
            "decoder_ffn_dim": 1536,
            "encoder_attention_heads": 6,
            "decoder_attention_heads": 6,
            "max_source_positions": 1500,
            "max_target_positions": 448,
            "tie_word_embeddings": True,
        },
    ),
}


def _vision(prefix: str, row: VisionRow, classifier: bool, **more: Any) -> Family:
    classes: dict[str, Reader] = {f"{prefix}Model": partial(vision, row=row, purpose="bare")}
    if classifier:
        read = partial(vision, row=row, purpose="classifying")
        classes[f"{prefix}ForImageClassification"] = read
    defaults = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "qkv_bias": True,
        "num_labels": 2,
        **more,
    }
    return Family(classes, f"{prefix}Model", defaults)


_VISION = {
    "vit": _vision("ViT", VisionRow(), classifier=True),
    "deit": _vision(
        "DeiT", VisionRow(tokens=("class token", "distillation token")), classifier=True
    ),
    "dinov2": _vision(
        "Dinov2",
        VisionRow(mask_token=True, scaled=True, ratio=True, pooled=False),
        classifier=False,
        patch_size=14,
        mlp_ratio=4,
        use_mask_token=True,
    ),
}

FAMILIES: dict[str, Family] = {
    **{name: _row(row) for name, row in ROWS.items()},
    **_DECODERS,
    **_ENCODERS,
    **_PAIRS,
    **_VISION,
}
