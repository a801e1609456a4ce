"""The interactive page of cards: the maps of all heads over their text, and what each costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnviz.draw.page.data import Look, Page
from attnviz.draw.provenance import share
from attnviz.inspect.head.records import HeadCard
from attnviz.inspect.heads.links import head_links
from attnviz.inspect.heads.look import measures, page_capture, with_effects
from attnviz.records import HeadsRecord


def cards_page(cards: Sequence[HeadCard], maps: HeadsRecord) -> Page:
    """Return the page of all heads, of which those of the cards are worth a look.

    maps: of all heads over the text of the cards.
    """
    capture, ablation = page_capture(maps, ""), cards[0].ablation
    known = measures(capture.heads)
    if ablation is not None:
        shown = {each.head: each.shown(ablation.metric).value for each in ablation.singles}
        effects = {head: value for head, value in shown.items() if head is not None}
        metric = ablation.ranked_by
        unit = "%" if metric.percent else metric.unit
        capture, measure = with_effects(capture, effects, unit)
        known.append(measure)
    places = [(head.layer, head.head) for head in capture.heads]
    first = [places.index(card.head) for card in cards]
    order = [*dict.fromkeys([*first, *capture.order])]
    capture = replace(capture, order=order, fine=max(capture.fine, len(cards)), head=first[0])
    look = [
        Look(0, at, query, key, f"{capture.link(query, key)} {share(weight)}")
        for card, at in zip(cards, first, strict=True)
        for _, _, query, key, weight in head_links(maps, *card.head, 1, sink=False)
    ]
    return Page(maps.record.model.name, [capture], known, look)
