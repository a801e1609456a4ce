"""Turns the configs of encoder–decoders (T5, BART and their kin) into specs."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from attnviz.count.params import specs
from attnviz.count.params.config import adapter

_Purpose = Literal["bare", "generating"]
_Side = Literal["encoder", "decoder"]


class _BartRow(NamedTuple):
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


def _read_bart(fields: adapter.Fields, *, purpose: _Purpose, **switches: Any) -> specs.ModelSpec:
    """Return the spec of encoder and decoder, which share one token table with the head."""
    row = _BartRow(**switches)
    width, vocab = fields.whole("d_model"), fields.whole("vocab_size")
    separate = fields.get("share_encoder_decoder_embeddings") is False
    other_vocab = fields.get("decoder_vocab_size") not in (None, vocab)
    if separate or other_vocab or not fields.flag("tie_word_embeddings"):
        raise adapter.UnclaimedError
    ending = specs.Dense("head", width, vocab, tied=True) if purpose == "generating" else None
    buffers = (specs.Buffer("logits bias", vocab),) if ending and row.logits_buffer else ()
    limit = fields.whole("max_position_embeddings")
    rows = limit + row.spare_positions if row.position_table else None
    return adapter.model(
        fields,
        _bart_stack(fields, row, "encoder", rows, limit),
        _bart_stack(
            fields, row, side="decoder", rows=rows, limit=limit, ending=ending, buffers=buffers
        ),
        embeddings=adapter.tables(vocab, width),
    )


def _bart_stack(
    fields: adapter.Fields,
    row: _BartRow,
    side: _Side,
    rows: int | None,
    limit: int,
    ending: specs.Dense | None = None,
    buffers: tuple[specs.Buffer, ...] = (),
) -> specs.StackSpec:
    width = fields.whole("d_model")
    norms = [adapter.layer_norm("embedding norm", width)] if row.first_norm else []
    norms += [adapter.layer_norm("final norm", width)] if row.final_norm else []
    return specs.StackSpec(
        name=side,
        groups=(_layers(fields, side),),
        causal=side == "decoder",
        embeddings=() if rows is None else (specs.LookupTable("position embedding", rows, width),),
        norms=tuple(norms),
        head=ending,
        max_positions=limit,
        reads="source" if side == "encoder" else "target",
        buffers=buffers,
    )


def _layers(fields: adapter.Fields, side: _Side, key_bias: bool = True) -> specs.LayerGroup:
    width, heads = fields.whole("d_model"), fields.whole(f"{side}_attention_heads")
    attentions = [adapter.square_attention(fields, width, heads)._replace(key_bias=key_bias)]
    if side == "decoder":
        attentions.append(attentions[0]._replace(cross=True, source_width=width))
    inner = adapter.plain_feed_forward(width, fields.whole(f"{side}_ffn_dim"))
    layer = adapter.block(*attentions, feed_forward=inner, norms=len(attentions) + 1)
    return specs.LayerGroup(layer, fields.whole(f"{side}_layers"))


def _read_whisper(fields: adapter.Fields, *, purpose: _Purpose) -> specs.ModelSpec:
    """Return the spec of Whisper (Radford et al. 2022).

    Two convolutions halve the time steps of a log-mel spectrogram. Keys have no bias; the encoder's
    sinusoids are stored as a table that is counted.
    purpose: which head follows.
    """
    width, vocab = fields.whole("d_model"), fields.whole("vocab_size")
    frames, target = fields.whole("max_source_positions"), fields.whole("max_target_positions")
    mel = fields.whole("num_mel_bins")
    final: tuple[specs.Norm, ...] = (adapter.layer_norm("final norm", width),)
    listening: tuple[specs.Part, ...] = (
        specs.Dense("convolution 1", 3 * mel, width, bias=True, places=2 * frames),
        specs.Dense("convolution 2", 3 * width, width, bias=True, places=frames),
        specs.LookupTable("position embedding", frames, width),
    )
    return adapter.model(
        fields,
        specs.StackSpec(
            name="encoder",
            groups=(_layers(fields, "encoder", key_bias=False),),
            causal=False,
            embeddings=listening,
            norms=final,
            tokens=frames,
            max_positions=frames,
            reads="source",
        ),
        specs.StackSpec(
            name="decoder",
            groups=(_layers(fields, "decoder", key_bias=False),),
            embeddings=adapter.tables(vocab, width, target),
            norms=final,
            head=adapter.head(fields, width) if purpose == "generating" else None,
            max_positions=target,
        ),
    )


def _read_t5(
    fields: adapter.Fields,
    *,
    purpose: Literal["bare", "generating", "encoder"],
    biased_layers: bool = False,
) -> specs.ModelSpec:
    """Return the spec of encoder and decoder, or of the encoder alone.

    fields: of the config. purpose: which of these, and which head follows.
    biased_layers: True if each layer has a table of position biases (UMT5), not the first alone.
    """
    vocab = fields.whole("vocab_size")
    stacks = [_t5_stack(fields, "encoder", biased_layers)]
    if purpose == "encoder":
        stacks = [stacks[0]._replace(reads="target")]
    else:
        stacks.append(_t5_stack(fields, "decoder", biased_layers))
    if purpose == "generating":
        tied = specs.Dense("head", fields.whole("d_model"), vocab, tied=True)
        stacks[-1] = stacks[-1]._replace(head=tied)
    return adapter.model(fields, *stacks, embeddings=adapter.tables(vocab, fields.whole("d_model")))


def _t5_stack(fields: adapter.Fields, side: _Side, biased_layers: bool) -> specs.StackSpec:
    layers = fields.whole("num_layers")
    if side == "decoder":
        layers = fields.optional("num_decoder_layers") or layers
    first = _t5_layer(fields, side, biased=True)
    if biased_layers or layers == 1:
        groups: tuple[specs.LayerGroup, ...] = (specs.LayerGroup(first, layers),)
    else:
        later = _t5_layer(fields, side, biased=False)
        rest = tuple(range(1, layers)) if layers <= adapter.MOST_LAYERS else None
        groups = (specs.LayerGroup(first, 1, (0,)), specs.LayerGroup(later, layers - 1, rest))
    return specs.StackSpec(
        name=side,
        groups=groups,
        causal=side == "decoder",
        norms=(specs.Norm("final norm", fields.whole("d_model")),),
        reads="source" if side == "encoder" else "target",
    )


def _t5_layer(fields: adapter.Fields, side: _Side, *, biased: bool) -> specs.LayerSpec:
    width, heads, dim = (fields.whole(key) for key in ("d_model", "num_heads", "d_kv"))
    biases = specs.LookupTable(
        "relative positions", fields.whole("relative_attention_num_buckets"), heads
    )
    plain = specs.AttentionSpec(width, heads, heads, dim, dim)
    attentions = [plain._replace(parts=(biases,)) if biased else plain]
    if side == "decoder":
        attentions.append(plain._replace(cross=True, source_width=width))
    kind = fields.get("feed_forward_proj")
    if not isinstance(kind, str):
        raise adapter.UnclaimedError
    stored = fields.get("is_gated_act")  # where it is there, the library takes it
    gated = kind.split("-")[0] == "gated" if stored is None else bool(stored)
    inner = specs.FeedForwardSpec(
        width, fields.whole("d_ff"), gated, activation=kind.split("-")[-1]
    )
    return adapter.block(*attentions, feed_forward=inner, norms=len(attentions) + 1, shift=False)


READERS: dict[str, adapter.Reader] = {"t5": _read_t5, "bart": _read_bart, "whisper": _read_whisper}
