"""What ``attnviz why`` has to say: prediction and sum, the grid, the ranking, the write maps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.labels import cut, token_label
from attnviz.draw.numbers import NumberScale
from attnviz.draw.provenance import notes_group, share
from attnviz.draw.signed import signed_grid, signed_scale
from attnviz.engine.attribution import HeadKey
from attnviz.records import Tokens
from attnviz.why.records import HeadEffect, WhyReport
from attnviz.why.words import (
    about,
    answers,
    caveats,
    explained_logit,
    explanation,
    finding,
    heading,
    label_of,
    logits,
    placed,
    quoted,
    sum_words,
)

_LONGEST = 100
_LEAST_SHARE = 0.01
_LONGEST_TOKEN = 14
_MOST_MAPPED = 8
GREY = "95% interval includes 0"

FEED_FORWARD = "FF"
"""Above the column of the feed-forward blocks."""


def why_document(report: WhyReport, explain: bool = False) -> doc.Document:
    """Everything that one run shows."""
    tokens = report.first.given.predicted
    groups = [
        doc.Group(about(report)),
        notes_group((*report.model.notes, *report.notes), tokens),
        doc.Group(predictions(report)),
        doc.Group([doc.Facts(sum_words(report))]),
    ]
    if report.tallies and report.effects:
        groups += [
            doc.Group([head_grid(report)]),
            doc.Group(rankings(report), spaced=True),
            doc.Group(text_parts(report)),
            doc.Group(write_maps(report)),
        ]
    groups.append(doc.Group([doc.Say(text, _LONGEST) for text in caveats(report)]))
    if report.tallies:
        groups.append(doc.Group([every_part(report)], full=True))
    return doc.Document(
        f"direct logit attribution in {report.model.name}",
        " ".join(report.first.text.split()),
        groups,
        [doc.Say(text, _LONGEST) for text in explanation(report)] if explain else (),
        [doc.Facts([(hint, False) for hint in report.hints])] if report.hints else (),
        heading(report),
        "" if report.many else report.first.text,
        finding(report),
    )


# The prediction ------------------------------------------------------------------------------


def prediction_line(report: WhyReport) -> doc.Facts:
    """The five most likely tokens in one line, and where; of many prompts what the answers are."""
    if report.many:
        return doc.Facts([(answers(report), False)])
    words = [
        f"{cut(token_label(report.first.words[token]), _LONGEST_TOKEN)} {_probability(value)}"
        for token, value in report.first.found.top
    ]
    tokens, place = report.first.given.predicted, report.first.found.position
    at = f"at {placed(tokens, place)} " * (place != len(tokens) - 1)
    return doc.Facts([(f"{at}predicts {words[0]}", True), *((word, False) for word in words[1:])])


def predictions(report: WhyReport) -> list[doc.Part]:
    """The same as a table."""
    if report.many:
        return []
    found = report.first.found
    rows = [
        doc.Row([token_label(report.first.words[token]), _probability(value)], (value, 1.0))
        for token, value in found.top
    ]
    title = f"Most likely at {placed(report.first.given.predicted, found.position)}"
    columns = [doc.Column("", right=False), doc.Column("p")]
    return [doc.Table(columns, rows, [(title, True)])]


def _probability(value: float) -> str:
    if value >= 0.0095:
        return share(value)
    return f"{value:.3f}"[1:] if value >= 0.0005 else f"{value:.0e}"


# The grid ------------------------------------------------------------------------------------


def head_grid(report: WhyReport, scaled: bool = True) -> doc.HeadGrid:
    """What each head writes towards the answer, the feed-forward blocks beside them.

    scaled: with a colour bar; a first screen has the numbers alone.
    """
    kinds, layers = report.kinds, report.layers
    rows = [(layer, kind) for layer in layers for kind in kinds if _there(report, layer, kind)]
    heads = 1 + max(effect.head[2] for effect in report.effects)
    values: dict[tuple[int, int], float] = {}
    grey = set()
    for effect in report.effects:
        kind, layer, head = effect.head
        place = rows.index((layer, kind)), head
        values[place] = effect.value
        grey |= {place} if effect.unclear else set()
    for layer in layers:
        first = next(at for at, row in enumerate(rows) if row[0] == layer)
        values[first, heads] = report.part("mlp", layer)
    scale = NumberScale.over(values.values())
    base, several = report.index_base, len(kinds) > 1
    names = [f"L{layer + base}" + f" {kind}" * several for layer, kind in rows]
    columns = [*(f"H{head + base}" for head in range(heads)), FEED_FORWARD]
    title = f"Direct effect on {explained_logit(report)}" if scaled else "logits"
    grey_words = f"grey: {GREY}" if scaled else "grey: CI includes 0"
    return signed_grid(names, columns, values, scale, grey, GREY)._replace(
        title=[
            (title + scale.times * (not scaled), True),
            (f"{FEED_FORWARD}: feed-forward", False),
            *[(grey_words, False)] * bool(grey),
        ],
        scale=signed_scale(scale, "logits", "value") if scaled else None,
    )


def _there(report: WhyReport, layer: int, kind: str) -> bool:
    """Whether a layer has a row for this attention; one without heads has its feed-forward's."""
    there = [effect.head[0] for effect in report.effects if effect.head[1] == layer]
    return kind in there or (not there and kind == report.kinds[0])


# The ranking ---------------------------------------------------------------------------------


def rankings(report: WhyReport, most: int | None = None) -> list[doc.Part]:
    """The heads that write most for the answer and against it, in two tables."""
    titles = ("Write most for the answer", "Write most against it")
    return [
        _table(report, found, title)
        for found, title in zip(report.ranking(most), titles, strict=True)
        if found
    ]


def ranking_table(report: WhyReport, least: int) -> doc.Table:
    """All heads in one, the largest of either sign first. least: rows that stay in any case."""
    order = sorted(report.effects, key=lambda effect: -abs(effect.value))
    return _table(report, order, "")._replace(least=least)


def _table(report: WhyReport, effects: Sequence[HeadEffect], title: str) -> doc.Table:
    """A row a head: bar, contribution, interval, base rate, copy score, label, source, share."""
    scale = NumberScale.over(effect.value for effect in report.effects)
    copying = report.copying

    def cells(effect: HeadEffect) -> list[str]:
        source = None if report.many else report.first.source(effect.head)
        ends = (
            "" if effect.interval is None else ", ".join(map(scale.unsigned_zero, effect.interval))
        )
        return [
            report.name(effect.head),
            scale.unsigned_zero(effect.value),
            f"[{ends}]" if ends else "",
            "" if effect.base is None else scale.unsigned_zero(effect.base),
            "" if copying is None else share(copying.copying.get(effect.head, math.nan)),
            label_of(report, effect.head),
            "" if source is None else placed(report.first.keys(effect.head), source.place, False),
            "" if source is None else scale.unsigned_zero(source.contribution),
            _of_whole(report, effect.value),
        ]

    columns = [
        doc.Column("", right=False),
        doc.Column(f"logits{scale.times}"),
        doc.Column("95% interval"),
        doc.Column("base rate"),
        doc.Column("copies"),
        doc.Column("label", right=False),
        doc.Column("from", right=False),
        doc.Column(""),
        doc.Column("share"),
    ]
    written = [cells(effect) for effect in effects]
    filled = [place for place in range(len(columns)) if any(row[place] for row in written)]
    rows = [
        doc.Row(
            [row[place] for place in filled],
            (effect.value, scale.limit),
            tone="faint" if effect.unclear else "plain",
        )
        for row, effect in zip(written, effects, strict=True)
    ]
    shown = [columns[place] for place in filled]
    return doc.Table(shown, rows, [(title, True)] if title else (), ranked=True)


def _of_whole(report: WhyReport, value: float) -> str:
    """The share of the logit, where the parts are no more than that."""
    largest = max(abs(effect.value) for effect in report.effects)
    if report.logit <= largest or abs(value) < _LEAST_SHARE * report.logit:
        return ""
    return f"{value / report.logit:.0%}"


def every_part(report: WhyReport) -> doc.Table:
    """All parts, the largest first."""
    base = report.index_base
    parts = [(report.name(effect.head), effect.value) for effect in report.effects]
    for layer in report.layers:
        parts.append((f"L{layer + base} feed-forward", report.part("mlp", layer)))
        parts.append((f"L{layer + base} bias", report.part("bias", layer)))
    inner = sum(report.part("bias", layer) for layer in report.layers)
    parts += [("embedding", report.part("embedding")), ("final bias", report.part("bias") - inner)]
    parts = sorted((part for part in parts if part[1]), key=lambda part: -abs(part[1]))
    scale = NumberScale.over(value for _, value in parts)
    rows = [doc.Row([name, scale.text(value)], (value, scale.limit)) for name, value in parts]
    columns = [doc.Column("", right=False), doc.Column(f"logits{scale.times}")]
    return doc.Table(columns, rows, [("Every part", True)], ranked=True)


# Write maps ----------------------------------------------------------------------------------


def mapped(report: WhyReport) -> list[HeadKey]:
    """The heads that were asked for, or the one that writes most for the answer."""
    if report.shown:
        return list(report.shown[:_MOST_MAPPED])
    return [] if report.best is None else [report.best.head]


def text_parts(report: WhyReport, lines: int = 0) -> list[doc.Part]:
    """The first prompt, each token on the ground of what a head moves from it to the prediction."""
    first, maps = report.first, []
    largest = max(abs(effect.value) for effect in report.effects) if report.many else 0.0
    for head in mapped(report)[: 1 if lines else _MOST_MAPPED]:
        row = first.found.rows.get(head)
        if row is None:
            continue
        value = logits(first.found.heads[head])
        where = "by source token" if lines else f"towards {quoted(first.answer)}, by source token"
        words: doc.Words = [(report.name(head), True), (f"{value} {where}", False)]
        limit = float(np.abs(row).max(initial=largest))
        asking = Tokens.bare((0,))
        name = f"{report.name(head)} by source token"
        maps.append(doc.Map(name, row[None], asking, first.keys(head), words, limit=limit))
    if not maps:
        return []
    title = [("Contribution by source token" + ", first prompt" * report.many, True)]
    scale = signed_scale(NumberScale(maps[0].limit), "logits", "value") if not lines else None
    return [doc.Maps(maps, () if lines else title, texts=True, lines=lines, scale=scale)]


def write_maps(report: WhyReport, scaled: bool = True) -> list[doc.Maps]:
    """What the chosen heads move from where to where, towards the same answer everywhere."""
    first = report.first
    found = [(head, first.found.maps[head]) for head in report.shown if head in first.found.maps]
    limit = max((float(np.abs(weights).max(initial=0.0)) for _, weights in found), default=0.0)
    maps = []
    for head, weights in found:
        later = np.triu(np.ones(weights.shape, bool), 1)
        causal = head[0] != "cross" and len(weights) > 1 and not weights[later].any()
        shown = np.where(later, np.nan, weights) if causal else weights
        label = label_of(report, head) or "no label"
        words: doc.Words = [(report.name(head), True), (label, False)]
        queries, keys = first.given.queries(head[0]), first.keys(head)
        maps.append(
            doc.Map(report.name(head), shown, queries, keys, words, causal=causal, limit=limit)
        )
    if not maps:
        return []
    title: doc.Words = [
        (f"Write map towards {quoted(first.answer)}", True),
        ("what each query (row) gets from each key", False),
        *[("first prompt", False)] * report.many,
    ]
    scale = signed_scale(NumberScale(limit), "logits", "value") if scaled else None
    return [doc.Maps(maps, title, index_base=report.index_base, scale=scale)]
