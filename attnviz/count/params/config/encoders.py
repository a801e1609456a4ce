"""Turns the configs of encoders of texts and images into specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from attnviz.count.params.config import adapter
from attnviz.count.params.specs import Dense, LayerGroup, LookupTable, ModelSpec, Part, StackSpec

_Purpose = Literal["bare", "masked", "pretraining"]


class _Row(NamedTuple):
    """The switches by which a family of encoders differs from BERT.

    pooled: whether the bare model has a pooler. types: whether it has a table of segment types.
    narrow: whether the embedding tables may have another width than the model; then a matrix
        follows them. always_widened: whether that matrix is there even if the widths are equal.
    shared: whether all layers have the same parameters (Lan et al. 2020).
    spare_bias: whether an untied masked head has a second bias, which a tied head does without.
    """

    pooled: bool = True
    types: bool = True
    narrow: bool = False
    always_widened: bool = False
    shared: bool = False
    spare_bias: bool = True


def _read_encoder(fields: adapter.Fields, *, purpose: _Purpose, **switches: Any) -> ModelSpec:
    """Return the spec of an encoder alone, with its masked head, or with both pre-training heads.

    fields: of the config. purpose: which of these. switches: the fields of ``_Row``.
    """
    row = _Row(**switches)
    if fields.flag("add_cross_attention") or fields.flag("is_decoder"):
        raise adapter.UnclaimedError
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    if row.shared and (fields.whole("num_hidden_groups"), fields.whole("inner_group_num")) != (
        1,
        1,
    ):
        raise adapter.UnclaimedError
    layer = adapter.block(
        adapter.square_attention(fields, width, heads),
        feed_forward=adapter.plain_feed_forward(width, fields.whole("intermediate_size")),
        norms=2,
    )
    narrow = fields.whole("embedding_size") if row.narrow else width
    pooled = row.pooled and purpose != "masked"
    next_sentence = Dense("next-sentence head", width, 2, bias=True, places=1)
    stack = StackSpec(
        name="encoder",
        groups=(LayerGroup(layer, fields.whole("num_hidden_layers"), shared=row.shared),),
        causal=False,
        embeddings=_token_tables(fields, row, narrow, width),
        norms=(adapter.layer_norm("embedding norm", narrow),),
        parts=(
            *((Dense("pooler", width, width, bias=True, places=1),) if pooled else ()),
            *(() if purpose == "bare" else _transform(fields, row, width, narrow)),
            *((next_sentence,) if purpose == "pretraining" else ()),
        ),
        head=None if purpose == "bare" else adapter.head(fields, narrow, bias=True),
        max_positions=fields.whole("max_position_embeddings"),
    )
    return adapter.model(fields, stack)


def _token_tables(fields: adapter.Fields, row: _Row, narrow: int, width: int) -> tuple[Part, ...]:
    positions = fields.whole("max_position_embeddings")
    made: list[Part] = [*adapter.tables(fields.whole("vocab_size"), narrow, positions)]
    types = fields.whole("type_vocab_size", least=0) if row.types else 0
    if types:
        made.append(LookupTable("type embedding", types, narrow))
    if row.narrow and (row.always_widened or narrow != width):
        made.append(Dense("embedding projection", narrow, width, bias=True))
    return tuple(made)


def _transform(fields: adapter.Fields, row: _Row, width: int, narrow: int) -> tuple[Part, ...]:
    parts = (
        Dense("masked head", width, narrow, bias=True),
        adapter.layer_norm("masked head norm", narrow),
    )
    if fields.flag("tie_word_embeddings") or not row.spare_bias:
        return parts
    return (*parts, LookupTable("second head bias", 1, fields.whole("vocab_size")))


class _VisionRow(NamedTuple):
    """The switches by which a family of vision transformers differs from ViT.

    tokens: the names of learned vectors before the patches; each has a row in the position table.
    mask_token: whether a vector can take the place of hidden patches, if the config asks for it.
    scaled: whether learned scales follow the attention and the feed-forward part.
    ratio: whether the inner width is given as a multiple of the model's.
    pooled: whether the bare model has a pooler.
    """

    tokens: Sequence[str] = ("class token",)
    mask_token: bool = False
    scaled: bool = False
    ratio: bool = False
    pooled: bool = True


def _read_vision(
    fields: adapter.Fields, *, purpose: Literal["bare", "classifying"], **switches: Any
) -> ModelSpec:
    """Return the spec of a vision transformer, bare or with a classifier."""
    row = _VisionRow(**switches)
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    if fields.flag("use_swiglu_ffn"):
        raise adapter.UnclaimedError
    scales = tuple(LookupTable(f"scale {n}", 1, width) for n in (1, 2)) if row.scaled else ()
    attention = adapter.square_attention(fields, width, heads, bias=fields.flag("qkv_bias"))
    layer = adapter.block(
        attention._replace(output_bias=True),
        feed_forward=adapter.plain_feed_forward(width, _inner_width(fields, row, width)),
        norms=2,
        parts=scales,
    )
    patches = _patches(fields)
    tokens = patches + len(row.tokens)
    stack = StackSpec(
        name="vision",
        groups=(LayerGroup(layer, fields.whole("num_hidden_layers")),),
        causal=False,
        embeddings=_patch_embeddings(fields, row, width, patches, tokens),
        norms=(adapter.layer_norm("final norm", width),),
        parts=_ends(fields, row, width, purpose),
        tokens=tokens,
        max_positions=tokens,
    )
    return adapter.model(fields, stack)


def _inner_width(fields: adapter.Fields, row: _VisionRow, width: int) -> int:
    if not row.ratio:
        return fields.whole("intermediate_size")
    ratio = fields.get("mlp_ratio")
    return int(width * ratio)


def _patches(fields: adapter.Fields) -> int:
    image, patch = fields.get("image_size"), fields.get("patch_size")
    if not isinstance(image, int) or not isinstance(patch, int):
        raise adapter.UnclaimedError
    return (fields.whole("image_size") // fields.whole("patch_size")) ** 2


def _patch_embeddings(
    fields: adapter.Fields, row: _VisionRow, width: int, patches: int, tokens: int
) -> tuple[Part, ...]:
    area = fields.whole("num_channels") * fields.whole("patch_size") ** 2
    learned = [*row.tokens]
    if row.mask_token and fields.flag("use_mask_token"):
        learned.append("mask token")
    return (
        Dense("patch embedding", area, width, bias=True, places=patches),
        LookupTable("position embedding", tokens, width),
        *(LookupTable(label, 1, width) for label in learned),
    )


def _ends(
    fields: adapter.Fields, row: _VisionRow, width: int, purpose: Literal["bare", "classifying"]
) -> tuple[Part, ...]:
    if purpose == "classifying":
        given = fields.get("id2label")
        labels = len(given) if isinstance(given, dict) else fields.whole("num_labels", least=0)
        return (Dense("classifier", width, labels, bias=True, places=1),) if labels else ()
    if not row.pooled:
        return ()
    outwards = fields.optional("pooler_output_size") or width
    return (Dense("pooler", width, outwards, bias=True, places=1),)


READERS: dict[str, adapter.Reader] = {"encoder": _read_encoder, "vision": _read_vision}
