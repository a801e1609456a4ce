"""The card of a head: what the other questions say of it, each in its own report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from attnviz.count.params.params import HeadCost
from attnviz.draw.labels import cut, token_label, word_label
from attnviz.draw.report import Report, fields_of
from attnviz.draw.signed import Place
from attnviz.draw.values import json_values, model_facts, shortest, token_facts
from attnviz.engine.attribution.one_token import OneTokenWrites
from attnviz.inspect.heads.report import HeadsReport
from attnviz.inspect.interventions.ablate.report import AblationReport, Effect, effect_entry
from attnviz.inspect.interventions.path.report import Listener, PathReport
from attnviz.inspect.patterns.report import PatternReport, PatternScores, score_entry
from attnviz.inspect.why.report import HeadEffect, WhyReport
from attnviz.measures.words import joined, word_ranges
from attnviz.prompts.naming import placed
from attnviz.records import HeadKey, Kind, ModelInfo, Provenance, Tokens

_LONGEST = 14
_BEFORE, _AFTER = 4, 3  # the tokens before and after a token that are shown with it


class Firing(NamedTuple):
    """The strongest link of a head in one text; the sink and a token's own position are left out.

    text: the index of the text. queries, keys: its tokens. query, key: the token indices of the
        link. weight: the attention weight from query to key.
    """

    text: int
    queries: Tokens
    keys: Tokens
    query: int
    key: int
    weight: float


class Hurt(NamedTuple):
    """A token whose loss rises much if the head is ablated.

    text: the index of the text. tokens: those that are predicted. token: the index of one of them.
    change: the rise of its loss in nats.
    """

    text: int
    tokens: Tokens
    token: int
    change: float


class ReadFrom(NamedTuple):
    """An earlier head, with its share in the input of the head that a card describes.

    sender: the (layer, head) of the earlier one. read: its share in the queries, keys or values.
    """

    sender: Place
    read: Listener


class Writes(NamedTuple):
    """The effect of a head over texts of one token, and the texts of the token ids in it."""

    effect: OneTokenWrites
    words: Mapping[int, str]


@dataclass(frozen=True, repr=False)
class HeadCard(Report, Provenance):
    """The report of ``attnviz head``: everything that attnviz measures on one head.

    head: (layer, head). kind: the attention that it is a head of.
    map: its attention weights over the text. scored: its label and pattern scores on the probes.
    firings: its strongest links over texts. hurts: the tokens whose loss rises most without it, of
        ``predictions`` tokens in all. ablation: the loss without it. why: the contribution of every
        head to the prediction of the text. writes: its effect over texts of one token. sources:
        earlier heads with a share in its input. readers: later heads in whose input it has a share.
    cost: its parameters and cache. missing: for each part that is None or empty, the reason.
    top: the number of rows of a table. asked: whether a person gave the text.
    """

    model: ModelInfo
    head: Place
    kind: Kind
    map: HeadsReport
    scored: PatternReport | None = None
    firings: tuple[Firing, ...] = ()
    ablation: AblationReport | None = None
    hurts: tuple[Hurt, ...] = ()
    predictions: int = 0
    why: WhyReport | None = None
    writes: Writes | None = None
    sources: tuple[ReadFrom, ...] = ()
    readers: PathReport | None = None
    cost: HeadCost | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    top: int = 5
    asked: bool = False

    command = "head"
    lists = ("read_from", "read_by")

    def data(self) -> dict[str, Any]:
        """Return all facts on the card, a one-page summary of a head, as a JSON object.

        Each part is what the JSON of another command says of the head. Indices start at 0.
        """
        return {
            "schema": "attnviz.head/1",
            "model": model_facts(self.model),
            "layer": self.head[0],
            "head": self.head[1],
            "name": replace(self, index_base=0).name,
            **fields_of(self, ("kind", "text")),
            "source": self.source or None,
            "seed": self.seed,
            "index_base": 0,
            **fields_of(self, ("complete", "notes", "missing")),
            **_parts(self),
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each number of the card.

        Columns: layer, head, part (such as ``label``), of (what in that part), value.
        """
        yield "layer", "head", "part", "of", "value"
        parts = json_values(_parts(self))
        numbers = {"score": (parts["label"] or {}).get("scores") or {}}
        numbers |= {part: parts[part] or {} for part in ("ablation", "writes", "one_token", "cost")}
        for part, values in numbers.items():
            for name, value in values.items():
                if not isinstance(value, list | dict):
                    yield *self.head, part, name, value
        for part in ("read_from", "read_by"):
            for path in parts[part]:
                layer, head = path.get("sender") or (path["layer"], path["head"])
                yield *self.head, part, f"L{layer}H{head} {path['into']}", path["share"]

    @property
    def name(self) -> str:
        return self.head_name(self.head)

    @property
    def key(self) -> HeadKey:
        return (self.kind, *self.head)

    @property
    def pattern(self) -> PatternScores | None:
        """Return the head's label and pattern scores on the probes; None if not measured."""
        heads = self.scored.heads if self.scored is not None else ()
        return next((entry for entry in heads if entry.place == self.head), None)

    @property
    def effect(self) -> Effect | None:
        """Return the effect of ablating the head on the loss; None if not measured."""
        effects = self.ablation.effects if self.ablation is not None else ()
        return next((effect for effect in effects if effect.head == self.head), None)

    @property
    def written(self) -> HeadEffect | None:
        """Return the head's contribution to the prediction of the text; None if not measured."""
        effects = self.why.effects if self.why is not None else ()
        return next((effect for effect in effects if effect.head == self.key), None)

    @property
    def clear_sources(self) -> list[ReadFrom]:
        """Return the earlier heads whose share is clearly above that of others of their layer."""
        return [source for source in self.sources if source.read.clear]


def _parts(card: HeadCard) -> dict[str, Any]:
    """Return the measured parts of a card; None or empty for one that was not measured."""
    record, pattern, cost = card.map.first.record, card.pattern, card.cost
    ablation, effect, readers = card.ablation, card.effect, card.readers
    loss = None
    if ablation is not None and effect is not None:
        loss = {"baseline": ablation.baseline, "texts": len(ablation.texts)}
        loss |= effect_entry(replace(ablation, by_token=False, index_base=0), effect)
    return {
        "map": {
            **token_facts(record.queries),
            "key_tokens": record.keys.texts,
            "weights": shortest(card.map.first.weights(*card.head)),
        },
        "label": None if pattern is None else score_entry(pattern),
        "fires": [
            {
                **fields_of(link, ("text", "query", "key")),
                "query_token": link.queries.texts[link.query],
                "key_token": link.keys.texts[link.key],
                "weight": link.weight,
            }
            for link in card.firings
        ],
        "ablation": loss,
        "hurts": [
            {"text": text, "place": at, "token": tokens.texts[at], "loss_delta": change}
            for text, tokens, at, change in card.hurts
        ],
        "predictions": card.predictions,
        "writes": _written(card),
        "one_token": _one_token(card),
        "read_from": [{"sender": sender, **read.data()} for sender, read in card.sources],
        "read_by": [] if readers is None else [later.data() for later in readers.listeners],
        "cost": None if cost is None else cost._asdict() | {"total": cost.total},
    }


def _written(card: HeadCard) -> dict[str, Any] | None:
    """Return the head's contribution to the prediction, as ``attnviz why`` reports it."""
    if card.why is None or card.written is None:
        return None
    first, effect = card.why.first, card.written
    source = first.source(card.key)
    return {
        "answer": first.answer,
        "position": first.attribution.position,
        "logit": card.why.logit,
        "contribution": effect.value,
        "base_rate": effect.base,
        "adjusted_p": effect.p,
        "source": None if source is None else source.key,
    }


def _one_token(card: HeadCard) -> dict[str, Any] | None:
    """Return the head's effect over texts of one token."""
    if card.writes is None:
        return None
    effect, words = card.writes
    return {
        **fields_of(effect, ("tokens", "copying", "chance")),
        "pairs": [
            {"token": words[read], "raises": words[written], "logits": logits}
            for read, written, logits in effect.strongest
        ],
    }


def link_words(link: Firing) -> str:
    """Return a link as a string, such as ``Tom → saw``."""
    return " → ".join(link_ends(link))


def link_ends(link: Firing) -> tuple[str, str]:
    """Return the words of query and key of a link, with their indices if they are the same word."""
    ends = (link.queries, link.query), (link.keys, link.key)
    query, key = (word_at(*end) for end in ends)
    if query == key:
        query, key = (placed(*end, quotes=False) for end in ends)
    return query, key


def word_at(tokens: Tokens, token: int) -> str:
    """Return the word that contains a token. token: its index."""
    word = next((word for word in word_ranges(tokens) if token in word), range(token, token + 1))
    return cut(word_label(tokens.texts[word.start : word.stop]), _LONGEST)


def around(hurt: Hurt, longest: int = 60) -> str:
    """Return a token with its neighbours as a string of at most ``longest`` characters."""
    tokens = hurt.tokens
    first, last = max(hurt.token - _BEFORE, 0), min(hurt.token + _AFTER, len(tokens))
    near = tokens.taken(range(first, last))
    text = joined(near) if any(" " in text for text in tokens.texts) else " ".join(near.texts)
    return cut(token_label(f"{'…' * (first > 0)}{text}{'…' * (last < len(tokens))}"), longest)
