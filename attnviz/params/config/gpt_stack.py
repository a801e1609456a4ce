"""What the decoders of the GPT-2 generation share: one stack, its tables, its last norm, a head."""

from __future__ import annotations

from attnviz.params.config.blocks import layer_norm, tables
from attnviz.params.config.fields import Fields
from attnviz.params.specs import Dense, LayerGroup, ModelSpec, Norm, StackSpec

__all__ = ["head", "shape", "stacked"]


def shape(fields: Fields) -> tuple[int, int, int]:
    """Width, heads and layers."""
    return (
        fields.whole("hidden_size"),
        fields.whole("num_attention_heads"),
        fields.whole("num_hidden_layers"),
    )


def stacked(
    fields: Fields,
    groups: tuple[LayerGroup, ...],
    *,
    with_head: bool,
    table: int | None = None,
    norms: tuple[Norm, ...] = (),
    head_bias: bool = False,
    limited: bool = True,
    final: Norm | None = None,
) -> ModelSpec:
    """A decoder of these layers.

    table: rows of its position table; None without one.
    norms: what stands behind the token table.
    limited: whether its positions end.
    final: the norm behind the last layer; None for a layer norm.
    """
    width = groups[0].layer.attentions[0].d_model
    stack = StackSpec(
        name="decoder",
        groups=groups,
        embeddings=tables(fields.whole("vocab_size"), width, table),
        norms=(*norms, final or layer_norm("final norm", width)),
        head=head(fields, width, head_bias) if with_head else None,
        max_positions=fields.optional("max_position_embeddings") if limited else None,
    )
    return ModelSpec(name=fields.name, source="", stacks=(stack,))


def head(fields: Fields, width: int, bias: bool = False) -> Dense:
    """The matrix onto the vocabulary, tied or not."""
    vocab, tied = fields.whole("vocab_size"), fields.flag("tie_word_embeddings")
    return Dense("head", width, vocab, bias=bias, tied=tied)
