"""Queries, keys and value norms of all heads over one text, as far as a model shows them."""

from __future__ import annotations

from collections.abc import Collection

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
    """Return what makes the weights of one text; its notes say what the model does not show.

    removed: heads whose outputs are zero; queries and keys are then those of no run, and left out.
    """
    notes, norms = list[str](), {}
    try:
        norms = dict(TextReader(model).norms(wanted, removed))
    except UnsupportedError as error:
        notes.append(f"without the norms of values: {error}")
    kept: dict[int, QueriesKeys] = {}
    given, info = wanted.given, model.info
    size = 2 * info.layers * info.heads * info.head_dim * len(given.text)
    if removed or wanted.kind not in ("self", "encoder") or size > _MOST:
        return HeadVectors(norms, notes=tuple(notes))

    def keep(found: QueriesKeys) -> None:
        kept[found.layer] = found

    def wants(layer: int) -> bool:
        return wanted.heads is None or layer in wanted.heads

    try:
        backend_of(model).observe_queries_keys(given.text, wants, keep)
    except AttnvizError as error:
        kept.clear()
        notes.append(f"without query × key: {error}")
    factors = {found.scale for found in kept.values()}
    if len(factors) != 1:
        return HeadVectors(norms, notes=tuple(notes))
    return HeadVectors(
        norms,
        {layer: found.query for layer, found in kept.items()},
        {layer: found.key for layer, found in kept.items()},
        factors.pop(),
        tuple(notes),
    )
