"""The interactive page of an atlas: all heads over the texts where some of them fire most."""

from __future__ import annotations

from dataclasses import replace

from attnviz.draw.page.data import Look, Page, PageMeasure
from attnviz.draw.provenance import share
from attnviz.inspect.atlas.records import AtlasReport
from attnviz.inspect.head.words import link_words
from attnviz.inspect.heads.page import measures, page_capture


def atlas_page(report: AtlasReport) -> Page:
    """Return the page of the texts of which the report has maps."""
    by_place = {(one.layer, one.head): one for one in report.heads}
    captures, look = [], list[Look]()
    for number, (text, maps) in enumerate(report.maps.items()):
        capture = page_capture(maps, f"text {text}")
        heads, order = [], list[int]()
        for at, each in enumerate(capture.heads):
            one = by_place[each.layer, each.head]
            values = {**each.values, "fires": one.scores["fires"], "share": one.share}
            first = one.fires[0] if one.fires else None
            facts = each.facts
            if first is not None:
                words = f"fires most {link_words(first.link)} {share(first.link.weight)}"
                facts = f"{words}, usual {share(first.usual)} · {facts}"
                if first.link.text == text:
                    order.append(at)
            heads.append(replace(each, values=values, facts=facts))
        for at in sorted(order, key=lambda at: -by_place[heads[at].layer, heads[at].head].excess)[
            :2
        ]:
            first = by_place[heads[at].layer, heads[at].head].fires[0]
            says = (
                f"{link_words(first.link)} {share(first.link.weight)}, usual {share(first.usual)}"
            )
            look.append(Look(number, at, first.link.query, first.link.key, says))
        order = [*dict.fromkeys([*order, *capture.order])]
        captures.append(replace(capture, heads=heads, order=order, head=order[0]))
    known = measures(captures[0].heads)
    named = {"fires": "strongest link, mean over texts", "share": "share of texts that fire"}
    known = [
        PageMeasure(each.key, named[each.key]) if each.key in named else each for each in known
    ]
    return Page(report.model.name, captures, known, look)
