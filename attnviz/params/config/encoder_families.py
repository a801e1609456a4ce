"""Text encoders: their configs, and the designs that these describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from attnviz.params.config.blocks import (
    block,
    layer_norm,
    plain_feed_forward,
    square_attention,
    tables,
)
from attnviz.params.config.family import Adapter, Reader
from attnviz.params.config.fields import Fields, UnclaimedError
from attnviz.params.specs import Dense, LayerGroup, ModelSpec, Part, StackSpec, Table

__all__ = ["ENCODER_FAMILIES", "EncoderRow", "encoder"]

Purpose = Literal["bare", "masked", "pretraining"]


@dataclass(frozen=True)
class EncoderRow:
    """How an encoder differs from BERT.

    pooled: the bare model has a pooler.
    types: it has a table of segment types.
    narrow: its tables have their own width, with a matrix in between where that differs.
    always_widened: that matrix is there even where the widths are equal.
    shared: all layers are one and the same (Lan et al. 2020).
    spare_bias: an untied masked head comes with a second bias, which the tied one shares.
    """

    pooled: bool = True
    types: bool = True
    narrow: bool = False
    always_widened: bool = False
    shared: bool = False
    spare_bias: bool = True


def encoder(fields: Fields, row: EncoderRow, purpose: Purpose) -> ModelSpec:
    """The design of an encoder alone, with its masked head, or with both pre-training heads."""
    if fields.flag("add_cross_attention") or fields.flag("is_decoder"):
        raise UnclaimedError
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    if row.shared and (fields.whole("num_hidden_groups"), fields.whole("inner_group_num")) != (
        1,
        1,
    ):
        raise UnclaimedError
    layer = block(
        square_attention(fields, width, heads),
        feed_forward=plain_feed_forward(width, fields.whole("intermediate_size")),
        norms=2,
    )
    narrow = fields.whole("embedding_size") if row.narrow else width
    pooled = row.pooled and purpose != "masked"
    stack = StackSpec(
        name="encoder",
        groups=(LayerGroup(layer, fields.whole("num_hidden_layers"), shared=row.shared),),
        causal=False,
        embeddings=_tables(fields, row, narrow, width),
        norms=(layer_norm("embedding norm", narrow),),
        parts=(
            *((Dense("pooler", width, width, bias=True, places=1),) if pooled else ()),
            *(() if purpose == "bare" else _transform(fields, row, width, narrow)),
            *(_next_sentence(width) if purpose == "pretraining" else ()),
        ),
        head=None if purpose == "bare" else _head(fields, narrow),
        max_positions=fields.whole("max_position_embeddings"),
    )
    return ModelSpec(name=fields.name, source="", stacks=(stack,))


def _tables(fields: Fields, row: EncoderRow, narrow: int, width: int) -> tuple[Part, ...]:
    positions = fields.whole("max_position_embeddings")
    made: list[Part] = [*tables(fields.whole("vocab_size"), narrow, positions)]
    types = fields.whole("type_vocab_size", least=0) if row.types else 0
    if types:
        made.append(Table("type embedding", types, narrow))
    if row.narrow and (row.always_widened or narrow != width):
        made.append(Dense("embedding projection", narrow, width, bias=True))
    return tuple(made)


def _transform(fields: Fields, row: EncoderRow, width: int, narrow: int) -> tuple[Part, ...]:
    parts = (Dense("masked head", width, narrow, bias=True), layer_norm("masked head norm", narrow))
    if fields.flag("tie_word_embeddings") or not row.spare_bias:
        return parts
    return (*parts, Table("second head bias", 1, fields.whole("vocab_size")))


def _next_sentence(width: int) -> tuple[Part, ...]:
    return (Dense("next-sentence head", width, 2, bias=True, places=1),)


def _head(fields: Fields, narrow: int) -> Dense:
    tied = fields.flag("tie_word_embeddings")
    return Dense("head", narrow, fields.whole("vocab_size"), bias=True, tied=tied)


def _encoder(
    prefix: str,
    defaults: Mapping[str, Any],
    row: EncoderRow,
    *,
    pretraining: bool = False,
    spellings: Mapping[str, tuple[str, ...]] | None = None,
) -> Adapter:
    classes: dict[str, Reader] = {
        f"{prefix}Model": partial(encoder, row=row, purpose="bare"),
        f"{prefix}ForMaskedLM": partial(encoder, row=row, purpose="masked"),
    }
    if pretraining:
        classes[f"{prefix}ForPreTraining"] = partial(encoder, row=row, purpose="pretraining")
    return Adapter(classes, f"{prefix}Model", defaults, spellings or {})


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
