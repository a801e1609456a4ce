"""The encoder–decoder pairs, each with its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from attnviz.models.config_design.bart import BartRow, bart, whisper
from attnviz.models.config_design.family import Family
from attnviz.models.config_design.t5 import t5

__all__ = ["PAIR_FAMILIES"]


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


def _bart(prefix: str, row: BartRow, *, generating: str = "", **more: Any) -> Family:
    writes = generating or f"{prefix}ForConditionalGeneration"
    classes = {
        f"{prefix}Model": partial(bart, row=row, purpose="bare"),
        writes: partial(bart, row=row, purpose="generating"),
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
    return Family(classes, writes, defaults)


_GATED = "gated-gelu"
PAIR_FAMILIES = {
    "t5": _t5("T5", _t5_sizes(32128, 2048, 6, 8, "relu")),
    "mt5": _t5("MT5", _t5_sizes(250112, 1024, 8, 6, _GATED)),
    "umt5": _t5("UMT5", _t5_sizes(250112, 1024, 8, 6, _GATED), biased_layers=True),
    "bart": _bart("Bart", BartRow(positions=2, first_norm=True, final_norm=False)),
    "mbart": _bart("MBart", BartRow(positions=2, first_norm=True)),
    "marian": _bart(
        "Marian", BartRow(final_norm=False), generating="MarianMTModel", vocab_size=58101
    ),
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
