"""The document of ``attnviz heads`` over a long text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.labels import token_labels
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import advised, model_words, named, notes_group, share
from attnviz.draw.regions import region_group
from attnviz.inspect.heads.long import LongHead, LongHeads
from attnviz.measures.registry import said_name
from attnviz.measures.sinks import SINK_WEIGHT
from attnviz.measures.words import word_text

_SMALL, _SMALL_ROWS, _LISTED = (8, 16), 12, 12


def long_document(found: LongHeads) -> doc.Document:
    """Return the document: pooled maps of all heads, their scores, and what was asked for."""
    info, size = found.model, f"{len(found.tokens):,} tokens"
    about: list[doc.Part] = [doc.Facts([*model_words(info), (size, False)])]
    about.append(doc.Quote("text", found.text))
    name = f"attention heads of {info.name}"
    asked = [*_part(found), *_rows(found), *_pairs(found)]
    if found.regions is not None:
        asked.append(region_group(found.regions, found.head_name))
    further = ["--queries A-B --keys A-B", "--token WORD", "--top N", "--reduce full"]
    return doc.Document(
        name,
        name[:1].upper() + name[1:],
        [
            doc.Group(about),
            notes_group((*info.notes, *found.notes), found.tokens),
            *asked,
            doc.Group([_overview(found)]),
            doc.Group([_scores(found)]),
        ],
        doc.Explanation("heads", f"measured in one pass over this text alone, {size}."),
        doc.next_steps(further, tone="faint"),
        heading=[*named(info), (size, False)],
        quoted=found.text,
        finding=long_finding(found),
        first=advised(partial(_first, found, asked), found.tokens),
    )


def _first(
    found: LongHeads, asked: Sequence[doc.Group], columns: int, lines: int
) -> Sequence[doc.Group]:
    notes = [doc.Group([doc.Note(note) for note in found.notes])] if found.notes else []
    if asked:
        return [*notes, *asked]
    table, maps = _scores(found), _overview(found)
    tall = maps.small[0] + 2 if maps.small else 0
    rows = max(lines // 3, 3)
    cut = table._replace(rows=table.rows[:rows], hidden=max(len(table.rows) - rows, 0))
    shown = maps._replace(rows=max((lines - rows - 9) // tall, 1))
    return [*notes, doc.Group([cut]), doc.Group([shown], yields=1)]


def _name(found: LongHeads, head: LongHead) -> str:
    return found.head_name((head.layer, head.head))


def long_finding(found: LongHeads) -> str:
    """Return how many heads sink on the first token, and which other head reaches back furthest."""
    sinking = [head for head in found.heads if (head.scores.get("first") or 0) > SINK_WEIGHT]
    others = [head for head in found.heads if head not in sinking]
    if len(found.heads) == 1:
        (head,) = found.heads
        sinks = "sinks" if sinking else "does not sink"
        return (
            f"{_name(found, head)} {sinks} on the first token (weight "
            f"{share(head.scores.get('first') or 0.0)}) and looks "
            f"{head.scores.get('distance') or 0:,.0f} tokens away in the mean (uniform attention: "
            f"{head.even:,.0f})."
        )
    verb = "sinks" if len(sinking) < 2 else "sink"
    words = (
        f"{len(sinking) or 'None'} of {counted(len(found.heads), 'head')} {verb} on the first "
        f"token (weight above {SINK_WEIGHT})"
    )
    if not others:
        return f"{words}."
    furthest = max(others, key=lambda head: head.scores.get("distance") or 0.0)
    distance = furthest.scores.get("distance") or 0.0
    which = "of the others, " if sinking else ""
    return (
        f"{words}; {which}{_name(found, furthest)} looks furthest away, {distance:,.0f} tokens in "
        f"the mean (uniform attention: {furthest.even:,.0f})."
    )


def _overview(found: LongHeads) -> doc.Maps:
    starts = range(0, len(found.tokens), found.bucket)
    axis = found.tokens.taken(starts)
    maps = [
        doc.Map(_name(found, head), head.pooled, axis, axis, causal=found.causal)
        for head in found.heads
    ]
    cells = f"a cell stands for {found.bucket:,} × {found.bucket:,} tokens"
    title = [
        ("All heads, pooled", True),
        (f"{cells}: mean over queries of the summed weight on the keys", False),
    ]
    across = 0 if found.sorted_by else found.model.heads
    return doc.Maps(maps, title, _SMALL, _SMALL_ROWS, across)


def _scores(found: LongHeads) -> doc.Table:
    names = list(found.heads[0].scores)
    columns = [doc.Column("head", right=False), *(doc.Column(said_name(name)) for name in names)]
    order = found.heads
    if not found.sorted_by:
        order = tuple(sorted(order, key=lambda head: -(head.scores.get("distance") or 0.0)))
    rows = [
        doc.Row([_name(found, head), *(_number(head.scores[name]) for name in names)])
        for head in order
    ]
    by = said_name(found.sorted_by or "distance")
    return doc.Table(columns, rows, [("Scores", True), (f"heads by {by}", False)], ranked=True)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


def _part(found: LongHeads) -> list[doc.Group]:
    if found.part is None:
        return []
    queries, keys = (found.tokens.taken(each) for each in found.part)
    drawn = [
        doc.Map(_name(found, head), head.part, queries, keys)
        for head in found.heads
        if head.part is not None
    ]
    first, second = (f"{each.start:,}–{each.stop - 1:,}" for each in found.part)
    title = [("In full", True), (f"queries {first}, keys {second}", False)]
    return [doc.Group([doc.Maps(drawn, title)])]


def _rows(found: LongHeads) -> list[doc.Group]:
    """Return the text coloured by what the word attends to, for each head that keeps its row."""
    if found.word is None:
        return []
    asking = found.tokens.taken([found.word.span.start])
    said = word_text(found.tokens, found.word.span).strip()
    drawn = []
    for head in found.heads:
        if head.row is not None:
            row = head.row.copy()
            row[0] = np.nan if found.causal else row[0]
            full = float(np.nanmax(row, initial=0.0)) or 1.0
            sink = f", {head.row[0]:.0%} on the first token" if found.causal else ""
            words = f"{_name(found, head)}: what “{said}” attends to, largest {full:.3f}{sink}"
            drawn.append(doc.Map(words, row[None], asking, found.tokens, full=full))
    return [doc.Group([doc.Maps([one], texts=True, lines=6, scale=None)]) for one in drawn]


def _pairs(found: LongHeads) -> list[doc.Group]:
    """Return the strongest pairs of each head."""
    labels = token_labels(found.tokens) if any(head.pairs for head in found.heads) else []
    rows = [
        doc.Row([_name(found, head), f"{weight:.3f}", _place(labels, query), _place(labels, key)])
        for head in found.heads
        for weight, query, key in head.pairs
    ]
    columns = [doc.Column("head", right=False), doc.Column("weight")]
    columns += [doc.Column("from", right=False), doc.Column("to", right=False)]
    title = [("Strongest pairs of each head", True)]
    return [doc.Group([doc.Table(columns, rows, title, least=_LISTED)])] if rows else []


def _place(labels: Sequence[str], place: int) -> str:
    return f"{labels[place]} ({place:,})"
