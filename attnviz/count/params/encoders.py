"""Turns the configs of encoders of texts and images, and of encoder–decoders, into specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from attnviz.count.params import specs
from attnviz.count.params.decoders import (
    MOST_LAYERS,
    Fields,
    Purpose,
    UnclaimedError,
    head_of,
    layer_of,
    norm_of,
    square_attention,
)


class EncoderFamily(NamedTuple):
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


def read_encoder(
    fields: Fields, *, purpose: Literal["bare", "masked", "pretraining"], **switches: Any
) -> specs.ModelSpec:
    """Return the spec of an encoder: bare, with its masked head, or with both trained heads."""
    row = EncoderFamily(**switches)
    if fields.flag("add_cross_attention") or fields.flag("is_decoder"):
        raise UnclaimedError
    width, heads = fields.wholes("hidden_size", "num_attention_heads")
    if row.shared and fields.wholes("num_hidden_groups", "inner_group_num") != [1, 1]:
        raise UnclaimedError
    attention = square_attention(fields, width, heads)
    layer = layer_of(attention, inner=fields.whole("intermediate_size"))
    narrow = fields.whole("embedding_size") if row.narrow else width
    positions, vocab = fields.wholes("max_position_embeddings", "vocab_size")
    rows = {"token embedding": vocab, "position embedding": positions}
    if row.types and (types := fields.whole("type_vocab_size", least=0)):
        rows["type embedding"] = types
    embeddings: list[specs.Part] = [
        specs.LookupTable(label, many, narrow) for label, many in rows.items()
    ]
    if row.narrow and (row.always_widened or narrow != width):
        embeddings.append(specs.Dense("embedding projection", narrow, width, bias=True))
    ends: list[specs.Part] = []
    if row.pooled and purpose != "masked":
        ends.append(specs.Dense("pooler", width, width, bias=True, places=1))
    if purpose != "bare":
        ends += (
            specs.Dense("masked head", width, narrow, bias=True),
            norm_of("masked head norm", narrow),
        )
        if row.spare_bias and not fields.flag("tie_word_embeddings"):
            ends.append(specs.LookupTable("second head bias", 1, vocab))
    if purpose == "pretraining":
        ends.append(specs.Dense("next-sentence head", width, 2, bias=True, places=1))
    stack = specs.StackSpec(
        name="encoder",
        groups=(specs.LayerGroup(layer, fields.whole("num_hidden_layers"), shared=row.shared),),
        causal=False,
        embeddings=tuple(embeddings),
        norms=(norm_of("embedding norm", narrow),),
        parts=tuple(ends),
        head=None if purpose == "bare" else head_of(fields, narrow, bias=True),
        max_positions=positions,
    )
    return specs.ModelSpec(fields.name, "", (stack,))


class VisionFamily(NamedTuple):
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


def read_vision(
    fields: Fields, *, purpose: Literal["bare", "classifying"], **switches: Any
) -> specs.ModelSpec:
    """Return the spec of a vision transformer, bare or with a classifier."""
    row = VisionFamily(**switches)
    width, heads = fields.wholes("hidden_size", "num_attention_heads")
    sizes = [fields.get(key) for key in ("image_size", "patch_size")]
    if fields.flag("use_swiglu_ffn") or not all(isinstance(size, int) for size in sizes):
        raise UnclaimedError
    attention = square_attention(fields, width, heads, bias=fields.flag("qkv_bias"))
    scales = [specs.LookupTable(f"scale {n}", 1, width) for n in (1, 2)] * row.scaled
    inner = int(width * fields.get("mlp_ratio")) if row.ratio else fields.whole("intermediate_size")
    layer = layer_of(attention._replace(output_bias=True), inner=inner, parts=tuple(scales))
    image, patch, channels = fields.wholes("image_size", "patch_size", "num_channels")
    patches = (image // patch) ** 2
    tokens = patches + len(row.tokens)
    learned = [*row.tokens, *["mask token"] * (row.mask_token and fields.flag("use_mask_token"))]
    end, outwards = "pooler", 0
    if purpose == "classifying":
        end, labels = "classifier", fields.get("id2label")
        outwards = fields.whole("num_labels", 0) if not isinstance(labels, dict) else len(labels)
    elif row.pooled:
        outwards = fields.optional("pooler_output_size") or width
    stack = specs.StackSpec(
        name="vision",
        groups=(specs.LayerGroup(layer, fields.whole("num_hidden_layers")),),
        causal=False,
        embeddings=(
            specs.Dense("patch embedding", channels * patch**2, width, bias=True, places=patches),
            specs.LookupTable("position embedding", tokens, width),
            *(specs.LookupTable(label, 1, width) for label in learned),
        ),
        norms=(norm_of("final norm", width),),
        parts=(specs.Dense(end, width, outwards, bias=True, places=1),) * bool(outwards),
        tokens=tokens,
        max_positions=tokens,
    )
    return specs.ModelSpec(fields.name, "", (stack,))


# Encoder–decoders: BART, Whisper, T5 ----------------------------------------------------------


class BartFamily(NamedTuple):
    """The switches by which a family of encoder–decoders differs from BART.

    position_table: whether positions have a table; it has ``spare_positions`` rows beyond the
        longest text.
    first_norm, final_norm: whether a norm follows the embeddings, and the last layer.
    logits_buffer: whether the class with the LM head stores a bias of the logits that is not
        trained.
    """

    position_table: bool = True
    spare_positions: int = 0
    first_norm: bool = False
    final_norm: bool = True
    logits_buffer: bool = True


def read_bart(fields: Fields, *, purpose: Purpose, **switches: Any) -> specs.ModelSpec:
    """Return the spec of encoder and decoder, which share one token table with the head."""
    row = BartFamily(**switches)
    width, vocab = fields.wholes("d_model", "vocab_size")
    separate = fields.get("share_encoder_decoder_embeddings") is False
    other_vocab = fields.get("decoder_vocab_size") not in (None, vocab)
    if separate or other_vocab or not fields.flag("tie_word_embeddings"):
        raise UnclaimedError
    limit, ends = fields.whole("max_position_embeddings"), purpose == "generating"
    positions = specs.LookupTable("position embedding", limit + row.spare_positions, width)
    norms = ("embedding norm",) * row.first_norm + ("final norm",) * row.final_norm
    encoder = specs.StackSpec(
        name="encoder",
        groups=(_bart_layers(fields, "encoder"),),
        causal=False,
        embeddings=(positions,) * row.position_table,
        norms=tuple(norm_of(label, width) for label in norms),
        max_positions=limit,
        reads="source",
    )
    decoder = encoder._replace(
        name="decoder",
        groups=(_bart_layers(fields, "decoder"),),
        causal=True,
        head=specs.Dense("head", width, vocab, tied=True) if ends else None,
        reads="target",
        buffers=(("logits bias", vocab),) * (ends and row.logits_buffer),
    )
    tokens = specs.LookupTable("token embedding", vocab, width)
    return specs.ModelSpec(fields.name, "", (encoder, decoder), (tokens,))


def _bart_layers(fields: Fields, side: str, key_bias: bool = True) -> specs.LayerGroup:
    width, heads = fields.wholes("d_model", f"{side}_attention_heads")
    attention = square_attention(fields, width, heads)._replace(key_bias=key_bias)
    attentions = _with_cross(attention, side)
    inner = fields.whole(f"{side}_ffn_dim")
    layer = layer_of(*attentions, inner=inner, norms=len(attentions) + 1)
    return specs.LayerGroup(layer, fields.whole(f"{side}_layers"))


def _with_cross(attention: specs.AttentionSpec, side: str) -> list[specs.AttentionSpec]:
    """Return the attentions of a layer: a decoder has one over the encoder's output too."""
    cross = attention._replace(cross=True, source_width=attention.d_model, parts=())
    return [attention, *[cross] * (side == "decoder")]


def read_whisper(fields: Fields, *, purpose: Purpose) -> specs.ModelSpec:
    """Return the spec of Whisper (Radford et al. 2022).

    Two convolutions halve the time steps of a log-mel spectrogram. Keys have no bias; the encoder's
    sinusoids are stored as a table that is counted.
    """
    width, vocab, mel = fields.wholes("d_model", "vocab_size", "num_mel_bins")
    frames, target = fields.wholes("max_source_positions", "max_target_positions")
    encoder = specs.StackSpec(
        name="encoder",
        groups=(_bart_layers(fields, "encoder", key_bias=False),),
        causal=False,
        embeddings=(
            specs.Dense("convolution 1", 3 * mel, width, bias=True, places=2 * frames),
            specs.Dense("convolution 2", 3 * width, width, bias=True, places=frames),
            specs.LookupTable("position embedding", frames, width),
        ),
        norms=(norm_of("final norm", width),),
        tokens=frames,
        max_positions=frames,
        reads="source",
    )
    rows = {"token embedding": vocab, "position embedding": target}
    decoder = specs.StackSpec(
        name="decoder",
        groups=(_bart_layers(fields, "decoder", key_bias=False),),
        embeddings=tuple(specs.LookupTable(label, many, width) for label, many in rows.items()),
        norms=encoder.norms,
        head=head_of(fields, width) if purpose == "generating" else None,
        max_positions=target,
    )
    return specs.ModelSpec(fields.name, "", (encoder, decoder))


def read_t5(
    fields: Fields,
    *,
    purpose: Literal["bare", "generating", "encoder"],
    biased_layers: bool = False,
) -> specs.ModelSpec:
    """Return the spec of encoder and decoder, or of the encoder alone.

    biased_layers: True if each layer has a table of position biases (UMT5), not the first alone.
    """
    vocab, width, layers = fields.wholes("vocab_size", "d_model", "num_layers")
    encoder = specs.StackSpec(
        name="encoder",
        groups=_t5_groups(fields, "encoder", layers, biased_layers),
        causal=False,
        norms=(specs.Norm("final norm", width),),
        reads="target" if purpose == "encoder" else "source",
    )
    stacks = [encoder]
    if purpose != "encoder":
        layers = fields.optional("num_decoder_layers") or layers
        decoder = specs.StackSpec(
            name="decoder",
            groups=_t5_groups(fields, "decoder", layers, biased_layers),
            norms=encoder.norms,
            head=specs.Dense("head", width, vocab, tied=True) if purpose == "generating" else None,
        )
        stacks.append(decoder)
    tokens = specs.LookupTable("token embedding", vocab, width)
    return specs.ModelSpec(fields.name, "", tuple(stacks), (tokens,))


def _t5_groups(
    fields: Fields, side: str, layers: int, biased_layers: bool
) -> tuple[specs.LayerGroup, ...]:
    width, heads, dim = fields.wholes("d_model", "num_heads", "d_kv")
    buckets, kind = fields.whole("relative_attention_num_buckets"), fields.get("feed_forward_proj")
    if not isinstance(kind, str):
        raise UnclaimedError
    stored = fields.get("is_gated_act")  # where it is there, the library takes it
    gated = kind.split("-")[0] == "gated" if stored is None else bool(stored)
    plain = specs.AttentionSpec(width, heads, heads, dim, dim)
    biased = plain._replace(parts=(specs.LookupTable("relative positions", buckets, heads),))
    inner = specs.FeedForwardSpec(width, fields.whole("d_ff"), gated)
    first, later = (
        layer_of(
            *_with_cross(own, side), feed_forward=inner, norms=2 + (side == "decoder"), norm="rms"
        )
        for own in (biased, plain)
    )
    if biased_layers or layers == 1:
        return (specs.LayerGroup(first, layers),)
    rest = tuple(range(1, layers)) if layers <= MOST_LAYERS else None
    return specs.LayerGroup(first, 1, (0,)), specs.LayerGroup(later, layers - 1, rest)
