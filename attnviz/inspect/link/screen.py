"""The document of ``attnviz link``: what was written into key and query, and both together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import fsum
from typing import Any

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, counted, listed
from attnviz.draw.provenance import fits_two_lines, known_text, p_value, probability
from attnviz.draw.signed import interval_text, ranked_table, signed_grid, signed_scale
from attnviz.engine.attribution.scores import SIDES, ReadSide, StreamPart
from attnviz.inspect.link.report import LinkPart, LinkReport
from attnviz.measures.bootstrap import LEAST_TEXTS
from attnviz.prompts.naming import nats, placed, prompt_document, quoted
from attnviz.records import Tokens

_GAP = 3
_TABLE = 76  # the columns of the table of parts next to the grid
_MOST, _ROOM = 12, 80  # the most parts of the query in the whole document's grid; its columns
_LARGE = 0.1  # least part of a head, relative to the largest, whose tokens are drawn
_CELL = 6  # the least columns of a cell of the grid, such as ``+3.6`` with its glyph


def document(report: LinkReport) -> doc.Document:
    """Return the document of a report of ``link``."""
    first, tokens = report.first, report.first.tokens
    size = counted(len(tokens), "token")
    parts = [_link_facts(report)]
    if report.tallies:
        parts += [[part_table(report)], [pair_grid(report, _MOST, _ROOM)], _sources(report)]
    label = "" if report.label is None else f" {known_text(report.label)}"
    heading = [f"{report.head}{label}", "QK attribution", counted(len(report.prompts), "prompt")]
    measured = heading[-1] if report.many else "this prompt alone"
    if not report.many:
        queries = first.given.queries(first.asked.head[0])
        query = placed(queries, first.asked.query, False)
        key = placed(tokens, first.asked.key, False)
        link = f"{query} → {key} {probability(first.weight)}"
        heading = [heading[0], link, "QK attribution", size]
    if report.controls:
        controls = counted(report.controls, "prompt") + " for each" * report.many
        measured += f", control: mean over {controls}, seed {report.seed}"
    return prompt_document(
        report,
        report.model,
        first.given,
        tokens,
        command="link",
        name=f"QK attribution of {report.head} in {report.model.name}",
        facts=[size, f"seed {report.seed}"],
        groups=[*map(doc.Group, parts)],
        caveats=_caveats(report) if report.tallies else (),
        measured=measured,
        hints=_hints(report),
        heading=heading,
        finding=_finding(report),
        first=partial(_first, report),
        many=report.many,
    )


def _link_facts(report: LinkReport) -> list[doc.Part]:
    return [doc.Facts(words) for words in (_sum_words(report), _choice_words(report)) if words]


def _hints(report: LinkReport) -> list[str]:
    if report.many or not report.tallies:
        return ["--explain"] * report.tallies
    hints = ["--than KEY"] * (report.first.asked.than is None) + ["--texts FILE", "--explain"]
    best = next((part.part for part in report.of_side("key") if part.part is not None), None)
    if best is not None and best.head is not None and not best.crosses:
        hints.insert(0, f"--head {_name(report, best)}: trace that head in turn")
    return hints


# Tables --------------------------------------------------------------------------------------


def part_table(report: LinkReport, most: tuple[int, int] | None = None) -> doc.Table:
    """Return a table of the parts written into the key, then those into the query, largest first.

    Parts that are exactly zero, in the control too, are left out. most: how many rows key and query
        have, None for all; the smaller parts share the last one, so that none is lost.
    """
    scale, count = NumberScale.over(part.lead for part in report.parts), report.controls
    parts, names = list[LinkPart](), list[str]()
    for side in reversed(SIDES):
        kept = [part for part in report.of_side(side) if part.lead or part.base]
        limit = len(kept) if most is None else most[side == "query"]
        rest = kept[max(limit - 1, 1) :] if len(kept) > limit else []
        del kept[len(kept) - len(rest) :]
        parts += kept
        names += [_name(report, part.part) for part in kept]
        if rest:
            parts.append(LinkPart(side, None, fsum(part.lead for part in rest)))
            names.append(f"{len(rest)} more")

    def source(part: LinkPart) -> str:
        if part.source is None or part.part is None:
            return ""
        tokens = report.first.given.keys("cross") if part.part.crosses else report.first.tokens
        return placed(tokens, part.source, False)

    reached = [None if part.reached is None else f"{part.reached} of {count}" for part in parts]
    columns: list[tuple[str | doc.Column, list[str]]] = [
        (f"margin{scale.times}", [scale.text(part.lead) for part in parts]),
        ("95% CI", [interval_text(part.interval, scale) for part in parts]),
        ("random", _known(scale.text, [part.base for part in parts])),
        ("controls ≥ margin", _known(str, reached)),
        ("p", _known(p_value, [part.p for part in parts])),
        ("weight if removed", _known(probability, [part.without for part in parts])),
        (doc.Column("from", right=False), list(map(source, parts))),
    ]
    table = ranked_table("", names, [part.lead for part in parts], scale, columns)
    rows = [
        row._replace(tone="faint" if part.unclear else "plain")
        for row, part in zip(table.rows, parts, strict=True)
    ]
    of_key = sum(part.side == "key" for part in parts)
    rows.insert(of_key, doc.Row(["query side"], spaced=True))
    first, *others = table.columns
    return table._replace(columns=[first._replace(title="key side"), *others], rows=rows)


def _known(write: Callable[[Any], str], values: Iterable[Any]) -> list[str]:
    return ["" if value is None else write(value) for value in values]


def pair_grid(report: LinkReport, rows: int, room: int, scaled: bool = True) -> doc.HeadGrid:
    """Return the grid of the lead by (part of the query, part of the key).

    The smaller parts share the last row and column, so that none is lost; parts of zeros alone are
    left out. rows: the most of them. room: the available width in characters.
    scaled: True adds a colour bar.
    """
    matrix = np.mean([prompt.split.matrix(prompt.towards) for prompt in report.prompts], axis=0)
    names = [_name(report, part).replace("embedding", "embed") for part in report.first.split.parts]
    longest = max(map(len, names))
    columns = max((room - longest - 1) // (max(longest, _CELL) + 1), 2)
    for axis, most in ((0, rows), (1, columns)):
        order = np.argsort(-np.abs(matrix.sum(1 - axis)), kind="stable")
        order = order[matrix.any(1 - axis)[order]] if matrix.any() else order
        kept = order if len(order) <= most else order[: most - 1]
        parts = [matrix.take([at], axis) for at in kept]
        if len(kept) < len(order):
            parts.append(matrix.take(order[len(kept) :], axis).sum(axis, keepdims=True))
        labels = [names[at] for at in kept] + ["other"] * (len(kept) < len(order))
        matrix = np.concatenate(parts, axis)
        if axis == 0:
            row_names = labels
    values = {cell: float(value) for cell, value in np.ndenumerate(matrix)}
    scale = NumberScale.over(values.values())
    grid = signed_grid(row_names, labels, values, scale)
    title = [("query × key, nats" + scale.times * (not scaled), True)]
    title += [("mean over the prompts", False)] * report.many
    bar = signed_scale(scale, "nats", "value") if scaled else None
    return grid._replace(title=title, scale=bar)


def _sources(report: LinkReport) -> list[doc.Part]:
    """Return the text for heads with a large part, coloured by their part of the lead."""
    first, maps = report.first, list[doc.Map]()
    if report.many:
        return []
    sources = first.split.sources
    least = _LARGE * max(abs(part.lead) for part in report.parts)
    limit = max((float(np.abs(row).max()) for row in sources.values()), default=0.0)
    for side in reversed(SIDES):
        for (of, at), row in sources.items():
            part = first.split.parts[at]
            if of != side or part.crosses or abs(row.sum()) < least:
                continue
            name = f"{_name(report, part)} into the {side}"
            words: doc.Words = [(name, True), (f"{row.sum():+.2f} nats by source token", False)]
            asking = Tokens.bare((0,))
            maps.append(doc.Map(name, row[None], asking, first.tokens, words, limit=limit))
    title: doc.Words = [("What heads wrote, by the token that they read", True)]
    scale = signed_scale(NumberScale(limit), "nats", "value")
    return [doc.Maps(maps, title, texts=True, scale=scale)] if maps else []


def _first(report: LinkReport, columns: int, lines: int) -> list[doc.Group]:
    facts = _link_facts(report)
    words, lines = doc.Group(facts), lines + 1 - len(facts)
    if not report.tallies:
        return [words]
    parts, half = len(report.first.split.parts), (columns - _GAP) // 2
    height = min(parts, max(lines // 6, 3))
    rows = max(lines - 6 if half >= _TABLE else lines - height - 8, 4)
    said, sides = _finding(report), [report.of_side(side) for side in SIDES]
    named = [[f" {nats(part.lead)}" in said for part in side] for side in sides]
    of_query, of_key = (1 + min(sum(each), _NAMED) for each in named)  # rows that are needed
    of_query = max(min(parts + 1, rows // 2), of_query)  # the keys have at least as many
    table = part_table(report, (max(rows - of_query, of_key), of_query))
    if half >= _TABLE:
        grid = pair_grid(report, min(rows, 2 * _MOST), half, scaled=False)
        return [words, doc.beside(table, [grid, *_sources(report)])]
    grid = pair_grid(report, height, columns, scaled=False)
    return [words, doc.Group([table]), doc.Group([grid], yields=1)]


_WHOLE = 0.005  # share of the lead by which a part called the whole lead may differ
_MAIN, _FAR, _NET, _NAMED = 0.5, 1 / 3, 0.25, 3
"""The share of the lead from which parts are the reason of the link, and from which one is that has
twice the next; what parts against the key take of a lead called net; the most that are named."""

_CLEAR = 0.6931  # the lead in nats, ln 2, below which a head hardly attends to a key
_NOTABLE_BASE = 0.5  # the share of a part from which its control is told
_LITTLE_SAID = {
    "chance": ("No word pair is significant. The closest: ", "Not significant: "),
    "function": ("Only function words stand out: ",),
    "local": ("Only neighbours stand out: ",),
}
"""How a finding begins if the chosen link is no answer to what a person would ask, and shorter."""

_NEEDED, _BY_CHANCE = 0.95, 1
"""A head needs a part if the weight without it is below this share of the weight; a part is due to
the words around if at most this many controls reach it."""


# The finding ---------------------------------------------------------------------------------


def _finding(report: LinkReport) -> str:
    """Return the finding: which part of the model makes the head attend there, and by how much."""
    if not report.tallies:
        return (
            f"The parts do not add up to the weights of {report.head} (off by "
            f"{report.first.split.gap:.2g} nats), so none is ranked."
        )
    parts, sign = report.of_side("key"), 1 if report.sum > 0 else -1
    clear = [part for part in parts if part.stands_out]  # of many prompts alone
    largest = max(clear or parts, key=lambda part: sign * part.lead)
    if report.many:
        return _of_many(report, largest)
    if report.model.weights == "random":
        return (
            f"Random weights, so by chance: {report.head} looks {_from_to(report)[1]}; the largest "
            f"part, {_by_what(report, largest)}, is {nats(largest.lead)} of {report.sum:+.2f} nats."
        )
    if report.sum < _CLEAR:
        return _because(report, [largest], "hardly attends", "; its largest part is")
    both = [part for side in SIDES for part in _top(report, side)]
    if [part.part and part.part.kind for part in both] in (["token"] * 2, ["position"] * 2):
        return _because(report, both, "attends", " because")
    half = _MAIN * report.sum
    main = [part for part in report.parts if part.lead >= half and not _is_spare(report, part)]
    if main:  # what the words around bring comes first, then what was written into the key
        main.sort(key=lambda part: (_is_cause(report, part), part.side == "key", part.lead))
        named = [part for part in _of(report, main[-1].side) if part in main]
        return _because(report, named[:2], "attends", " because of")
    tops = [top for side in reversed(SIDES) if (top := _top(report, side, fewest=2))]
    if not tops:
        largest = max(report.parts, key=lambda part: part.lead)
        what = "its largest part" if largest.lead >= half else "the largest of many parts"
        return _because(report, [largest], "attends", f"; {what} is")
    top = max(tops, key=lambda top: (all(_is_cause(report, part) for part in top), -len(top)))
    terms = [f"{_called(report, part, False)} {nats(part.lead)}" for part in top]
    terms[0] = f"at the {top[0].side}, {terms[0].replace(' +', ' contributes +')}"
    fewer, of = [listed(terms[:count]) for count in range(len(top), 1, -1)], _margin(report, top)
    claim = f"several parts make {report.head} attend"
    return _told(report, lambda link: [f"{claim} {link}: {some} of {of}" for some in fewer])


def _of(report: LinkReport, side: ReadSide) -> list[LinkPart]:
    """Return the parts that sum to the lead on one side, the largest first; both have distance."""
    parts = [part for part in report.parts if part.side == side or part.part is None]
    return sorted(parts, key=lambda part: -part.lead)


def _top(report: LinkReport, side: ReadSide, fewest: int = 1) -> list[LinkPart]:
    """Return the fewest largest parts of a side that are the reason, none unless all are needed."""
    parts = _of(report, side)
    by_far = parts[0].lead >= max(_FAR * report.sum, 2 * parts[:2][-1].lead)
    for count in range(fewest, _NAMED + 1):
        top = parts[:count]
        if (by_far and count == 1) or fsum(part.lead for part in top) >= _MAIN * report.sum:
            return [] if any(_is_spare(report, part) for part in top) else top
    return []


def _margin(report: LinkReport, parts: Sequence[LinkPart]) -> str:
    """Return the lead in words, ``a net`` one if much of a side of these parts is against it."""
    whole, net = report.sum, False
    for part in parts:
        against = fsum(abs(at.lead) for at in _of(report, part.side) if at.lead * whole < 0)
        net |= against > _NET * abs(whole) or abs(part.lead) > (1 + _WHOLE) * abs(whole)
    return f"{'a net' if net else 'the'} {whole:.2f}-nat margin"


def _is_spare(report: LinkReport, part: LinkPart) -> bool:
    """Return whether the head attends to the key about as much without the part."""
    return part.without is not None and part.without >= _NEEDED * report.first.weight


def _is_cause(report: LinkReport, part: LinkPart) -> bool:
    """Return whether the head needs a part that depends on the context, and is rare elsewhere."""
    constant = part.part is not None and part.part.kind in ("bias", "token", "position")
    return not (constant or _is_spare(report, part)) and (part.reached or 0) <= _BY_CHANCE


def _told(report: LinkReport, ways: Callable[[str], Sequence[str]]) -> str:
    """Return the first of the claims about the link in words that fits, after what it lacks."""
    leads: Sequence[str] = [""]
    if report.chosen is not None:
        leads = _LITTLE_SAID.get("chance" if report.chosen.is_chance else report.chosen.why, leads)
    claims = [f"{at}{way}." for link in _from_to(report) for at in leads for way in ways(link)]
    sentences = [f"{claim[0].upper()}{claim[1:]}" for claim in claims]
    return next(filter(fits_two_lines, sentences), sentences[-1])


def _control(report: LinkReport) -> float:
    """Return the control weight of a chosen link, which is one of words; NaN if these are split."""
    link = None if report.chosen is None else report.chosen.link
    return math.nan if link is None or len(link.query) * len(link.key) > 1 else link.habit


def _from_to(report: LinkReport) -> tuple[str, str]:
    """Return the link of tokens as ``(.62) from “it” (5) to “cat” (2)``, and that of the words."""
    asked, tokens, control = report.first.asked, report.first.tokens, _control(report)
    queries, weight = report.first.given.queries(asked.head[0]), report.first.weight
    forms = list[str]()
    for piece in (True, False):
        query = placed(queries, asked.query, piece=piece)
        key = placed(tokens, asked.key, piece=piece)
        than = "" if asked.than is None else f" over {placed(tokens, asked.than, piece=piece)}"
        forms.append(f"from {query} to {'itself' if key == query else key}{than}")
    low = f", control {probability(control)}" if weight < control else ""
    return f"({probability(weight)}{low}) {forms[0]}", forms[1]


def _because(report: LinkReport, parts: Sequence[LinkPart], verb: str, because: str) -> str:
    """Return the finding that names a part, two of a side or one of each, with its evidence."""
    part, *others = parts
    leads, margin, tails = [nats(each.lead) for each in parts], _margin(report, parts), [""]
    causes = [f"{_by_what(report, *parts, detail=detail)}:" for detail in (3, 2, 1, 0)]
    amounts = [f"{listed(leads)} of {margin}"]
    if others and others[0].side != part.side:
        causes = [_by_both(report, part)]
        amounts = ["{} at the query and {} at the key, of ", "{} (query) and {} (key) of "]
        amounts = [amount.format(*leads) + margin for amount in amounts]
    elif not others:
        if "net" not in margin and abs(part.lead - report.sum) < _WHOLE * abs(report.sum):
            amounts = [f"{nats(part.lead)} nats, the whole margin"]
        control, of_words = "", part.part is not None and part.part.kind == "token"
        if part.base and not of_words and part.base * part.lead >= _NOTABLE_BASE * part.lead**2:
            control = f"; {nats(part.base)} with random words around"
        without = f"; without it the weight would be {probability(part.without or 0.0)}"
        without *= part.without is not None
        tails = [control + without, control, without, ""]
    ways = [f"{cause} {amount}{tail}" for cause in causes for amount in amounts for tail in tails]
    return _told(report, lambda link: [f"{report.head} {verb} {link}{because} {w}" for w in ways])


def _by_both(report: LinkReport, part: LinkPart) -> str:
    """Return why a part counts at the query and the key alike: ``both are “it”``, two positions."""
    first, asked, what = report.first, report.first.asked, _own(report, part)
    token = first.given.queries(asked.head[0]).ids[asked.query]
    if what == "embedding" and token == first.tokens.ids[asked.key] and asked.query != asked.key:
        return f"both are {quoted(first.tokens.texts[asked.key])}: the embedding contributes"
    return f"of the two {what.replace(' and', 's and')}s:"


def _name(report: LinkReport, part: StreamPart | None) -> str:
    """Return the name of a part as the screen has it; files call the embedding ``token``."""
    name = report.name(part)
    return "embedding" if name == "token" else name


def _called(report: LinkReport, part: LinkPart, label: bool = True) -> str:
    """Return the name of a part in a sentence, of a head with its known label."""
    by = part.part
    if by is None or by.kind in ("token", "position"):
        return f"the {_name(report, by)}"
    if by.crosses or by.layer is None or by.head is None:
        return _name(report, by)
    known = report.labels.get((by.layer, by.head)) if label else None
    return _name(report, by) + ("" if known is None else f" ({known.said})")


def _own(report: LinkReport, part: LinkPart) -> str:
    """Return what an embedding is in words: of the position too, if no other part is."""
    apart = any(each.part is None or each.part.kind == "position" for each in report.parts)
    return _name(report, part.part) + ("" if apart else " and position")


def _by_what(report: LinkReport, part: LinkPart, *others: LinkPart, detail: int = 3) -> str:
    """Return what parts of a side are in words, such as ``what L0H0 moved there from “met”``."""
    by, kinds = part.part, {each.part and each.part.kind for each in (part, *others)}
    if others and not kinds <= {"head", "mlp"}:
        return listed([_by_what(report, each, detail=0) for each in (part, *others)])
    if by is None:
        return "the distance"
    if by.kind in ("position", "token"):
        return f"the {part.side}'s {'own ' * (by.kind == 'token')}{_own(report, part)}"
    if by.kind == "bias":
        return f"the {_name(report, by)}" if by.layer is not None else "a bias"
    origin = ""
    if detail and not others and part.source is not None and not by.crosses:
        origin = f" from {placed(report.first.tokens, part.source, piece=detail > 1)}"
    names = listed([_called(report, each, detail > 2) for each in (part, *others)])
    to = "to the query" if part.side == "query" else "there"
    return f"what {names} {'moved' if origin else 'wrote'} {to}{origin}"


def _of_many(report: LinkReport, best: LinkPart) -> str:
    ends = "" if best.interval is None else " [{}, {}]".format(*map(nats, best.interval))
    claim = (
        f"{counted(len(report.prompts), 'prompt')}: {report.head} attends to its key because of "
        f"{_by_what(report, best)}: {nats(best.lead)}{ends} of the {report.sum:.2f}-nat margin"
    )
    if best.base is None or len(report.prompts) < LEAST_TEXTS:
        return f"{claim}; {'no control' if best.base is None else 'too few prompts for intervals'}."
    verdict = "" if best.stands_out else "not clearly "
    return f"{claim}, {verdict}more than with random words around ({nats(best.base)})."


# The sum, and how to read it ------------------------------------------------------------------


def _sum_words(report: LinkReport) -> doc.Words:
    """Return the lead as the sum of the parts, and its difference to the model's own weights."""
    first, others = report.first, len(report.first.split.visible) - 1
    over = f"the {'mean of ' * (others > 1)}{counted(others, 'other key')}"
    if first.asked.than is not None:
        over = placed(first.tokens, first.asked.than)
    if report.many:
        over = "the mean of the other keys"
    apart = max(abs(prompt.capped - prompt.lead) for prompt in report.prompts)
    total = f"sum {report.sum:.3f} (error {apart:.4f})"
    words = [(f"margin over {over}", False), (total, True)]
    if first.split.softcap is not None:
        words.append((f"after the softcap {first.capped:.3f}", False))
    if not report.many:
        words.append((f"score {first.split.scores[first.asked.key]:.3f}", False))
    return words


def _choice_words(report: LinkReport) -> doc.Words:
    """Return why this link was chosen, in one line; empty if a person named a part of it."""
    if report.chosen is None:
        return []
    pairs, link, reason = report.chosen
    if link is None:
        why = "no link is above its control" if pairs else "no two words to test"
        why = "the text is too long to test each link" if pairs is None else why
        return [("auto-selected: the strongest link from the last token", False), (why, False)]
    of = f"of {counted(pairs or 0, 'word pair')} the"
    if report.model.weights == "random":
        why = f"{of} one furthest above its control in any head, not tested"
    elif reason == "induction":
        why = "an induction head at a repeated word"
    elif reason == "label":
        why = "by the head's label"
    elif reason == "asked":
        why = "the strongest link that a reader would ask about first"
    elif math.isnan(link.chance):
        why = f"{of} one furthest above its control"
    elif link.beats_chance:
        why = f"{of} most significant, p = {p_value(link.chance)}"
    else:
        why = f"{of} closest to significance"
    habit = _control(report)
    control = [] if math.isnan(habit) else [(f"control weight {probability(habit)}", False)]
    return [(f"auto-selected: {why}", False), *control]


def _caveats(report: LinkReport) -> list[str]:
    caveats = [
        "margin: the key's score minus the mean score of the other keys that the query sees: the "
        "log of the ratio of its weight to the geometric mean of theirs. Parts add up with the "
        "norms' scale frozen at its value in this run: a part is a share of a sum, not an effect.",
        "weight if removed: the exact weight if this head read the residual stream without the "
        "part, on the query or key side only, with norm and softmax recomputed.",
    ]
    if report.controls:
        caveats.append(
            f"random: the same part at the same positions, mean over "
            f"{counted(report.controls, 'prompt')} in which random words replace all but query and "
            "key, the first token and special tokens; controls ≥ margin: in how many of these the "
            "part is at least as large. It separates context from position, and tests no single "
            "link."
        )
    if report.many and len(report.prompts) >= LEAST_TEXTS:
        caveats.append(
            f"interval: 95%, bootstrap-t over {counted(len(report.prompts), 'prompt')}, 2,000 "
            "draws; p: the same for the difference to random words, largest |t| of all parts."
        )
    return caveats
