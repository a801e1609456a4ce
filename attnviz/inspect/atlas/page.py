"""The interactive page of an atlas: all heads over the texts where some of them fire most."""

from __future__ import annotations

from dataclasses import replace

from attnviz.draw.page.data import Look, Page, PageCapture, PageHead
from attnviz.draw.provenance import share
from attnviz.inspect.atlas.records import AtlasReport, Fired, HeadAtlas
from attnviz.inspect.atlas.scan import FIRES
from attnviz.inspect.head.report import link_words
from attnviz.inspect.heads.page import measures, page_capture
from attnviz.inspect.head.words import link_words
from attnviz.inspect.heads.look import measures, page_capture
from attnviz.records import HeadsRecord

_SHARE = "share"
_NAMES = {FIRES: "strongest link, mean over texts", _SHARE: "share of texts that fire"}
_LOOK = 2
"""The most places of one text that are offered for a look."""


def atlas_page(report: AtlasReport) -> Page:
    """Return the page of the texts of which the report has maps."""
    captures, look = list[PageCapture](), list[Look]()
    for text, maps in report.maps.items():
        capture, places = _capture(report, text, maps)
        captures.append(capture)
        look += [each._replace(capture=len(captures) - 1) for each in places]
    known = measures(captures[0].heads) if captures else []
    said = [each._replace(said=_NAMES.get(each.key, each.said)) for each in known]
    return Page(report.model.name, captures, said, look)


def _capture(report: AtlasReport, text: int, maps: HeadsRecord) -> tuple[PageCapture, list[Look]]:
    """Return the maps of a text, and the places worth a look; the heads of these come first."""
    capture = page_capture(maps, f"text {text}")
    places = {(head.layer, head.head): at for at, head in enumerate(capture.heads)}
    look, heads = list[Look](), list(capture.heads)
    for one in report.ranking:
        at = places[one.layer, one.head]
        heads[at] = _head(capture.heads[at], one)
        place = one.strongest
        if place is not None and place.link.text == text:
            look.append(Look(0, at, place.link.query, place.link.key, _words(place)))
    order = [*dict.fromkeys([*(each.head for each in look), *capture.order])]
    query = look[0].query if look else capture.query
    shown = replace(capture, heads=heads, order=order, head=order[0], query=query)
    return shown, look[:_LOOK]


def _head(head: PageHead, one: HeadAtlas) -> PageHead:
    """Return the head of a page with the numbers and the strongest link that the atlas has."""
    facts, place = head.facts, one.strongest
    if place is not None:
        facts = f"fires most {_words(place)} · {facts}"
    values = {**head.values, FIRES: one.scores[FIRES], _SHARE: one.share}
    return replace(head, facts=facts, values=values)


def _words(one: Fired) -> str:
    return f"{link_words(one.link)} {share(one.link.weight)}, usual {share(one.usual)}"
