"""The document of a head's card: the parts of the other questions' documents, on one page."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from attnviz.draw import document as doc
from attnviz.draw import provenance
from attnviz.draw.labels import at_blanks, cut, token_label
from attnviz.draw.numbers import counted, listed, whole_percent
from attnviz.draw.page.data import Look, Page
from attnviz.draw.provenance import probability, share
from attnviz.engine.patching import SITES
from attnviz.inspect.head.report import HeadCard, Hurt, around, link_words, word_at
from attnviz.inspect.heads.layout import examples
from attnviz.inspect.heads.links import head_links, strongest_words
from attnviz.inspect.heads.look import measures, page_capture, with_effects
from attnviz.inspect.heads.sentences import quoted_ends
from attnviz.inspect.interventions.ablate.claims import (
    effect_words,
    interval_words,
    loss_over,
    unclear_words,
    without_words,
)
from attnviz.inspect.interventions.ablate.screen import ranking_tables, where_it_hurts
from attnviz.inspect.interventions.path.report import Listener
from attnviz.inspect.interventions.path.screen import path_table, share_table
from attnviz.inspect.interventions.study import Mean
from attnviz.inspect.patterns.report import PatternScores
from attnviz.inspect.patterns.screen import behind, interval, score_table, short
from attnviz.inspect.why.written import ranking_table, text_parts
from attnviz.measures.labels import label_of
from attnviz.measures.registry import label_named
from attnviz.measures.sinks import SINK_WEIGHT
from attnviz.measures.telling import LEAST, LIGHT, told
from attnviz.prompts.naming import logits, next_word, placed, quoted, quoted_word
from attnviz.records import SINKS, HeadLabel, HeadsRecord

_LEAD, _GAP = 9, 3
_FACTS = 40  # the least columns of the lines of a first screen next to the map
_TABLE = 38  # the columns of a small table, such as two next to each other need on 80
_TEXTS = doc.Beside(72, _GAP, 2, tight=True)  # how the two coloured texts stand next to each other
_LEAST_ROWS, _TEXT = 2, 7
"""The least rows of a small table, and the lines of a coloured text with its title."""

_EDGES = 3  # the lines of the edges of two frames, one above the other, that one frame has not
_SMALL_MAP = 61  # the columns of a map with a short legend
_WIDE = 100  # the columns from which the lines may be more than those of the map
_IN_TABLES = ("helps", "fires")
_IN_FINDING = ("label", "ablated")
_LEFT_OUT = (_IN_TABLES, (*_IN_TABLES, "label"), (*_IN_TABLES, *_IN_FINDING), _IN_FINDING)
"""The lines that a first screen may leave out, as its tables or its finding say the same."""

_PAGE = 100  # the columns of the maps that a page shows
_NAMED, _LONGEST = 3, 14
_LITTLE = 0.1
"""The share of the logit below which what a head writes towards a prediction is not told."""

_FEW = "too few pairs of prompts fit this model for an interval"


def document(card: HeadCard) -> doc.Document:
    """Return the document of a head's card, a one-page summary: a brief form, and the whole."""
    shown, sizes = f"{card.name} of {card.model.name}", list[tuple[str, bool]]()
    measured, hints = ["map and prediction on this text"], ["--save card.svg"]
    if card.ablation is not None:
        sizes.append((card.source or counted(card.ablation.text_count, "text"), False))
        sizes.append((counted(card.ablation.token_count, "token"), False))
        measured.append(loss_over(card.ablation))
    if card.scored is not None:
        measured.append("the label on the probes of attnviz patterns")
    if card.readers is not None or card.sources:
        measured.append("reads over the built-in pairs of prompts")
    if card.source.endswith("built-in texts"):
        hints.append("--texts FILE: your data")
    if clear := card.clear_sources:
        hints.append(f"attnviz head {card.head_name(clear[0].sender)} shows what it reads from")
    if card.head[0]:
        hints.append(f"attnviz link --head {card.name} explains why it looks there")
    kind = [] if card.kind == "self" else [(f"{card.kind} attention", False)]
    facts = doc.Facts([*provenance.model_words(card.model.of(card.kind)), *kind, *sizes])
    over = f"measured in this run: {', '.join(measured)}; seed {card.seed}."
    return doc.Document(
        name=f"head {shown}",
        title=f"Head {shown}",
        groups=[doc.Group([facts, doc.Quote("text", card.text)]), *card_groups(card)],
        explain=doc.Explanation("head", over),
        hints=doc.next_steps([*hints, "--explain"]),
        heading=[*provenance.named(card.model), (card.name, False), *sizes],
        quoted=card.text,
        finding=finding(card),
        first=provenance.advised(partial(_first, card), card.map.first.record.keys),
    )


def card_groups(card: HeadCard) -> list[doc.Group]:
    """Return the groups of parts of a head's card, without the finding above them."""
    record = card.map.first.record
    maps = examples(card.map, _PAGE, max(len(record.queries) + 4, 12))
    facts = doc.Beside(_FACTS, _GAP, 2, tight=True)
    return [
        provenance.notes_group((*card.model.notes, *card.notes), record.keys),
        doc.Group([doc.Group(_lines(card)), doc.Group(maps)], beside=facts),
        doc.Group(_small_tables(card, card.top), beside=doc.Beside(_TABLE, _GAP, tight=True)),
        doc.Group(_texts(card), beside=_TEXTS),
        doc.Group(_full(card), spaced=True, full=True),
    ]


# The finding ---------------------------------------------------------------------------------


def finding(card: HeadCard) -> str:
    """Return the finding, in at most two lines: the head's label, and the loss without the head.

    If a person gave a text, it says what the head does there, and what it writes.
    """
    lead = "" if card.complete else "Incomplete. "
    if card.model.weights == "random":
        return f"{lead}Random weights: {card.name} has learnt nothing; its numbers are arbitrary."
    if card.asked:
        label = _told_label(card)
        known = f" ({provenance.known_text(label)})" if label.is_known else ""
        attends = f"{card.name}{known} {_attends(card, label)}"
        pairs = [(attends, end) for end in (_towards(card), _towards(card, brief=True), "")]
    else:
        pairs = [*product(_labelled(card), _lost(card))]
    words = [f"{lead}{' '.join(pair)}".strip() for pair in pairs]
    return next(filter(provenance.fits_two_lines, words), words[-1])


def _told_label(card: HeadCard) -> HeadLabel:
    """Return the head's label from other texts, if it has one; else what describes this text."""
    label = card.map.first.heads[0].label
    pattern = card.pattern
    if label.is_known or pattern is None or pattern.label is None:
        return label
    score = pattern.scores[pattern.label]
    if score is None or label_named(pattern.label).target:  # these have a score of this text
        return label
    return label_of(pattern.label, score, source="patterns")


def _attends(card: HeadCard, label: HeadLabel) -> str:
    """Return what a head attends to in this text, if possible a link that its label speaks of."""
    shown, measure = card.map.first, label_named(label.name)
    links = told(shown.record, None, {card.head: label})
    if links and (links[0].why != "asked" or not label.is_known or not measure.target):
        query, key = quoted_ends(shown, links[0].link)
        copy, weight = links[0].copy, share(links[0].weight)
        after = "" if copy is None else f", which followed {quoted_word(shown.record.keys, copy)}"
        return f"attends ({weight}) from {query} to {key}{after}."
    if measure.target and label.name not in SINKS and math.isnan(label.on_text):
        return f"has nothing to do here: {measure.absent.format(text='the text')}."
    if measure.target and label.name not in SINKS:
        total, where, seen = len(shown.record.queries), "", ""
        if measure.absent and 0 < label.events < 0.75 * total:  # a mean of some queries alone
            where, seen = ", where there is one", f"{label.events} of {total} tokens; "
        only = "only " * (label.on_text < LEAST)
        given = f"{only}{share(label.on_text)} of its attention here on {measure.target}"
        return f"puts {given}{where} ({seen}uniform {share(label.base_rate)})."
    sink = shown.sinks.get(card.head, 0.0)
    rest = f"; {share(sink)} of its attention is on the sink" if sink >= SINK_WEIGHT else ""
    diffuse = f"is diffuse here ({share(label.score)}; 1 = uniform)" * (label.name == "spread")
    if (pair := strongest_words(shown)) is None:
        return f"{diffuse or 'links no two words here'}{rest}."
    query, key = quoted_word(shown.record.queries, pair[0]), quoted_word(shown.record.keys, pair[1])
    words, weight = f"{query} → {key}", share(pair[2])
    if diffuse:
        return diffuse + f"; its strongest link is {words} ({weight})" * (pair[2] >= LEAST) + "."
    if pair[2] < max(LIGHT, 1.5 * pair[3]):  # hardly more than uniform attention gives
        strongest = f"strongest: {words} ({weight}, uniform {share(pair[3])})"
        return f"links no two words strongly here; {strongest}{rest}."
    return f"has its strongest link of two words here from {query} to {key} ({weight}){rest}."


def _labelled(card: HeadCard) -> list[str]:
    """Return sentences on the head's label, the longest first."""
    pattern = card.pattern
    if pattern is None:
        return [f"{card.name}."]
    if pattern.label is None:
        return [f"{card.name} has no label."]
    score = f"{card.name}: {label_named(pattern.label).said} {short(pattern.score)}"
    support = [words for words in _support(pattern, pattern.label) if words]
    few = f"{score} ({support[0]}, {support[-1]})."
    return [f"{score} ({', '.join(support)}).", few, f"{score}."]


def _lost(card: HeadCard) -> list[str]:
    """Return sentences on the loss without the head; the first one may name a token."""
    report, effect = card.ablation, card.effect
    if report is None or effect is None:
        return [""]
    ends, loss = interval_words(report, effect), without_words(report, effect, "it")
    if not ends:
        return [f"{loss}; {counted(len(report.texts), 'text')}, no interval."]
    if not _matters(card):
        return [f"{unclear_words(report, effect)}."]
    most = [f", most at {_quoted(hurt)}" for hurt in card.hurts[:1]]
    return [f"{loss}, 95% CI {ends}{hurts}." for hurts in (*most, "")]


def _matters(card: HeadCard) -> bool:
    """Return whether the loss without the head changes significantly among all heads."""
    report, effect = card.ablation, card.effect
    if report is None or effect is None:
        return False
    mean = effect.shown(report.metric)
    return mean.significant if mean.signed and len(report.effects) > 1 else not mean.unclear


def _quoted(hurt: Hurt) -> str:
    return f"“{word_at(hurt.tokens, hurt.token)}”"


# The parts, a line each ----------------------------------------------------------------------


def _lines(card: HeadCard, without: Collection[str] = ()) -> list[doc.Part]:
    """Return a line for each part of a card but those in ``without``, or why it is missing."""
    fires = [f"{link_words(link)} {share(link.weight)}" for link in card.firings[:2]]
    lines = {
        "label": (_label(card), "label"),
        "ablated": (_without(card), "loss"),
        "helps": (_hurts(card), "hurts"),
        "fires": (fires, "fires"),
        "adds": (_writes(card), "writes"),
        "copies": (_copies(card), "copies"),
        "reads": (_reads(card), "paths"),
        "read by": (_read_by(card), "readers"),
        "cost": (_cost(card), "cost"),
    }
    parts: list[doc.Part] = []
    for name, (words, part) in lines.items():
        if not words and part in card.missing:
            reason = card.missing[part].split(": ")[0].replace(repr(card.model.name), "the model")
            words = [f"not measured: {reason}"]
        if words and name not in without:
            parts.append(doc.Facts([(word, False) for word in words], name, _LEAD))
    return parts


def _label(card: HeadCard) -> list[str]:
    pattern = card.pattern
    if pattern is None:
        return []
    if card.model.weights == "random":
        return ["none: random weights"]
    if pattern.label is None:
        best = max(pattern.strength, key=lambda name: pattern.strength[name], default=None)
        if best is None:
            return ["none"]
        nearest = f"{label_named(best).said} {short(pattern.scores[best])}"
        return [f"none; nearest: {nearest}", f"chance {short(pattern.base_rate[best])}"]
    label = f"{label_named(pattern.label).said} {short(pattern.score)}"
    return [label, *_support(pattern, pattern.label)]


def _support(pattern: PatternScores, label: str) -> list[str]:
    """Return the chance level, the interval and the sample of a head's label."""
    between = [f"95% CI {ends}"] if (ends := interval(pattern, label)) else []
    return [f"chance {short(pattern.chance)}", *between, behind(pattern, label)]


def _without(card: HeadCard) -> list[str]:
    report, effect = card.ablation, card.effect
    if report is None or effect is None:
        return []
    mean, ends = effect.shown(report.metric), interval_words(report, effect)
    words = [effect_words(report, effect)]
    words += [f"95% CI {ends}" + " includes 0" * mean.unclear] if ends else []
    if mean.base_rate is not None:
        words.append(f"control {mean.base_rate:+.3g} (random vector)")
    return [*words, counted(len(report.texts), "text")]


def _hurts(card: HeadCard) -> list[str]:
    if not card.hurts or not _matters(card):
        return []
    first, *others = card.hurts[:_NAMED]
    most = f"{_quoted(first)} (loss {first.change:+.1f} nats without it)"
    return [listed([most, *(f"{_quoted(hurt)} ({hurt.change:+.1f})" for hurt in others)])]


def _writes(card: HeadCard) -> list[str]:
    """Return the head's part of the answer's logit, its probability, its source, its control."""
    report, effect = card.why, card.written
    if report is None or effect is None:
        return []
    first, logit, source = report.first, report.logit, report.first.source(card.key)
    whole = f"{logit:.1f}" if abs(logit) >= 1 else logits(logit).removeprefix("+")
    answer = quoted(first.answer)
    if first.attribution.span is not None:
        answer = f"the answer's {first.answer}"
    p = probability(dict(first.attribution.top)[first.attribution.answer])
    read = "" if source is None else f", read from {placed(first.keys(card.key), source.key)}"
    base = "" if effect.base is None else f"; control {logits(effect.base)}"
    return [f"{logits(effect.value)} to the logit of {answer} (logit {whole}, p = {p}){read}{base}"]


def _towards(card: HeadCard, brief: bool = False) -> str:
    """Return what the head writes towards the prediction as a sentence; empty if not measured."""
    report, effect = card.why, card.written
    if report is None or effect is None:
        return ""
    first, own = report.first, report.first.attribution
    answer = f"the answer's {first.answer}"
    if own.span is None and not own.labels:
        word = next_word(first.given.predicted, own.position, first.answer, first.rest)
        answer = "the prediction" if brief else f"the next token, {word}"
    if abs(effect.value) < _LITTLE * abs(report.logit):
        return ""
    amount = f"{logits(effect.value)} to the logit of {answer} ({report.logit:.2f})"
    if effect.base is not None and abs(effect.base) >= abs(effect.value) / 2:
        return f"It adds {amount}, against {logits(effect.base)} with another word there."
    source = first.source(card.key)
    read = "" if source is None else f", read from {placed(first.keys(card.key), source.key)}"
    return f"It adds {amount}{read}."


def _copies(card: HeadCard) -> list[str]:
    if card.writes is None:
        return []
    alone = card.writes.effect
    chance = f"{alone.chance:.1%}" if alone.chance >= 0.001 else "under 0.1%"
    copied = f"{whole_percent(alone.copying)} of {alone.tokens} tokens fed in one at a time"
    return [copied, f"chance {chance}"]


def _reads(card: HeadCard) -> list[str]:
    clear = card.clear_sources
    words = [
        f"{SITES[read.into].words}: {_share(read.share)} from {card.head_name(sender)}"
        for sender, read in clear
    ]
    others = "no earlier head in particular"
    return _shares(words, [read for _, read in clear], [read for _, read in card.sources], others)


def _read_by(card: HeadCard) -> list[str]:
    if card.readers is None:
        return []
    readers, every = card.readers, card.readers.listeners
    clear = [later for later in every if later.clear]
    words = []
    for later in clear:
        name = readers.name(later.reader, later.into)
        words.append(f"{name}'s {SITES[later.into].words} {_share(later.share)}")
    return _shares(words, clear, every, "no later head in particular") if every else [_FEW]


def _shares(
    words: Sequence[str], clear: Sequence[Listener], every: Sequence[Listener], none: str
) -> list[str]:
    """Return the words of the first clear shares and the base rate, or why there are none."""
    if words:
        base = clear[0].share.base_rate
        return [
            *words[:_NAMED],
            "" if base is None else f"mean of other heads {whole_percent(base)}",
        ]
    if not every:
        return []
    return [_FEW] if all(read.share.interval is None for read in every) else [none]


def _share(mean: Mean) -> str:
    ends = "" if mean.interval is None else ", ".join(f"{100 * end:.0f}" for end in mean.interval)
    return f"{whole_percent(mean.value)}{f' [{ends}]' if ends else ''}"


def _cost(card: HeadCard) -> list[str]:
    cost = card.cost
    if cost is None:
        return []
    shared = f", keys and values shared by {cost.group} heads" if cost.group > 1 else ""
    words = [f"{cost.total:,} parameters{shared}"]
    if cost.cache_bytes:
        words.append(f"{counted(cost.cache_bytes, 'byte')} of cache per token")
    return words


# Tables and texts ----------------------------------------------------------------------------


def _small_tables(card: HeadCard, rows: int) -> list[doc.Table]:
    """Return tables of the head's strongest links, effects and readers, of ``rows`` rows each."""
    tables = list[tuple[str, str, doc.Table]]()
    name = partial(doc.ColumnOf, "", right=False)
    context = partial(doc.ColumnOf, "", right=False, tone="faint", cuts=True)
    if card.firings:
        table = doc.table(
            card.firings[:rows],
            name(link_words),
            doc.ColumnOf("", lambda link: share(link.weight)),
            context(lambda link: around(Hurt(link.text, link.queries, link.query, 0.0))),
        )
        tables.append(("strongest links", "one per text", table))
    if card.hurts:
        table = doc.table(
            card.hurts[:rows],
            name(lambda hurt: word_at(hurt.tokens, hurt.token)),
            doc.ColumnOf("", lambda hurt: f"{hurt.change:+.2f}"),
            context(around),
        )
        tables.append(("largest Δ loss", f"nats · {card.predictions:,} tokens", table))
    if card.writes is not None:
        effect, texts = card.writes
        words = {token: cut(token_label(text), _LONGEST) for token, text in texts.items()}
        table = doc.table(
            effect.strongest[:rows],
            name(lambda pair: f"{words[pair[0]]} → {words[pair[1]]}"),
            doc.ColumnOf("", lambda pair: f"{pair[2]:+.2f}"),
        )
        remark = f"logits · {effect.tokens} tokens fed in one at a time"
        tables.append(("raises most", remark, table))
    if card.sources:
        sources = card.sources[:rows]
        names = [f"{card.head_name(sender)} {read.into}" for sender, read in sources]
        table = share_table(names, [read for _, read in sources], brief=True)
        tables.append(("reads from", "share of its input", table))
    if card.readers is not None:
        table = path_table(card.readers, rows, brief=True)
        tables.append(("read by", "share of their input", table))
    # The bars of one card have one scale.
    longest = max((row.bar[1] for *_, table in tables for row in table.rows if row.bar), default=0)
    return [
        table._replace(
            rows=[row._replace(bar=row.bar and (row.bar[0], longest)) for row in table.rows],
            title=[(title, True), (remark, False)],
            least=min(len(table.rows), _LEAST_ROWS),
        )
        for title, remark, table in tables
    ]


def _texts(card: HeadCard) -> list[doc.Part]:
    """Return the text whose loss rises most, and the prompt by the head's part in the answer."""
    parts: list[doc.Part] = []
    report, effect = card.ablation, card.effect
    if report is not None and effect is not None and card.hurts:
        only = slice(card.hurts[0].text, card.hurts[0].text + 1)
        effect = replace(effect, token_losses=effect.token_losses[only])
        text = replace(report, texts=report.texts[only], targets=report.targets[only])
        parts += where_it_hurts(replace(text, effects=(effect,)))
    if card.why is not None and card.written is not None:
        parts += text_parts(replace(card.why, shown=(card.key,)))
    return parts


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


def _first(card: HeadCard, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: facts next to the map, then as many tables and texts as fit."""
    record, room = card.map.first.record, columns - _FACTS - _GAP
    width = 2 * len(record.keys) + 12
    room = min(room, _SMALL_MAP) if width <= _SMALL_MAP else room
    maps = examples(card.map, room, lines)
    drawn = [part for part in maps if isinstance(part, doc.Maps)]
    high = len(maps)
    if drawn and not drawn[0].texts:
        high = len(record.queries) + 1 + (drawn[0].scale is not None) * 2
    wide = columns - (width if drawn else 0) - _GAP
    # Tables show some lines better, if there is room. A finding on a given text says no label.
    for without in (_IN_TABLES, ()) if card.asked else _LEFT_OUT:
        facts = _lines(card, without)
        tall = lines_of(facts, wide - _LEAD)
        left = lines - max(tall, high) - 1
        if (tall <= high or columns >= _WIDE) and left > _LEAST_ROWS:
            break
    beside = doc.Beside(_FACTS, _GAP, yields=True)
    groups = [doc.Group([doc.Group(facts), doc.Group(maps)], beside=beside)]
    tables = _small_tables(card, card.top)
    spare = high - tall - _EDGES
    if tables and columns >= _WIDE and spare >= _LEAST_ROWS:  # the map is taller than the lines
        (first, *tables), rows = tables, max(min(card.top, spare), _LEAST_ROWS)
        facts = [*facts, first._replace(rows=first.rows[:rows])]
        groups = [doc.Group([doc.Group(facts), doc.Group(maps)], beside=beside)]
    across = max((columns + _GAP) // (_TABLE + _GAP), 1)
    across = -(-len(tables) // -(-len(tables) // across)) if tables else 1  # rows of one length
    while tables and left >= _LEAST_ROWS + 1:
        row, tables = tables[:across], tables[across:]
        rows = max(min(card.top, left - 1), _LEAST_ROWS)
        shown = [table._replace(rows=table.rows[:rows]) for table in row]
        groups.append(doc.Group(shown, beside=doc.Beside(_TABLE, _GAP), yields=len(groups)))
        left -= rows + 2
    if left >= _TEXT:
        groups.append(doc.Group(_texts(card), beside=_TEXTS, yields=len(groups)))
    return groups


def lines_of(facts: Sequence[doc.Part], max_width: int) -> int:
    """Return how many lines some facts take on a terminal. max_width: its width in characters."""
    words = [" · ".join(w for w, _ in part.words) for part in facts if isinstance(part, doc.Facts)]
    return sum(len(at_blanks(line, max(max_width, 10))) for line in words)


def cards_page(cards: Sequence[HeadCard], maps: HeadsRecord) -> Page:
    """Return an interactive page of all heads, which lists the heads of the cards first.

    maps: of all heads over the text of the cards.
    """
    capture, ablation = page_capture(maps, ""), cards[0].ablation
    known = measures(capture.heads)
    if ablation is not None:
        shown = {effect.head: effect.shown(ablation.metric).value for effect in ablation.singles}
        effects = {head: value for head, value in shown.items() if head is not None}
        unit = "%" if ablation.ranked_by.percent else ablation.ranked_by.unit
        capture, measure = with_effects(capture, effects, unit)
        known.append(measure)
    heads = [(head.layer, head.head) for head in capture.heads]
    first = [heads.index(card.head) for card in cards]
    order = [*dict.fromkeys([*first, *capture.order])]
    capture = replace(capture, order=order, fine=max(capture.fine, len(cards)), head=first[0])
    look = [
        Look(0, at, query, key, f"{capture.link(query, key)} {share(weight)}")
        for card, at in zip(cards, first, strict=True)
        for _, _, query, key, weight in head_links(maps, *card.head, 1, sink=False)
    ]
    return Page(maps.record.model.name, [capture], known, look)
