"""Turns the configs of encoders of texts and images, and of encoder–decoders, into specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

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


def read_encoder(
    fields: Fields,
    *,
    purpose: Literal["bare", "masked", "pretraining"],
    pooled: bool = True,
    types: bool = True,
    narrow: bool = False,
    always_widened: bool = False,
    shared: bool = False,
    spare_bias: bool = True,
) -> specs.ModelSpec:
    """Return the spec of an encoder: bare, with its masked head, or with both trained heads.

    The switches say how its family differs from BERT.
    pooled: whether the bare model has a pooler. types: whether it has a table of segment types.
    narrow: whether the embedding tables may have another width than the model; then a matrix
        follows them. always_widened: whether that matrix is there even if the widths are equal.
    shared: whether all layers have the same parameters (Lan et al. 2020).
    spare_bias: whether an untied masked head has a second bias, which a tied head does without.
    """
    if fields.flag("add_cross_attention") or fields.flag("is_decoder"):
        raise UnclaimedError
    width, heads = fields.wholes("hidden_size", "num_attention_heads")
    if shared and fields.wholes("num_hidden_groups", "inner_group_num") != [1, 1]:
        raise UnclaimedError
    attention = square_attention(fields, width, heads)
    layer = layer_of(attention, inner=fields.whole("intermediate_size"))
    columns = fields.whole("embedding_size") if narrow else width
    positions, vocab = fields.wholes("max_position_embeddings", "vocab_size")
    rows = {"token embedding": vocab, "position embedding": positions}
    if types and (kinds := fields.whole("type_vocab_size", least=0)):
        rows["type embedding"] = kinds
    embeddings: list[specs.Part] = [
        specs.LookupTable(label, many, columns) for label, many in rows.items()
    ]
    if narrow and (always_widened or columns != width):
        embeddings.append(specs.Dense("embedding projection", columns, width, bias=True))
    ends: list[specs.Part] = []
    if pooled and purpose != "masked":
        ends.append(specs.Dense("pooler", width, width, bias=True, places=1))
    if purpose != "bare":
        ends += (
            specs.Dense("masked head", width, columns, bias=True),
            norm_of("masked head norm", columns),
        )
        if spare_bias and not fields.flag("tie_word_embeddings"):
            ends.append(specs.LookupTable("second head bias", 1, vocab))
    if purpose == "pretraining":
        ends.append(specs.Dense("next-sentence head", width, 2, bias=True, places=1))
    stack = specs.StackSpec(
        name="encoder",
        groups=(specs.LayerGroup(layer, fields.whole("num_hidden_layers"), shared=shared),),
        causal=False,
        embeddings=tuple(embeddings),
        norms=(norm_of("embedding norm", columns),),
        parts=tuple(ends),
        head=None if purpose == "bare" else head_of(fields, columns, bias=True),
        max_positions=positions,
    )
    return specs.ModelSpec(fields.name, "", (stack,))


def read_vision(
    fields: Fields,
    *,
    purpose: Literal["bare", "classifying"],
    tokens: Sequence[str] = ("class token",),
    mask_token: bool = False,
    scaled: bool = False,
    ratio: bool = False,
    pooled: bool = True,
) -> specs.ModelSpec:
    """Return the spec of a vision transformer, bare or with a classifier.

    The switches say how its family differs from ViT. tokens: the names of learned vectors before
    the patches; each has a row in the position table. mask_token: whether a vector can take the
    place of hidden patches, if the config asks for it. scaled: whether learned scales follow the
    attention and the feed-forward part. ratio: whether the inner width is given as a multiple of
    the model's. pooled: whether the bare model has a pooler.
    """
    width, heads = fields.wholes("hidden_size", "num_attention_heads")
    sizes = [fields.get(key) for key in ("image_size", "patch_size")]
    if fields.flag("use_swiglu_ffn") or not all(isinstance(size, int) for size in sizes):
        raise UnclaimedError
    attention = square_attention(fields, width, heads, bias=fields.flag("qkv_bias"))
    scales = [specs.LookupTable(f"scale {n}", 1, width) for n in (1, 2)] * scaled
    inner = int(width * fields.get("mlp_ratio")) if ratio else fields.whole("intermediate_size")
    layer = layer_of(attention._replace(output_bias=True), inner=inner, parts=tuple(scales))
    image, patch, channels = fields.wholes("image_size", "patch_size", "num_channels")
    patches = (image // patch) ** 2
    length = patches + len(tokens)
    learned = [*tokens, *["mask token"] * (mask_token and fields.flag("use_mask_token"))]
    end, outwards = "pooler", 0
    if purpose == "classifying":
        end, labels = "classifier", fields.get("id2label")
        outwards = fields.whole("num_labels", 0) if not isinstance(labels, dict) else len(labels)
    elif pooled:
        outwards = fields.optional("pooler_output_size") or width
    stack = specs.StackSpec(
        name="vision",
        groups=(specs.LayerGroup(layer, fields.whole("num_hidden_layers")),),
        causal=False,
        embeddings=(
            specs.Dense("patch embedding", channels * patch**2, width, bias=True, places=patches),
            specs.LookupTable("position embedding", length, width),
            *(specs.LookupTable(label, 1, width) for label in learned),
        ),
        norms=(norm_of("final norm", width),),
        parts=(specs.Dense(end, width, outwards, bias=True, places=1),) * bool(outwards),
        tokens=length,
        max_positions=length,
    )
    return specs.ModelSpec(fields.name, "", (stack,))


def read_bart(
    fields: Fields,
    *,
    purpose: Purpose,
    position_table: bool = True,
    spare_positions: int = 0,
    first_norm: bool = False,
    final_norm: bool = True,
    logits_buffer: bool = True,
) -> specs.ModelSpec:
    """Return the spec of encoder and decoder, which share one token table with the head.

    The switches say how its family differs from BART. position_table: whether positions have a
    table; it has ``spare_positions`` rows beyond the longest text. first_norm, final_norm: whether
    a norm follows the embeddings, and the last layer. logits_buffer: whether the class with the LM
    head stores a bias of the logits that is not trained.
    """
    width, vocab = fields.wholes("d_model", "vocab_size")
    separate = fields.get("share_encoder_decoder_embeddings") is False
    other_vocab = fields.get("decoder_vocab_size") not in (None, vocab)
    if separate or other_vocab or not fields.flag("tie_word_embeddings"):
        raise UnclaimedError
    limit, ends = fields.whole("max_position_embeddings"), purpose == "generating"
    positions = specs.LookupTable("position embedding", limit + spare_positions, width)
    norms = ("embedding norm",) * first_norm + ("final norm",) * final_norm
    encoder = specs.StackSpec(
        name="encoder",
        groups=(_bart_layers(fields, "encoder"),),
        causal=False,
        embeddings=(positions,) * position_table,
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
        buffers=(("logits bias", vocab),) * (ends and logits_buffer),
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
