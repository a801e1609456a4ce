"""The interactive page of ``attnviz diff``: every head in A, in B, and B minus A, over one text."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attnviz.draw.page.data import Page, PageCapture, PageHead, PageMeasure
from attnviz.draw.page.difference import change_look, with_difference
from attnviz.draw.values import json_number
from attnviz.inspect.diff.records import ChangedMaps, DiffReport

_LOOK = 4
_JS = "change"


def diff_page(report: DiffReport, example: ChangedMaps) -> Page:
    """Return the page of the text over which one head changed most."""
    sides = {"A": [a for _, a, _ in example.every], "B": [b for _, _, b in example.every]}
    changes = [change for change, _, _ in example.every]
    heads = [
        PageHead(
            *change.place,
            report.pair_name(change),
            values={_JS: json_number(change.js * math.log(2))},  # in nats, as on the screen
        )
        for change in changes
    ]
    order = sorted(range(len(changes)), key=lambda at: -np.nan_to_num(changes[at].js))
    a, b = (
        PageCapture(
            name=name,
            kind=report.kind,
            causal=report.causal,
            heads=heads,
            weights=maps,
            queries=example.queries,
            keys=example.keys,
            texts=("", ""),
            order=order,
            query=len(example.queries) - 1,
            head=order[0],
        )
        for name, maps in sides.items()
    )
    measure = PageMeasure(_JS, "change of attention", "nats")
    captures = [*with_difference(a, b, "B − A")]
    captures[2:] = [replace(each, heads=heads) for each in captures[2:]]  # all know the change
    look = [change_look(captures[2], at) for at in order[:_LOOK] if changes[at].changed]
    if look:
        captures = [replace(each, query=look[0].query) for each in captures]
    link = "".join(f"{heads[at].name}&capture=2&k={key}&lock" for _, at, _, key, _ in look[:1])
    return Page(f"{report.a.name}-{report.b.name}", captures, [measure], look, link=link)
