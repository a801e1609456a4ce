"""The encoders of the BERT family, each with its spellings and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from attnviz.models.config_design.encoder import EncoderRow, encoder
from attnviz.models.config_design.family import Family, Reader

__all__ = ["ENCODER_FAMILIES"]


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


ENCODER_FAMILIES = {
    "bert": _encoder("Bert", _bert_sizes(), EncoderRow(), pretraining=True),
    "roberta": _encoder("Roberta", _bert_sizes(50265), EncoderRow()),
    "xlm-roberta": _encoder("XLMRoberta", _bert_sizes(), EncoderRow()),
    "camembert": _encoder("Camembert", _bert_sizes(), EncoderRow()),
    "electra": _encoder(
        "Electra",
        _bert_sizes(
            embedding_size=128, hidden_size=256, num_attention_heads=4, intermediate_size=1024
        ),
        EncoderRow(pooled=False, narrow=True, spare_bias=False),
    ),
    "distilbert": _encoder(
        "DistilBert",
        _bert_sizes(num_hidden_layers=6),
        EncoderRow(pooled=False, types=False, spare_bias=False),
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
