"""``attnviz path HEAD --weights``: what stands in the weights alone, without prompts.

What is measured stands in ``engine.attribution.in_weights``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnviz.draw.report import Report
from attnviz.draw.signed import Place
from attnviz.draw.values import json_number, model_facts, table_of
from attnviz.engine.attribution.in_weights import (
    APART,
    by_offset,
    first_scores,
    found_again,
    read_stack,
)
from attnviz.engine.attribution.one_token import tried_tokens
from attnviz.inspect.interventions.means import Mean
from attnviz.inspect.interventions.path.path import alone, sender_of
from attnviz.inspect.interventions.path.request import PathRequest
from attnviz.models.model import Model, require_number
from attnviz.models.own import OwnAttention
from attnviz.records import ModelInfo, Provenance

if TYPE_CHECKING:
    from attnviz.draw.document import Document

SCHEMA = "attnviz.path-weights/1"

_FIRST, _LATER = 256, 512
"""The most tokens that are tried, for layer 0 at each distance, and for later layers."""


class FirstHead(NamedTuple):
    """A head of layer 0, whose scores depend on two tokens and their distance alone.

    means: its mean score by the number of tokens from the key to the query, from 0 on.
    explained: the share of the variance of its scores that this distance explains, in [0, 1].
    """

    place: Place
    means: tuple[float, ...]
    explained: float

    @property
    def back(self) -> int:
        """Return the distance with the highest mean score, in tokens."""
        return int(np.argmax(self.means))


class Finder(NamedTuple):
    """A later head, and how often it finds its query's token by what the sender wrote of it.

    place: (layer, head). share: in [0, 1], of the tokens; its base rate is the mean share by what
    the other heads of the sender's layer wrote.
    """

    place: Place
    share: Mean


@dataclass(frozen=True, repr=False)
class WeightsReport(Report, Provenance):
    """The report of ``attnviz path HEAD --weights``.

    sender: (layer, head). tokens: how many were compared. all_tokens: whether these are all plain
        tokens of the vocabulary. first: the heads of layer 0, the sender first and then by
        ``explained``; empty for a sender of a later layer. finders: the later heads, the largest
        share first. top: the number of rows in the ranking.
    """

    model: ModelInfo
    sender: Place
    tokens: int
    all_tokens: bool
    first: tuple[FirstHead, ...]
    finders: tuple[Finder, ...]
    top: int = 8

    command = "path"

    @property
    def chance(self) -> float:
        """Return the share of a head that compares at random."""
        return 1 / self.tokens

    def data(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": model_facts(self.model),
            "sender": {"layer": self.sender[0], "head": self.sender[1]},
            "tokens": self.tokens,
            "all_tokens": self.all_tokens,
            "chance": self.chance,
            "apart": APART,
            "seed": self.seed,
            "notes": list(self.notes),
            "first_layer": [
                {
                    "layer": one.place[0],
                    "head": one.place[1],
                    "explained": json_number(one.explained),
                    "mean_scores": [json_number(score) for score in one.means],
                }
                for one in self.first
            ],
            "heads": self._entries(),
        }

    def rows(self) -> Iterable[tuple[object, ...]]:
        return table_of(["layer", "head", "found", "other_heads"], self._entries())

    def _entries(self) -> list[dict[str, Any]]:
        return [
            {
                "layer": one.place[0],
                "head": one.place[1],
                "found": json_number(one.share.value),
                "other_heads": json_number(one.share.base_rate),
            }
            for one in self.finders
        ]

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.interventions.path.weights_document import weights_document

        return weights_document(self).shown(explain=explain, hints=hints)


def path_weights(model: Model, request: PathRequest) -> WeightsReport:
    """Measure what the weights alone say of one head and of the later heads that read from it.

    Raises UsageError if the sender is not exactly one head, or is in the last layer,
    UnsupportedError for a model whose projections are not known by their role.
    """
    if isinstance(model, OwnAttention):
        raise alone(model.info)
    layer, head = sender = sender_of(model, request.sender, request.index_base)
    stack = read_stack(model)
    tokens = tried_tokens(model, _LATER, request.seed)
    with np.errstate(over="ignore", invalid="ignore"):
        found = found_again(stack, layer, tokens)  # (earlier head, later layer, later head)
        means, explained = (
            by_offset(first_scores(stack, tokens[:_FIRST])) if layer == 0 else ((), ())
        )
    first = [
        FirstHead((0, at), tuple(map(float, row)), float(share))
        for at, (row, share) in enumerate(zip(means, explained, strict=True))
    ]
    for one in first:
        require_number("score of layer 0", one.explained, model.info)
    others = np.delete(found, head, axis=0)
    finders = []
    for (later, reader), share in np.ndenumerate(found[head]):
        require_number("score of a later head", float(share), model.info)
        base = float(others[:, later, reader].mean()) if len(others) else None
        place = layer + 1 + later, reader
        finders.append(Finder(place, Mean(float(share), base_rate=base, signed=False)))
    return WeightsReport(
        model=model.info,
        sender=sender,
        tokens=len(tokens),
        all_tokens=len(tokens) == len(model.vocabulary().plain),
        first=tuple(sorted(first, key=lambda one: (one.place != sender, -one.explained))),
        finders=tuple(sorted(finders, key=lambda one: (-one.share.value, one.place))),
        top=request.top,
        seed=request.seed,
        index_base=request.index_base,
    )
