"""Encoder–decoders of the BART family and Whisper: biases, norms with shifts, two towers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnviz.designs import Buffer, Dense, Design, LayerGroup, Norm, Part, StackDesign, Table
from attnviz.models.config_design.blocks import (
    block,
    layer_norm,
    plain_feed_forward,
    square_attention,
    tables,
)
from attnviz.models.config_design.fields import Fields, UnclaimedError

__all__ = ["BartRow", "bart", "whisper"]

Purpose = Literal["bare", "generating"]
Side = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class BartRow:
    """How a model differs from BART.

    positions: rows of the position tables beyond the longest sequence; None without a table.
    first_norm, final_norm: a norm behind the embeddings, and behind the last layer.
    logits_buffer: the generating class stores a bias of the logits that is not trained.
    """

    positions: int | None = 0
    first_norm: bool = False
    final_norm: bool = True
    logits_buffer: bool = True


def bart(fields: Fields, row: BartRow, purpose: Purpose) -> Design:
    """The design of both towers, which share one token table with the head."""
    width, vocab = fields.whole("d_model"), fields.whole("vocab_size")
    separate = fields.get("share_encoder_decoder_embeddings") is False
    other_vocab = fields.get("decoder_vocab_size") not in (None, vocab)
    if separate or other_vocab or not fields.flag("tie_word_embeddings"):
        raise UnclaimedError
    head = Dense("head", width, vocab, tied=True) if purpose == "generating" else None
    buffers = (Buffer("logits bias", vocab),) if head and row.logits_buffer else ()
    limit = fields.whole("max_position_embeddings")
    rows = None if row.positions is None else limit + row.positions
    return Design(
        name=fields.name,
        source="",
        embeddings=tables(vocab, width),
        stacks=(
            _tower(fields, row, "encoder", rows, limit),
            _tower(fields, row, "decoder", rows, limit, head, buffers),
        ),
    )


def _tower(
    fields: Fields,
    row: BartRow,
    side: Side,
    rows: int | None,
    limit: int,
    head: Dense | None = None,
    buffers: tuple[Buffer, ...] = (),
) -> StackDesign:
    width = fields.whole("d_model")
    norms = [layer_norm("embedding norm", width)] if row.first_norm else []
    norms += [layer_norm("final norm", width)] if row.final_norm else []
    return StackDesign(
        name=side,
        groups=(_layers(fields, side),),
        causal=side == "decoder",
        embeddings=() if rows is None else (Table("position embedding", rows, width),),
        norms=tuple(norms),
        head=head,
        max_positions=limit,
        reads="source" if side == "encoder" else "target",
        buffers=buffers,
    )


def _layers(fields: Fields, side: Side, key_bias: bool | None = None) -> LayerGroup:
    width, heads = fields.whole("d_model"), fields.whole(f"{side}_attention_heads")
    own = square_attention(fields, width, heads, key_bias=key_bias)
    inner = plain_feed_forward(width, fields.whole(f"{side}_ffn_dim"))
    if side == "encoder":
        layer = block(own, feed_forward=inner, norms=2)
    else:
        cross = square_attention(fields, width, heads, key_bias=key_bias, source_width=width)
        layer = block(own, cross, feed_forward=inner, norms=3)
    return LayerGroup(layer, fields.whole(f"{side}_layers"))


def whisper(fields: Fields, purpose: Purpose) -> Design:
    """Whisper: two convolutions halve the frames of a log-mel spectrogram (Radford et al. 2022).

    Keys have no bias; the encoder's sinusoids are stored as a table that is counted.
    """
    width, vocab = fields.whole("d_model"), fields.whole("vocab_size")
    frames, target = fields.whole("max_source_positions"), fields.whole("max_target_positions")
    mel = fields.whole("num_mel_bins")
    final: tuple[Norm, ...] = (layer_norm("final norm", width),)
    listening: tuple[Part, ...] = (
        Dense("convolution 1", 3 * mel, width, bias=True, places=2 * frames),
        Dense("convolution 2", 3 * width, width, bias=True, places=frames),
        Table("position embedding", frames, width),
    )
    tied = fields.flag("tie_word_embeddings")
    head = Dense("head", width, vocab, tied=tied) if purpose == "generating" else None
    return Design(
        name=fields.name,
        source="",
        stacks=(
            StackDesign(
                name="encoder",
                groups=(_layers(fields, "encoder", key_bias=False),),
                causal=False,
                embeddings=listening,
                norms=final,
                tokens=frames,
                max_positions=frames,
                reads="source",
            ),
            StackDesign(
                name="decoder",
                groups=(_layers(fields, "decoder", key_bias=False),),
                embeddings=tables(vocab, width, target),
                norms=final,
                head=head,
                max_positions=target,
            ),
        ),
    )
