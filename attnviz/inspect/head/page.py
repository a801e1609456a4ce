"""The interactive page of cards: the maps of all heads over their text, with what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnviz.draw.labels import token_labels
from attnviz.draw.page.data import Look, Page, PageHead, PageLabel, PageMeasure
from attnviz.draw.provenance import share
from attnviz.inspect.head.records import HeadCard
from attnviz.inspect.heads.links import head_links
from attnviz.inspect.heads.page import measures, page_capture
from attnviz.measures.registry import label_named
from attnviz.records import SINKS, HeadsRecord

_EFFECT = "ablation"


def cards_page(cards: Sequence[HeadCard], maps: HeadsRecord) -> Page:
    """Return the page of all heads, of which those of the cards are worth a look.

    maps: of all heads over the text of the cards.
    """
    first, capture = cards[0], page_capture(maps, "")
    heads = [_head(first, head) for head in capture.heads]
    places = {(head.layer, head.head): at for at, head in enumerate(heads)}
    look = [each for card in cards for each in _look(card, maps, places[card.head])]
    known = measures(heads)
    if first.ablation is not None:
        metric = first.ablation.ranked_by
        unit = "%" if metric.percent else metric.unit
        known = [each for each in known if each.key != _EFFECT]
        known.append(PageMeasure(_EFFECT, "effect of ablation", unit, metric.signed))
    fine = max(capture.fine, len(cards))
    order = dict.fromkeys([places[card.head] for card in cards] + [*capture.order])
    capture = replace(capture, heads=heads, fine=fine, order=[*order], head=places[first.head])
    return Page(first.model.name, [capture], known, look)


def _head(card: HeadCard, head: PageHead) -> PageHead:
    """Return a head with its measured label and the effect of its ablation, as far as known."""
    place = head.layer, head.head
    if card.scored is not None:
        found = next((one for one in card.scored.heads if (one.layer, one.head) == place), None)
        if found is not None and found.label is not None:
            head = replace(head, label=_label(found.label), score=found.score or 0.0)
    effects = card.ablation.effects if card.ablation is not None else ()
    for effect in effects:
        if effect.head == place and card.ablation is not None:
            value = effect.shown(card.ablation.metric).value
            head = replace(head, values={**head.values, _EFFECT: value})
    return head


def _label(name: str) -> PageLabel:
    known = label_named(name)
    colour = known.colour if name not in SINKS else ""
    return PageLabel(name, known.said, known.short, "patterns", known.meaning, colour)


def _look(card: HeadCard, maps: HeadsRecord, at: int) -> list[Look]:
    """Return the strongest link of a card's head over the text. at: the head's place."""
    links = head_links(maps, *card.head, 1, sink=False)
    queries, keys = token_labels(maps.record.queries), token_labels(maps.record.keys)
    return [
        Look(
            0, at, one.query, one.key, f"{queries[one.query]} → {keys[one.key]} {share(one.weight)}"
        )
        for one in links
    ]
