"""Which heads a question about a logit shows, and what earlier runs know of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from attnviz.engine.known_labels import by_label, known_labels
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.models.model import Model
from attnviz.prompts.request import LogitRequest
from attnviz.records import HeadKey, HeadLabel


class ShownHeads(NamedTuple):
    """The heads that are shown.

    kinds: the attention whose heads are shown. chosen: the heads that ``--layer`` and ``--head``
        name; empty if neither is given. labels: what earlier runs measured, of heads that have one.
    """

    kinds: tuple[str, ...]
    chosen: tuple[HeadKey, ...]
    labels: Mapping[HeadKey, HeadLabel]


def shown_heads(model: Model, heads: Collection[HeadKey], request: LogitRequest) -> ShownHeads:
    """Return which of the heads of a model a request is about.

    Raises UsageError if no head is of the kind that the request names, or if it names no head.
    """
    info, kinds = model.info, tuple(dict.fromkeys(kind for kind, _, _ in heads))
    labels: dict[HeadKey, HeadLabel] = {}
    for kind in dict.fromkeys(kind for kind, _, _ in heads):
        known = known_labels(model, kind, ignored=request.no_known_labels)
        for (layer, head), label in known.named().items() if known is not None else ():
            if (kind, layer, head) in heads:
                labels[kind, layer, head] = label
    if request.kind is not None and request.kind not in kinds:
        raise UsageError(f"{info.name!r} has no {request.kind} attention: leave out --kind")
    kinds = kinds if request.kind is None else (request.kind,)
    typed = by_label(model, kinds[0], request.head, request.index_base)
    named = choose_heads(request.layer, typed, info.layers, info.heads, request.index_base)
    if named is None:
        return ShownHeads(kinds, (), labels)
    chosen = tuple(key for key in heads if key[0] in kinds and key[2] in named.get(key[1], ()))
    if not chosen:
        raise UsageError("none of the chosen layers has such a head: choose others with --head")
    return ShownHeads(kinds, chosen, labels)
