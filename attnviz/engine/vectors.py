"""Queries, keys and value norms of all heads over one text, as far as a model shows them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from attnviz.engine.backend import backend_of
from attnviz.engine.capture import Asked
from attnviz.engine.head_run import Head
from attnviz.engine.observer import QueriesKeys
from attnviz.engine.text_pass import TextReader
from attnviz.errors import AttnvizError, UnsupportedError
from attnviz.models.model import Model
from attnviz.records import HeadVectors

_MOST = 2_000_000
"""The most numbers of all queries and keys that are kept."""


def vectors_of(model: Model, wanted: Asked, removed: Collection[Head] = ()) -> HeadVectors:
    """Return the queries, keys and value norms behind the attention weights of one text.

    The notes of the result say what the model does not show, and why.
    removed: heads whose outputs are zero. Queries and keys are then left out: no run has made them.
    """
    notes, found = list[str](), HeadVectors()
    try:
        found = replace(found, norms=dict(TextReader(model).norms(wanted, removed)))
    except UnsupportedError as error:
        notes.append(_without("the norms of values", error))
    try:
        kept = _queries_keys(model, wanted, removed)
        found = replace(
            found,
            queries={each.layer: each.query for each in kept},
            keys={each.layer: each.key for each in kept},
            factor=kept[0].scale,
        )
    except AttnvizError as error:
        notes.append(_without("query × key", error))
    return replace(found, notes=tuple(notes))


def _queries_keys(model: Model, wanted: Asked, removed: Collection[Head]) -> list[QueriesKeys]:
    """Return the queries and keys of each layer; raise UnsupportedError if a page cannot show them.

    wanted, removed: see ``vectors_of``.
    """
    info, kept = model.info, list[QueriesKeys]()
    if removed:
        raise UnsupportedError("heads were ablated, which changes those of later layers")
    if wanted.kind not in ("self", "encoder"):
        raise UnsupportedError(
            f"it is shown of one stack's own text, not of {wanted.kind} attention"
        )
    if 2 * info.layers * info.heads * info.head_dim * len(wanted.given.text) > _MOST:
        raise UnsupportedError(f"this text and model have more than {_MOST:,} numbers of them")

    def wants(layer: int) -> bool:
        return wanted.heads is None or layer in wanted.heads

    backend_of(model).observe_queries_keys(wanted.given.text, wants, kept.append)
    if len({(each.scale, each.query.shape[-1]) for each in kept}) != 1:
        raise UnsupportedError("layers differ in their scale or their dimensions")
    return kept


def _without(what: str, error: AttnvizError) -> str:
    """Return a note with the reason, but without the advice to those who asked for this alone."""
    return f"Without {what}: {str(error).partition(': choose ')[0].rstrip('.')}."
