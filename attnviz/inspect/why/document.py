"""The document of ``attnviz why``: prediction and sum, the grid, the ranking, contribution maps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.labels import cut, token_label
from attnviz.draw.numbers import NumberScale
from attnviz.draw.provenance import advised, label_title, notes_group, probability
from attnviz.draw.signed import (
    colour_words,
    explained,
    interval_text,
    ranked_table,
    signed_grid,
    signed_scale,
)
from attnviz.engine.answers import START_END
from attnviz.engine.attribution.parts import HeadKey
from attnviz.inspect.why.input_words import input_finding, input_table
from attnviz.inspect.why.inputs import InputEffects
from attnviz.inspect.why.records import ExplainedPrompt, HeadEffect, WhyReport
from attnviz.inspect.why.words import (
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
from attnviz.measures.labels import label_look
from attnviz.records import Tokens

_LONGEST = 100
_LEAST_SHARE = 0.01
_LONGEST_TOKEN = 14
_MOST_MAPPED = 8
GREY = "95% interval includes 0"

_MLP = "MLP"
"""The heading of the column of the MLPs."""


def why_document(report: WhyReport) -> doc.Document:
    """Return the document of a report of ``why``."""
    inputs = report.inputs
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
    if inputs is not None:
        groups.insert(4, doc.Group([input_table(report, inputs)]))
    groups.append(doc.Group([doc.Say(text, _LONGEST) for text in caveats(report)]))
    if report.tallies:
        groups.append(doc.Group([every_part(report)], full=True))
    return doc.Document(
        name=f"direct logit attribution in {report.model.name}",
        title=" ".join(report.first.text.split()),
        groups=groups,
        explain=explanation(report),
        hints=doc.next_steps(_hints(report)),
        heading=heading(report),
        quoted="" if report.many else report.first.text,
        finding=finding(report) if inputs is None else input_finding(report, inputs),
        first=advised(
            partial(first_groups, report)
            if inputs is None
            else lambda columns, lines: _input_groups(report, inputs, columns),
            tokens,
        ),
    )


def _hints(report: WhyReport) -> list[str]:
    """Return the options to try next on the command line."""
    if not report.tallies or not report.effects:
        return []
    first, hints = report.first, list[str]()
    if report.inputs is None and not report.shown and (best := report.best) is not None:
        hints.append(f"--head {report.name(best.head).split()[0]} its write map")
    if report.shown:
        name = report.name(report.shown[0]).split()[0]
        hints.append(f"attnviz link --head {name} why there")
    if first.foil is None and not report.many:
        others = [first.words[one] for one, _ in first.found.top if one != first.found.answer]
        words = [word.strip() for word in others if word.strip().isalpha()]
        hints += [f"--foil {word}: compare with it" for word in words[:1]]
    if not report.many and report.inputs is None:
        hints += ["--inputs", *["--texts FILE"] * (not first.given.text.joined)]
    hints.append("--explain")
    return hints


# The prediction ------------------------------------------------------------------------------


def prediction_line(report: WhyReport) -> doc.Facts:
    """Return the line of the five likeliest tokens; for many prompts, a remark on the answers."""
    if report.many:
        return doc.Facts([(answers(report), False)])
    first = report.first
    words = [f"{name} {probability(value)}" for name, value in _likeliest(first, _LONGEST_TOKEN)]
    tokens, place = first.given.predicted, first.found.position
    at = f"at {placed(tokens, place)} " if place != len(tokens) - 1 else ""
    lead = "answer: " if first.found.span is not None else f"{at}predicts "
    return doc.Facts([(f"{lead}{words[0]}", True), *((word, False) for word in words[1:])])


def _likeliest(prompt: ExplainedPrompt, longest: int) -> list[tuple[str, float]]:
    """Return the likeliest tokens or labels, or both ends of the answer, with probabilities.

    longest: the most cells of a token.
    """
    found, tokens = prompt.found, prompt.given.predicted
    if found.span is None:
        return [(cut(token_label(prompt.words[id]), longest), value) for id, value in found.top]
    ends = zip(START_END, found.span[:2], found.span[2:], strict=True)
    return [(f"{name} {placed(tokens, at, quotes=False)}", value) for name, at, value in ends]


def predictions(report: WhyReport) -> list[doc.Part]:
    """Return a table of the likeliest tokens; empty for many prompts."""
    if report.many:
        return []
    found = report.first.found
    rows = [
        doc.Row([name, probability(value)], (value, 1.0))
        for name, value in _likeliest(report.first, _LONGEST)
    ]
    title = f"Most likely at {placed(report.first.given.predicted, found.position)}"
    if found.span is not None:
        title = "Likeliest answer"
    columns = [doc.Column("", right=False), doc.Column("p")]
    return [doc.Table(columns, rows, [(title, True)])]


# The grid ------------------------------------------------------------------------------------


def head_grid(report: WhyReport, scaled: bool = True) -> doc.HeadGrid:
    """Return the grid of each head's and feed-forward block's contribution to the answer.

    scaled: True adds a colour bar; a first screen has the numbers alone.
    """
    kinds, layers = report.kinds, report.layers
    rows = [(layer, kind) for layer in layers for kind in kinds if _has_row(report, layer, kind)]
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
    names = [f"L{layer + base}" + (f" {kind}" if several else "") for layer, kind in rows]
    columns = [*(f"H{head + base}" for head in range(heads)), _MLP]
    title = f"Direct effect on {explained_logit(report)}" if scaled else "logits"
    colours = [(f"grey: {GREY}", False)] * bool(grey) if scaled else colour_words(scale, grey, True)
    labels = {report.name(head): label_look(label) for head, label in report.labels.items()}
    grid = signed_grid(names, columns, values, scale, grey, GREY)
    return grid.with_known(labels, "direct effect")._replace(
        title=[
            (title + scale.times * (not scaled), True),
            (f"{_MLP}: feed-forward", False),
            *colours,
        ],
        scale=signed_scale(scale, "logits", "value") if scaled else None,
    )


def _has_row(report: WhyReport, layer: int, kind: str) -> bool:
    """Return whether the grid has a row for a layer and a kind of attention.

    A layer without heads has only one row.
    """
    there = [effect.head[0] for effect in report.effects if effect.head[1] == layer]
    return kind in there or (not there and kind == report.kinds[0])


# The ranking ---------------------------------------------------------------------------------


def rankings(report: WhyReport) -> list[doc.Part]:
    """Return two tables: the heads that contribute most for the answer, and against it."""
    titles = ("Write most for the answer", "Write most against it")
    return [
        _table(report, found, title)
        for found, title in zip(report.ranking(), titles, strict=True)
        if found
    ]


def ranking_table(report: WhyReport, least: int) -> doc.Table:
    """Return one table of all heads, the largest contribution first.

    least: how many rows a short screen must show.
    """
    return _table(report, report.ordered, "")._replace(least=least)


def _table(report: WhyReport, effects: Sequence[HeadEffect], title: str) -> doc.Table:
    """Return a ranking table with a row for each head: effect, base rate, label, source token."""
    scale = NumberScale.over(effect.value for effect in effects)
    sources = [None if report.many else report.first.source(each.head) for each in effects]
    from_words = [
        "" if source is None else placed(report.first.keys(each.head), source.place, False)
        for each, source in zip(effects, sources, strict=True)
    ]
    columns: list[tuple[str | doc.Column, list[str]]] = [
        (f"logits{scale.times}", [scale.text(each.value) for each in effects]),
        ("95% interval", [interval_text(each.interval, scale) for each in effects]),
        ("control", ["" if each.base is None else scale.text(each.base) for each in effects]),
        (
            doc.Column(label_title(report.labels.values()), right=False),
            [label_of(report, each.head) for each in effects],
        ),
        (doc.Column("from", right=False), from_words),
        ("", ["" if each is None else scale.text(each.contribution) for each in sources]),
        ("share", [_of_whole(report, each.value) for each in effects]),
    ]
    names, values = [report.name(each.head) for each in effects], [each.value for each in effects]
    table = ranked_table(title, names, values, scale, columns, [each.unclear for each in effects])
    return explained(table, "control", "another word in the answer's place before")


def _of_whole(report: WhyReport, value: float) -> str:
    """Return an effect as a percentage of the logit.

    It is empty if the effect is tiny, or if any effect exceeds the logit. value: the effect in
    logits.
    """
    largest = max(abs(effect.value) for effect in report.effects)
    if report.logit <= largest or abs(value) < _LEAST_SHARE * report.logit:
        return ""
    return f"{value / report.logit:.0%}"


def every_part(report: WhyReport) -> doc.Table:
    """Return a table of all parts of the sum, the largest first."""
    base = report.index_base
    parts = [(report.name(effect.head), effect.value) for effect in report.effects]
    for layer in report.layers:
        parts.append((f"L{layer + base} {_MLP}", report.part("mlp", layer)))
        parts.append((f"L{layer + base} bias", report.part("bias", layer)))
    inner = sum(report.part("bias", layer) for layer in report.layers)
    parts += [("embedding", report.part("embedding")), ("final bias", report.part("bias") - inner)]
    parts = sorted((part for part in parts if part[1]), key=lambda part: -abs(part[1]))
    names, values = [name for name, _ in parts], [value for _, value in parts]
    scale = NumberScale.over(values)
    column = (f"logits{scale.times}", [scale.text(value) for value in values])
    return ranked_table("Every part", names, values, scale, [column])


# Write maps ----------------------------------------------------------------------------------


def mapped(report: WhyReport) -> list[HeadKey]:
    if report.shown:
        return list(report.shown[:_MOST_MAPPED])
    return [] if report.best is None else [report.best.head]


def text_parts(report: WhyReport, lines: int = 0) -> list[doc.Part]:
    """Return the first prompt coloured by a head's contribution from each token to the answer.

    lines: the most lines of it on a first screen, for one head; 0 for several heads, each whole.
    """
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
    title = [("Contribution by source token" + (", first prompt" if report.many else ""), True)]
    scale = signed_scale(NumberScale(maps[0].limit), "logits", "value") if not lines else None
    return [doc.Maps(maps, () if lines else title, texts=True, lines=lines, scale=scale)]


def write_maps(report: WhyReport, scaled: bool = True) -> list[doc.Maps]:
    """Return maps of the chosen heads' contributions (query, key) to the answer's logit.

    scaled: True adds a colour bar.
    """
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
        *([("first prompt", False)] if report.many else []),
    ]
    scale = signed_scale(NumberScale(limit), "logits", "value") if scaled else None
    return [doc.Maps(maps, title, scale=scale)]


# The first screen ----------------------------------------------------------------------------

_GAP = 3
_INDENT, _CELL = 3, 6
"""The columns of the grid's layer names, and of a number such as ``+3.6``."""

_TABLE = 66
"""The columns of the ranking next to other parts."""

_LEAST_ROWS = 3
"""The least rows of the ranking, which is dropped before the grid of all heads loses a layer."""

_WORDS, _WIDE_WORDS, _LEAST_TEXT = 5, 3, 3
"""The lines of prediction and sum at half and at full width, and the least lines of the text."""


def first_groups(report: WhyReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen; the ranking is cut if it is long.

    columns, lines: the available width in characters and lines.
    """
    words = doc.Group([prediction_line(report), doc.Facts(sum_words(report))])
    if not report.tallies or not report.effects:
        return [words]
    grid = head_grid(report, scaled=False)
    table = ranking_table(report, least=_LEAST_ROWS)
    half, tall = (columns - _GAP) // 2, len(grid.rows) + 2
    beside = doc.Beside(half, _GAP)
    wide = _INDENT + _CELL * len(grid.columns)
    if half >= max(wide, _TABLE):
        example = _example(report, half, lines - tall - _WORDS)
        left = doc.Group([words, grid, *example], spaced=True)
        return [doc.Group([left, table], beside=beside)]
    room = half if half >= wide else columns
    if maps := _maps(report, room, lines - _WIDE_WORDS):
        chosen = [grid, *maps] if half >= wide else maps
        shown = doc.Group(chosen, beside=beside if half >= wide else None)
        rest = [] if half >= wide else [doc.Group([grid], yields=1)]
        return [words, shown, *rest, doc.Group([table], yields=2)]
    if half >= wide:
        below = lines - _LEAST_ROWS - 3 - _WORDS - 2  # so that the lines of the ranking are left
        example = _example(report, half, min(max(tall - _WORDS, _LEAST_TEXT), below))
        right = doc.Group([words, *example], spaced=True)
        return [doc.Group([grid, right], beside=beside), doc.Group([table], yields=1)]
    text = _example(report, columns, lines - tall - _LEAST_ROWS - _WORDS - 3)
    above = [words, doc.Group([grid])]
    if tall + _WIDE_WORDS >= lines:
        above = [doc.Group([*words.parts, grid])]
    return [*above, doc.Group([table], yields=1), doc.Group(text, yields=2)]


def _input_groups(report: WhyReport, inputs: InputEffects, columns: int) -> list[doc.Group]:
    """Return the first screen of what the prediction needs; on a wide one, what heads write too."""
    table, rest = input_table(report, inputs), columns - _TABLE - _GAP
    if not report.tallies or not report.effects:
        return [doc.Group([table])]
    grid = head_grid(report, scaled=False)
    if rest < _INDENT + _CELL * len(grid.columns):
        return [doc.Group([table])]
    ranked = [ranking_table(report, _LEAST_ROWS)] * (rest >= _TABLE)
    sides = doc.Beside(_TABLE, _GAP, widths=(_TABLE, rest))
    return [doc.Group([table, doc.Group([grid, *ranked], spaced=True)], beside=sides)]


def _example(report: WhyReport, columns: int, lines: int) -> list[doc.Part]:
    """Return the requested contribution maps if they fit, else the coloured text."""
    if maps := _maps(report, columns, lines):
        return maps
    return text_parts(report, lines - 1) if lines >= _LEAST_TEXT else []


def _maps(report: WhyReport, columns: int, lines: int) -> list[doc.Part]:
    """Return as many of the requested contribution maps as fit, with the number of hidden ones."""
    for part in write_maps(report, scaled=False):
        lines -= len(part.maps) > 1
        queries, keys = part.maps[0].weights.shape
        causal = part.maps[0].causal
        wide, tall = (2 if causal else 5) * keys + 12, queries + 1 + (not causal)
        count = max((columns + _GAP) // (wide + _GAP), 0) * max((lines + 1) // (tall + 1), 0)
        if count:
            hidden = max(len(part.maps) - count, 0)
            return [part._replace(maps=part.maps[:count], title=(), hidden=hidden)]
    return []
