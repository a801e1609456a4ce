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
from attnviz.engine.attribution.scores import SIDES, StreamPart
from attnviz.inspect.link.report import LinkPart, LinkReport
from attnviz.measures.bootstrap import LEAST_TEXTS
from attnviz.prompts.naming import nats, placed, prompt_document
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
    groups = [doc.Group(_link_facts(report))]
    if report.tallies:
        groups += [
            doc.Group([part_table(report)]),
            doc.Group([pair_grid(report, _MOST, _ROOM)]),
            doc.Group(_sources(report)),
        ]
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
        groups=groups,
        caveats=_caveats(report) if report.tallies else (),
        measured=measured,
        hints=_hints(report),
        heading=heading,
        finding=_finding(report),
        first=partial(_first, report),
        many=report.many,
    )


def _link_facts(report: LinkReport) -> list[doc.Part]:
    chosen = _choice_words(report)
    return [doc.Facts(_sum_words(report)), *([doc.Facts(chosen)] if chosen else [])]


def _hints(report: LinkReport) -> list[str]:
    if not report.tallies:
        return []
    hints, parts = list[str](), [part.part for part in report.of_side("key")]
    best = next((part for part in parts if part is not None), None)
    if best is not None and best.head is not None and not best.crosses and not report.many:
        hints.append(f"--head {_name(report, best)}: trace that head in turn")
    if not report.many and report.first.asked.than is None:
        hints.append("--than KEY")
    hints += [] if report.many else ["--texts FILE"]
    return [*hints, "--explain"]


# Tables --------------------------------------------------------------------------------------


def part_table(report: LinkReport, most: tuple[int, int] | None = None) -> doc.Table:
    """Return a table of the parts written into the key, then those into the query, largest first.

    Parts that are exactly zero, in the control too, are left out. most: how many rows key and query
        have, None for all; the smaller parts share the last one, so that none is lost.
    """
    scale, count = NumberScale.over(part.lead for part in report.parts), report.controls
    parts: list[LinkPart] = []
    names: list[str] = []
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
        crosses = part.part.crosses
        tokens = report.first.given.keys("cross") if crosses else report.first.tokens
        return placed(tokens, part.source, False)

    reached = [None if part.reached is None else f"{part.reached} of {count}" for part in parts]
    columns: list[tuple[str | doc.Column, list[str]]] = [
        (f"margin{scale.times}", [scale.text(part.lead) for part in parts]),
        ("95% interval", [interval_text(part.interval, scale) for part in parts]),
        ("random", _known(scale.text, [part.base for part in parts])),
        ("controls as large", _known(str, reached)),
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
    rows.insert(of_key, doc.Row(["into the query"], spaced=True))
    first, *others = table.columns
    return table._replace(columns=[first._replace(title="into the key"), *others], rows=rows)


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
    return grid._replace(
        title=title, scale=signed_scale(scale, "nats", "value") if scaled else None
    )


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
    of_query = min(parts + 1, rows // 2)  # the keys have at least as many
    table = part_table(report, (rows - of_query, of_query))
    if half >= _TABLE:
        grid = pair_grid(report, min(rows, 2 * _MOST), half, scaled=False)
        return [words, doc.beside(table, [grid, *_sources(report)])]
    grid = pair_grid(report, height, columns, scaled=False)
    return [words, doc.Group([table]), doc.Group([grid], yields=1)]


_WHOLE = 0.005  # share of the lead by which a part called the whole lead may differ
_MAIN, _NAMED, _LEAST_NAMED = 0.5, 3, 0.05
"""The share of the lead from which parts are the reason of the link; the most that are named, and
the least share of one of them."""

_CLEAR = 0.6931  # the lead in nats, ln 2, below which a head hardly attends to a key
_NOTABLE_BASE, _AS_MUCH = 0.5, 0.8  # shares of a part from which its control is told, is as much
_LITTLE_SAID = {
    "chance": "No word pair is significant. The closest: ",
    "function": "Only function words stand out: ",
    "local": "Only neighbours stand out: ",
}
"""How a finding begins if the chosen link is no answer to what a person would ask."""

_NEEDED, _BY_CHANCE = 0.95, 1
"""A head needs a part if the weight without it is below this share of the weight; a part is due to
the words around if at most this many controls reach it."""


# The finding ---------------------------------------------------------------------------------


def _finding(report: LinkReport) -> str:
    """Return the finding: which part of the model makes the head attend there, and by how much."""
    first = report.first
    if not report.tallies:
        return (
            f"The parts do not add up to the weights of {report.head} (off by "
            f"{first.split.gap:.2g} nats), so none is ranked."
        )
    parts, sign = report.of_side("key"), 1 if report.sum > 0 else -1
    if report.many:
        best = max(
            [part for part in parts if part.stands_out] or parts, key=lambda part: sign * part.lead
        )
        return _of_many(report, best)
    largest = max(parts, key=lambda part: sign * part.lead)
    if report.model.weights == "random":
        return (
            f"Random weights, so by chance: {report.head} looks {_from_to(report)}; the largest "
            f"part, {_by_what(report, largest)}, is {nats(largest.lead)} of {report.sum:+.2f} nats."
        )
    if report.sum < _CLEAR:
        return _because(report, largest, "hardly attends", "; its largest part is")
    main = [part for part in report.parts if part.lead >= _MAIN * report.sum]
    main = [part for part in main if not _is_spare(report, part)]
    if main:  # what the words around bring comes first, then what was written into the key
        main.sort(key=lambda part: (_is_cause(report, part), part.side == "key", part.lead))
        return _because(report, main[-1], "attends", " because of")
    order = sorted(report.parts, key=lambda part: -part.lead)
    causes, largest = [part for part in order if _is_cause(report, part)], order[0]
    attend = f"{report.head} attend ({_weight(report)}) {_from_to(report)}"
    whole = f"of the {report.sum:.2f}-nat margin"
    causes = [part for part in causes if part.lead >= _LEAST_NAMED * report.sum][:_NAMED]
    if fsum(part.lead for part in causes) >= _MAIN * report.sum:
        named = [f"{_called(report, part)} {nats(part.lead)}{_side(part)}" for part in causes]
        named[0] = named[0].replace(" +", " contributes +")
        fewer = [listed(named[:count]) for count in range(len(named), 0, -1)]
        return _opened(report, f"several parts make {attend}: {whole}, ", fewer)
    joint = ", but" if _is_spare(report, largest) else ";"
    claim = (
        f"no single part makes {attend}: the largest, {_called(report, largest)}"
        f"{_side(largest)}, contributes {nats(largest.lead)} {whole}"
    )
    return _opened(report, claim, [*_without(largest, f"{joint} "), ""])


def _side(part: LinkPart) -> str:
    return " at the query" * (part.side == "query")


def _is_spare(report: LinkReport, part: LinkPart) -> bool:
    """Return whether the head attends to the key about as much without the part."""
    return part.without is not None and part.without >= _NEEDED * report.first.weight


def _is_cause(report: LinkReport, part: LinkPart) -> bool:
    """Return whether the head needs a part, no constant, that random words rarely match."""
    constant = part.part is not None and part.part.kind == "bias"  # the same for every word
    return not (constant or _is_spare(report, part)) and (part.reached or 0) <= _BY_CHANCE


def _opened(report: LinkReport, claim: str, tails: Sequence[str]) -> str:
    """Return a claim as a sentence, led by what a chosen link lacks, with a tail that fits."""
    if report.chosen is not None:
        why = "chance" if report.chosen.is_chance else report.chosen.why
        claim = f"{_LITTLE_SAID.get(why, '')}{claim}"
    sentences = [f"{claim[0].upper()}{claim[1:]}{tail}." for tail in tails]
    return next(filter(fits_two_lines, sentences), sentences[-1])


def _weight(report: LinkReport) -> str:
    """Return the attention weight of the link, with its control where that is larger."""
    weight = report.first.weight
    link = None if report.chosen is None else report.chosen.link
    low = "" if link is None or not weight < link.habit else f", control {probability(link.habit)}"
    return f"{probability(weight)}{low}"


def _without(part: LinkPart, joint: str = "; ") -> list[str]:
    """Return what the weight is without a part, in a list that is empty if that is unknown."""
    weight = f"without it the weight would be {probability(part.without or 0.0)}"
    return [] if part.without is None else [f"{joint}{weight}"]


def _from_to(report: LinkReport) -> str:
    """Return the link in words, such as ``from “it” (5) to “cat” (2) over “dog” (3)``."""
    asked, tokens = report.first.asked, report.first.tokens
    query = placed(report.first.given.queries(asked.head[0]), asked.query)
    key = placed(tokens, asked.key)
    than = "" if asked.than is None else f" over {placed(tokens, asked.than)}"
    return f"from {query} to {'itself' if key == query else key}{than}"


def _because(report: LinkReport, part: LinkPart, verb: str, because: str) -> str:
    """Return the finding that names one part, with as much of its evidence as two lines hold."""
    claim = (
        f"{report.head} {verb} ({_weight(report)}) {_from_to(report)}{because} "
        f"{_by_what(report, part)}:"
    )
    amount = f"{nats(part.lead)} of the {report.sum:.2f}-nat margin"
    if abs(part.lead - report.sum) < _WHOLE * abs(report.sum):
        amount = f"{nats(part.lead)} nats, the whole margin"
    elif abs(part.lead) > abs(report.sum):
        amount = f"{nats(part.lead)} nats, above the whole margin ({report.sum:+.2f})"
    control = ""
    if part.base is not None and part.base * part.lead >= _NOTABLE_BASE * part.lead**2:
        control = f"; {nats(part.base)} with random words around"
        if (part.reached or 0) > _BY_CHANCE and abs(part.base) >= _AS_MUCH * abs(part.lead):
            control = f"; random words around give {nats(part.base)}"
    without = "".join(_without(part))
    return _opened(report, f"{claim} {amount}", (control + without, control, without, ""))


def _name(report: LinkReport, part: StreamPart | None) -> str:
    """Return the name of a part as the screen has it; files call the embedding ``token``."""
    name = report.name(part)
    return "embedding" if name == "token" else name


def _called(report: LinkReport, part: LinkPart) -> str:
    """Return the name of a part in a sentence, of a head with its known label."""
    by = part.part
    if by is None:
        return "the distance"
    if by.kind == "token":
        return "the word's own embedding"
    if by.crosses or by.layer is None or by.head is None:
        return _name(report, by)
    label = report.labels.get((by.layer, by.head))
    return _name(report, by) + ("" if label is None else f" ({label.said})")


def _by_what(report: LinkReport, part: LinkPart) -> str:
    """Return what a part is in words, such as ``what L0H0 moved there from “met”``, at the key."""
    by, at_query = part.part, part.side == "query"
    if by is None:
        return "the distance"
    if by.kind == "position":
        return f"the {'query' if at_query else 'key'}'s position"
    if by.kind == "token":
        kinds = {other.part.kind for other in report.parts if other.part is not None}
        words = "embedding" if "position" in kinds else "embedding and position"
        return f"the {'query' if at_query else 'key'}'s own {words}"
    if by.kind == "bias":
        return f"the {_name(report, by)}" if by.layer is not None else "a bias"
    source = ""
    if part.source is not None and not by.crosses:
        source = f" from {placed(report.first.tokens, part.source)}"
    verb = "moved" if source else "wrote"
    return f"what {_called(report, part)} {verb} {'to the query' if at_query else 'there'}{source}"


def _of_many(report: LinkReport, best: LinkPart) -> str:
    count = counted(len(report.prompts), "prompt")
    ends = "" if best.interval is None else " [{}, {}]".format(*map(nats, best.interval))
    claim = (
        f"{count}: {report.head} attends to its key because of {_by_what(report, best)}: "
        f"{nats(best.lead)}{ends} of the {report.sum:.2f}-nat margin"
    )
    if best.base is None or len(report.prompts) < LEAST_TEXTS:
        return f"{claim}; {'no control' if best.base is None else 'too few prompts for intervals'}."
    verdict = "" if best.stands_out else "not clearly "
    return f"{claim}, {verdict}more than with random words around ({nats(best.base)})."


# The sum, and how to read it ------------------------------------------------------------------


def _sum_words(report: LinkReport) -> doc.Words:
    """Return the lead as the sum of the parts, and its difference to the model's own weights."""
    first = report.first
    others = len(first.split.visible) - 1
    over = counted(others, "other key")
    over = f"the mean of {over}" if others > 1 else f"the {over}"
    if first.asked.than is not None:
        over = placed(first.tokens, first.asked.than)
    if report.many:
        over = "the mean of the other keys"
    apart = max(abs(prompt.capped - prompt.lead) for prompt in report.prompts)
    words = [
        (f"margin over {over}", False),
        (f"sum {report.sum:.3f} nats (error {apart:.4f})", True),
    ]
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
        return [
            ("auto-selected: the strongest link from the last token", False),
            (why, False),
        ]
    of = f"of {counted(pairs or 0, 'word pair')} the"
    if report.model.weights == "random":
        why = f"{of} one furthest above its control in any head, not tested"
    elif reason == "induction":
        why = "an induction head at a repeated word"
    elif reason == "label":
        why = "by the head's label"
    elif reason == "asked":
        why = "the strongest link of a pronoun, a verb or a repeated word"
    elif math.isnan(link.chance):
        why = f"{of} one furthest above its control"
    elif link.beats_chance:
        why = f"{of} most significant, p = {p_value(link.chance)}"
    else:
        why = f"{of} closest to significance"
    control = (
        [] if math.isnan(link.habit) else [(f"control weight {probability(link.habit)}", False)]
    )
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
            "key, the first token and special tokens; controls as large: in how many of these the "
            "part is at least as large. It separates context from position, and tests no single "
            "link."
        )
    if report.many and len(report.prompts) >= LEAST_TEXTS:
        caveats.append(
            f"interval: 95%, bootstrap-t over {counted(len(report.prompts), 'prompt')}, 2,000 "
            "draws; p: the same for the difference to random words, largest |t| of all parts."
        )
    return caveats
