"""The document of a head's card: the parts of the other questions' documents, on one page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from attnviz.draw import document as doc
from attnviz.draw.labels import at_blanks, cut, token_label
from attnviz.draw.numbers import counted
from attnviz.draw.provenance import advised, model_words, named, notes_group, share
from attnviz.inspect.head.records import HeadCard, Hurt
from attnviz.inspect.head.words import (
    around,
    clear_sources,
    finding,
    link_words,
    measured,
    part_lines,
    word_at,
)
from attnviz.inspect.heads.examples import examples
from attnviz.inspect.heads.report import HeadsView
from attnviz.inspect.interventions.ablate.document import ranking_tables, where_it_hurts
from attnviz.inspect.interventions.ablate.records import AblationReport
from attnviz.inspect.interventions.path.document import path_table, share_table
from attnviz.inspect.patterns.tables import score_table
from attnviz.inspect.why.document import ranking_table, text_parts

_LEAD, _GAP = 9, 3
_FACTS = 40
"""The least columns of the lines of a first screen next to the map."""

_TABLE = 38
"""The columns of a small table, such as two next to each other need on 80."""

_TEXTS = doc.Beside(72, _GAP, 2, tight=True)
"""How the two coloured texts stand next to each other."""

_LEAST_ROWS, _TEXT = 2, 7
"""The least rows of a small table, and the lines of a coloured text with its title."""

_SMALL_MAP = 61
"""The columns of a map with a short legend."""

_WIDE = 100
"""The columns from which the lines may be more than those of the map."""

_IN_TABLES = ("hurts", "fires")
_IN_FINDING = ("label", "without")
_LEFT_OUT = (
    _IN_TABLES,
    (*_IN_TABLES, "label"),
    (*_IN_TABLES, *_IN_FINDING),
    _IN_FINDING,
)
"""The lines that a first screen may leave out, as its tables or its finding say the same."""

_LEFT_OUT_HERE: Sequence[Sequence[str]] = (_IN_TABLES, ())
"""The same of a card whose finding is about the text, and so says neither label nor loss."""

_PAGE = 100
"""The columns of the maps that a page shows."""


def card_document(card: HeadCard) -> doc.Document:
    """Return the document of a head's card, a one-page summary, with its first screen."""
    record = card.map.first.record
    shown = f"{card.name} of {card.model.name}"
    return doc.Document(
        name=f"head {shown}",
        title=f"Head {shown}",
        groups=[doc.Group(_about(card)), *card_groups(card)],
        explain=doc.Explanation("head", measured(card)),
        hints=doc.next_steps(_hints(card)),
        heading=[*named(card.model), (card.name, False), *((w, False) for w in _sizes(card))],
        quoted=card.text,
        finding=finding(card),
        first=advised(partial(_first, card), record.keys),
    )


def card_groups(card: HeadCard) -> list[doc.Group]:
    """Return the groups of parts of a head's card, without the finding above them."""
    record = card.map.first.record
    maps = examples(card.map, HeadsView(), _PAGE, max(len(record.queries) + 4, 12))
    return [
        notes_group((*card.model.notes, *card.notes), record.keys),
        doc.Group(
            [doc.Group(_lines(card)), doc.Group(maps)],
            beside=doc.Beside(_FACTS, _GAP, 2, tight=True),
        ),
        doc.Group(small_tables(card, card.top), beside=doc.Beside(_TABLE, _GAP, tight=True)),
        doc.Group(_texts(card), beside=_TEXTS),
        doc.Group(_full(card), spaced=True, full=True),
    ]


def _about(card: HeadCard) -> list[doc.Part]:
    kind = [] if card.kind == "self" else [(f"{card.kind} attention", False)]
    sizes = [(word, False) for word in _sizes(card)]
    return [doc.Facts([*model_words(card.model), *kind, *sizes]), doc.Quote("text", card.text)]


def _sizes(card: HeadCard) -> list[str]:
    if card.ablation is None:
        return []
    texts = card.ablation.texts
    tokens = counted(sum(map(len, texts)), "token")
    source = [card.source] if card.source else [counted(len(texts), "text")]
    return [*source, tokens]


def _hints(card: HeadCard) -> list[str]:
    hints = ["--save card.svg"]
    if card.source.endswith("built-in texts"):
        hints.append("--texts FILE your data")
    if card.sources and (clear := clear_sources(card)):
        hints.append(f"attnviz head {card.head_name(clear[0].sender)} what it reads from")
    if card.head[0]:
        hints.append(f"attnviz link --head {card.head_name(card.head)} why it looks there")
    return [*hints, "--explain"]


def _lines(card: HeadCard, without: Collection[str] = ()) -> list[doc.Part]:
    """Return a line for each part of a head's card, except the parts named in ``without``."""
    lines = [each for each in part_lines(card) if each[0] not in without]
    return [doc.Facts([(word, False) for word in words], name, _LEAD) for name, words in lines]


# Tables and texts ----------------------------------------------------------------------------


def small_tables(card: HeadCard, rows: int) -> list[doc.Part]:
    """Return tables of the head's strongest links, its effects and its links to other heads.

    rows: the most rows of each table.
    """
    tables: list[doc.Part] = []
    if card.firings:
        tables.append(_firings(card, rows))
    if card.hurts:
        tables.append(_hurts(card, rows))
    if card.writes is not None:
        tables.append(_pairs(card, rows))
    if card.sources:
        tables.append(_sources(card, rows))
    if card.readers is not None:
        title = [("read by", True), ("share of their input", False)]
        table = path_table(card.readers, rows, brief=True)
        tables.append(table._replace(title=title, least=min(rows, _LEAST_ROWS)))
    return tables


def _small(
    title: str, remark: str, columns: Sequence[doc.Column], rows: list[doc.Row]
) -> doc.Table:
    heading: doc.Words = [(title, True), (remark, False)]
    return doc.Table(columns, rows, heading, least=min(len(rows), _LEAST_ROWS))


def _firings(card: HeadCard, most: int) -> doc.Table:
    """Return a table of the head's strongest link in each text; the ``most`` strongest first."""
    rows = []
    for one in card.firings[:most]:
        place = Hurt(one.text, one.queries, one.query, 0.0)
        rows.append(doc.Row([link_words(one), share(one.weight), around(place)]))
    columns = [doc.Column("", right=False), doc.Column(""), _context()]
    return _small("fires most", "strongest link of a text", columns, rows)


def _hurts(card: HeadCard, most: int) -> doc.Table:
    """Return a table of the ``most`` tokens whose loss rises most if the head is ablated."""
    rows = [
        doc.Row([word_at(one.tokens, one.place), f"{one.change:+.2f}", around(one)])
        for one in card.hurts[:most]
    ]
    columns = [doc.Column("", right=False), doc.Column(""), _context()]
    remark = f"nats, of {card.predictions:,} tokens"
    return _small("largest Δ loss", remark, columns, rows)


def _context() -> doc.Column:
    return doc.Column("", right=False, tone="faint", cuts=True)


def _pairs(card: HeadCard, most: int) -> doc.Table:
    """Return a table of one-token texts and the token whose logit the head raises most for each."""
    assert card.writes is not None
    found, words = card.writes
    rows = [
        doc.Row(
            [f"{_word(words[read])} → {_word(words[written])}", f"{value:+.2f}"],
        )
        for read, written, value in found.strongest[:most]
    ]
    columns = [doc.Column("", right=False), doc.Column("")]
    return _small("alone it raises", f"logits, of {found.tokens} tokens", columns, rows)


def _word(text: str) -> str:
    return cut(token_label(text), 14)


def _sources(card: HeadCard, most: int) -> doc.Table:
    """Return a table of the ``most`` earlier heads with the largest share in the head's input."""
    shown = card.sources[:most]
    names = [f"{card.head_name(each.sender)} {each.read.into}" for each in shown]
    title = [("reads from", True), ("share of its input", False)]
    table = share_table(names, [each.read for each in shown], brief=True)
    return table._replace(title=title, least=min(len(shown), _LEAST_ROWS))


def _texts(card: HeadCard, lines: int = 0) -> list[doc.Part]:
    """Return the text whose loss rises most without the head, and the prompt, both coloured.

    The prompt is coloured by the head's contribution from each token to the answer. lines: the most
    terminal lines of each; 0 for all.
    """
    parts: list[doc.Part] = []
    if (alone := _hurt_text(card)) is not None and card.hurts:
        parts += where_it_hurts(alone)
    if card.why is not None and card.written is not None:
        parts += text_parts(replace(card.why, shown=(card.key,)))
    return parts


def _hurt_text(card: HeadCard) -> AblationReport | None:
    """Return the ablation of this head alone, over the text with the largest rise of the loss."""
    report, effect = card.ablation, card.effect
    if report is None or effect is None:
        return None
    if card.hurts:
        at = card.hurts[0].text
        effect = replace(effect, token_losses=effect.token_losses[at : at + 1])
        targets = report.targets[at : at + 1]
        report = replace(report, texts=report.texts[at : at + 1], targets=targets)
    return replace(report, effects=(effect,))


def _full(card: HeadCard) -> list[doc.Part]:
    """Return the whole tables that the reports of other commands have on this head."""
    parts: list[doc.Part] = []
    if card.scored is not None and card.pattern is not None and card.pattern.label is not None:
        parts.append(score_table(card.scored, card.pattern.label, [card.pattern], everyone=False))
    if card.ablation is not None and card.effect is not None:
        parts += ranking_tables(replace(card.ablation, effects=(card.effect,)))
    if card.readers is not None:
        title: doc.Words = [("Read by", True), ("every later head", False)]
        parts.append(path_table(card.readers, len(card.readers.listeners))._replace(title=title))
    if card.why is not None and card.written is not None:
        alone = replace(card.why, kinds=(card.kind,), shown=(card.key,))
        parts.append(ranking_table(alone, least=0)._replace(title=[("Written to the logit", True)]))
    return parts


# The first screen ----------------------------------------------------------------------------


def _first(card: HeadCard, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: facts next to the map, then as many tables and texts as fit."""
    maps = examples(card.map, HeadsView(), _map_room(card, columns), lines)
    wide = columns - _map_columns(card, maps) - _GAP
    high = _map_lines(card, maps)
    left_out = _LEFT_OUT_HERE if card.asked else _LEFT_OUT
    for without in left_out:  # tables show some lines better, if there is room for them
        facts = _lines(card, without)
        tall = lines_of(facts, wide - _LEAD)
        left = lines - max(tall, high) - 1
        if (tall <= high or columns >= _WIDE) and left > _LEAST_ROWS:
            break
    beside = doc.Beside(_FACTS, _GAP, yields=True)
    groups = [doc.Group([doc.Group(facts), doc.Group(maps)], beside=beside)]
    tables = small_tables(card, card.top)
    across = max((columns + _GAP) // (_TABLE + _GAP), 1)
    number = 0
    while tables and left >= _LEAST_ROWS + 1:
        number += 1
        row, tables = tables[:across], tables[across:]
        rows = max(min(card.top, left - 1), _LEAST_ROWS)
        groups.append(
            doc.Group(
                [_shown(table, rows) for table in row],
                beside=doc.Beside(_TABLE, _GAP),
                yields=number,
            )
        )
        left -= rows + 2
    if left >= _TEXT:
        groups.append(doc.Group(_texts(card, left), beside=_TEXTS, yields=number + 1))
    return groups


def _shown(table: doc.Part, rows: int) -> doc.Part:
    assert isinstance(table, doc.Table)
    return table._replace(rows=table.rows[:rows])


def lines_of(facts: Sequence[doc.Part], max_width: int) -> int:
    """Return how many lines the given facts take. max_width: in characters."""
    said = [" · ".join(w for w, _ in each.words) for each in facts if isinstance(each, doc.Facts)]
    return sum(len(at_blanks(words, max(max_width, 10))) for words in said)


def _map_lines(card: HeadCard, maps: Sequence[doc.Part]) -> int:
    drawn = [part for part in maps if isinstance(part, doc.Maps)]
    if not drawn or drawn[0].texts:
        return len(maps)
    return len(card.map.first.record.queries) + 1 + (drawn[0].scale is not None) * 2


def _map_room(card: HeadCard, columns: int) -> int:
    """Return the available width in characters for the map; a small map has a short legend."""
    room = columns - _FACTS - _GAP
    return min(room, _SMALL_MAP) if _width(card) <= _SMALL_MAP else room


def _width(card: HeadCard) -> int:
    return 2 * len(card.map.first.record.keys) + 12


def _map_columns(card: HeadCard, maps: Sequence[doc.Part]) -> int:
    drawn = [part for part in maps if isinstance(part, doc.Maps)]
    return _width(card) if drawn else 0
