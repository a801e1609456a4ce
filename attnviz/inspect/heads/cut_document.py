"""The document of ``heads --cut``: the prediction without an edge, and the heads that carry it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.labels import numbered, token_label, word_label
from attnviz.draw.numbers import counted
from attnviz.draw.page.data import Page
from attnviz.draw.provenance import advised, model_words, named, notes_group, probability
from attnviz.engine.likely import Likely
from attnviz.inspect.heads.cut import CutPrediction, CutReport
from attnviz.measures.words import Word
from attnviz.records import HeadsRecord, Tokens

_LEAST_ROWS = 3
_TABLE, _GAP = 36, 4
"""The width of a table of predictions, and of the gap between two, in columns."""

_HALF = 76
"""The least columns of each half if the heads stand next to the predictions."""

_TEXT_LINES = 6

_NOTHING = 0.00005
"""A change of the loss below this, in nats per token, is written as 0."""

_ROUNDING = 1e-9
"""A KL below this, in nats, is rounding and is written as 0."""


def cut_document(found: CutReport) -> doc.Document:
    """Return the document: the edge cut in the chosen heads together, then in each alone."""
    info = found.model
    words = [] if found.kind == "self" else [f"{found.kind} attention"]
    words += [counted(len(found.queries), "token")]
    about: list[doc.Part] = [
        doc.Facts([*model_words(info), *((word, False) for word in words)]),
        doc.Quote("text", found.text),
        *([] if found.target is None else [doc.Quote("target", found.target)]),
    ]
    tables = [_predicted(found, each) for each in found.predictions]
    beside = doc.Group(tables, beside=doc.Beside(_TABLE, _GAP))
    how = doc.Note(
        "attention knockout (Geva et al. 2023): the edge's logit is −∞, softmax over the remaining "
        "keys"
    )
    best = found.name(found.alone[0].heads)
    choose = f"--layer {best[1:]}" if found.by_layer else f"--head {best}"
    next_steps = ([f"{choose} cuts it there alone"] if len(found.heads) > 1 else []) + ["--explain"]
    return doc.Document(
        f"an edge of {info.name} cut",
        f"Attention of {info.name} without {_edge(found)}",
        [
            doc.Group(about),
            notes_group(info.notes, found.queries),
            doc.Group([how, _facts(found)]),
            beside,
            doc.Group([_alone(found)]),
            doc.Group([_text(found)]),
        ],
        doc.Explanation(
            "heads",
            f"measured over this text alone ({len(found.queries)} tokens), in one pass as it is "
            "and one for each cut.",
        ),
        doc.next_steps(next_steps, tone="faint"),
        heading=[*named(info), (f"attention knockout in {_where(found)}", False)],
        quoted=found.text,
        finding=_finding(found),
        page=None if found.maps is None else partial(_page, found, found.maps),
        first=advised(lambda columns, lines: _first(found, columns), found.queries),
    )


def _page(found: CutReport, maps: tuple[HeadsRecord, HeadsRecord]) -> Page:
    from attnviz.inspect.heads.page import cut_page

    return cut_page(*maps, _edge(found), found.edges[0])


def _first(found: CutReport, columns: int) -> Sequence[doc.Group]:
    """Return the first screen: predictions, single heads and text; two columns if it is wide."""
    wide = columns >= 2 * _HALF + _GAP
    half = (columns - _GAP) // 2 if wide else columns
    fit = max((half + _GAP) // (_TABLE + _GAP), 1)
    tables = [_predicted(found, each) for each in found.predictions]
    predictions = doc.Group(tables[:fit], beside=doc.Beside(_TABLE, _GAP))
    answer, alone = doc.Group([_facts(found), predictions]), doc.Group([_alone(found, _LEAST_ROWS)])
    text = doc.Group([_text(found, _TEXT_LINES)], yields=1)
    if not wide:
        return [answer, text, alone]
    left = doc.Group([answer, text], spaced=True)
    return [doc.Group([left, alone], beside=doc.Beside(_HALF, _GAP))]


# Words ---------------------------------------------------------------------------------------


def _word(tokens: Tokens, word: Word) -> str:
    return word_label(tokens.texts[word.span.start : word.span.stop])


def _edge(found: CutReport) -> str:
    return f"{_word(found.queries, found.query)} → {_word(found.keys, found.key)}"


def _where(found: CutReport) -> str:
    if len(found.heads) == 1:
        return found.name(found.heads)
    return f"{'all ' * found.every}{counted(len(found.heads), 'head')}"


def _finding(found: CutReport) -> str:
    """Return the finding: the likeliest token before and after the cut, the KL and the loss.

    The token is that of the first compared position.
    """
    asked = found.predictions[0]
    old, new = asked.before[0], asked.after[0]
    before = probability(old.probability)
    change = f"stays {_name(old)} ({before} → {probability(asked.kept)})"
    if old.id != new.id:
        change = (
            f"changes from {_name(old)} ({before} → {probability(asked.kept)}) to {_name(new)} "
            f"({probability(new.probability)})"
        )
    return (
        f"Without {_edge(found)} in {_where(found)} the prediction {_at(found, asked)} {change}; "
        f"KL {_nats(asked.kl)}, loss {_change(found.loss_after - found.loss_before)} nats."
    )


def _at(found: CutReport, asked: CutPrediction) -> str:
    name = token_label(found.predicted.texts[asked.place])
    return f"{'of hidden' if found.masked else 'after'} “{name}”"


def _facts(found: CutReport) -> doc.Facts:
    """Return the line of loss before and after the cut, and of the edge's attention weight."""
    over = counted(found.measured, "token") + (", each masked in turn" if found.masked else "")
    loss = f"loss {found.loss_before:.3f} → {found.loss_after:.3f} nats/token ({over})"
    return doc.Facts(
        [(loss, False), (f"mean weight on the edge {probability(found.weight)}", False)]
    )


def _name(one: Likely) -> str:
    return f"“{token_label(one.text)}”"


def _nats(value: float) -> str:
    return f"{value:.2g}" if value >= _ROUNDING else "0"


def _change(value: float) -> str:
    return f"{value:+.4f}" if abs(value) >= _NOTHING else "0"


# Tables --------------------------------------------------------------------------------------


def _predicted(found: CutReport, asked: CutPrediction) -> doc.Table:
    """Return a table of the likeliest tokens before the cut and after it."""
    rows = [
        doc.Row(
            [
                token_label(old.text),
                probability(old.probability),
                token_label(new.text),
                probability(new.probability),
            ]
        )
        for old, new in zip(asked.before, asked.after, strict=True)
    ]
    columns = [
        doc.Column("before", right=False),
        doc.Column("p"),
        doc.Column("after", right=False),
        doc.Column("p"),
    ]
    title = [(f"{numbered(_at(found, asked), asked.place)}", True)]
    title += [(f"KL {_nats(asked.kl)} nats", False)]
    return doc.Table(columns, rows, title)


def _alone(found: CutReport, least: int = 0) -> doc.Table:
    """Return a table of the heads or layers in which the edge was cut alone, by KL.

    least: how many rows a short screen must show; 0 for all.
    """
    unit = "layer" if found.by_layer else "head"
    measured = not found.masked
    columns = [
        doc.Column(unit, right=False),
        doc.Column("KL, nats"),
        doc.Column("weight"),
        *[doc.Column("Δ loss, nats/token")] * measured,
    ]
    most = max((each.kl for each in found.alone), default=0.0)
    rows = [
        doc.Row(
            [
                found.name(each.heads),
                _nats(each.kl),
                probability(each.weight),
                *([] if each.loss_delta is None else [_change(each.loss_delta)]),
            ],
            bar=(each.kl, most),
            tone="faint" if each.kl < _ROUNDING else "plain",
        )
        for each in found.alone
    ]
    title = f"Cut in one {unit} alone, ranked by KL {_at(found, found.predictions[0])}"
    return doc.Table(columns, rows, [(title, True)], ranked=True, least=least)


def _text(found: CutReport, lines: int = 0) -> doc.Maps:
    """Return the text, each token coloured by how much the cut changes its loss.

    lines: the most terminal lines of the text; 0 for any number.
    """
    deltas, tokens = found.loss_deltas, found.predicted
    limit = float(np.nanmax(np.abs(deltas), initial=0.0)) or 1.0
    asking = Tokens.bare((0,))
    shown = doc.Map("Δ loss of each token, nats", deltas[None], asking, tokens, limit=limit)
    return doc.Maps([shown], texts=True, lines=lines, scale=None)
