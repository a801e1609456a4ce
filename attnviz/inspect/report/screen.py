"""The document of a report on a model: counts, labels, effects, and the cards of some heads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from attnviz.count.params.cost import CostReport
from attnviz.count.params.tables import brief_parameter_table
from attnviz.count.params.wording import bytes_text, dtype_words, layer_span, title_words
from attnviz.count.params.wording import short as short_count
from attnviz.draw import document as doc
from attnviz.draw.grid import full_width
from attnviz.draw.numbers import counted, listed
from attnviz.draw.provenance import fits_two_lines, model_words, named, shape_words
from attnviz.draw.signed import one_line
from attnviz.inspect.head.screen import card_groups, cards_page, lines_of
from attnviz.inspect.head.screen import finding as card_finding
from attnviz.inspect.interventions.ablate.claims import answer as ablation_answer
from attnviz.inspect.interventions.ablate.claims import caveats as ablation_caveats
from attnviz.inspect.interventions.ablate.claims import loss_over, without_words
from attnviz.inspect.interventions.ablate.screen import head_grid, ranking_tables
from attnviz.inspect.interventions.study import incomplete
from attnviz.inspect.patterns.screen import found_labels, label_grid, leaders_table
from attnviz.inspect.report.report import ModelReport
from attnviz.measures.registry import label_named
from attnviz.records import SINKS

_LEAD, _GAP = 8, 3
_TABLE = 66  # the columns of the ranking and of the table of labels
_LEAST_ROWS, _AROUND = 2, 2
"""The least rows of a table, and the lines around the rows of a grid or table."""

_MAP_LINES = 3  # the lines around the rows of the small maps


def document(report: ModelReport) -> doc.Document:
    """Return the document of a report: a brief form for the terminal, and the whole."""
    maps, sizes = report.maps, [(word, False) for word in _sizes(report)]
    facts = doc.Facts([*model_words(report.model), *sizes])
    about: list[doc.Part] = [facts, *map(doc.Note, (*report.model.notes, *report.notes))]
    parts = ["the shape counted"]
    if report.scored is not None:
        parts.append("labels on the probes of attnviz patterns")
    if report.ablation is not None:
        parts.append(loss_over(report.ablation))
    measured = f"measured in this run: {', '.join(parts)}; seed {report.seed}."
    hints = ["--save report.html", *(f"attnviz head {card.name}" for card in report.cards[:1])]
    hints += ["--texts FILE: your data"] * report.source.endswith("built-in texts")
    return doc.Document(
        name=f"report on {report.model.name}",
        title=f"Report on {report.model.name}",
        groups=[doc.Group(about), *_groups(report)],
        explain=doc.Explanation("report", measured),
        hints=doc.next_steps([*hints, "--explain"]),
        heading=[*named(report.model), *sizes],
        finding=_finding(report),
        first=partial(_first, report),
        page=None if maps is None else partial(cards_page, report.cards, maps),
    )


def _sizes(report: ModelReport) -> list[str]:
    ablation = report.ablation
    if ablation is None:
        return ["report"]
    texts = report.source or counted(len(ablation.texts), "text")
    sizes = ["report", texts, counted(ablation.token_count, "token")]
    if ablation.method == "budget":
        rest = counted(len(ablation.gradients) - len(ablation.effects), "head")
        sizes.append(f"budget: {rest} of {len(ablation.gradients):,} not ablated")
    return sizes


def _groups(report: ModelReport) -> list[doc.Group]:
    """Return the groups: the model, its heads, those that matter, cards of some, the caveats."""
    groups, caveats, cost = [doc.Group(_lines(report))], list[str](), _cost(report)
    if cost is not None:
        groups.append(doc.Group([brief_parameter_table(cost)], full=True))
    if report.scored is not None:
        groups.append(doc.Group([label_grid(report.scored)]))
        groups.append(doc.Group([leaders_table(report.scored)._replace(least=0)]))
        caveats.append(
            "labels: what a head attends to on the probes of attnviz patterns; a label does not "
            "say that the head matters."
        )
    if report.ablation is not None:
        grid = head_grid(report.ablation)
        groups.append(doc.Group([grid] if grid is not None else []))
        groups.append(doc.Group(ranking_tables(report.ablation), spaced=True))
        texts = report.source or counted(len(report.ablation.texts), "text")
        caveats += ablation_caveats(report.ablation)
        caveats.append(f"texts: {texts}; other texts may need other heads (--texts FILE).")
    for card in report.cards:
        groups += [doc.Group([doc.Say(card_finding(card))]), *card_groups(card)[1:]]
    caveats += [f"{name} not measured: {why}." for name, why in report.missing.items()]
    return [*groups, doc.Group([doc.Say(text, 100) for text in caveats])]


# The finding ---------------------------------------------------------------------------------


def _finding(report: ModelReport) -> str:
    lead, ablation = "" if report.complete else "Incomplete. ", report.ablation
    if ablation is not None and not ablation.complete:
        lead = incomplete(len(ablation.texts), ablation.texts_wanted, "text", "ablations")
    if report.model.weights == "random":
        return (
            f"{lead}Random weights: no head has a label, and differences between heads are noise."
        )
    words = ""
    for others in (2, 1, 0):
        for kinds in (3, 2, 1, 0):
            sentences = [_labels(report, kinds), _losses(report, others)]
            words = lead + " ".join(filter(None, sentences))
            if fits_two_lines(words):
                return words
    return words


def _labels(report: ModelReport, kinds: int) -> str:
    """Return a sentence on how many heads have a label. kinds: the most labels to name."""
    scored = report.scored
    if scored is None:
        return ""
    counts = {name: len(scored.labelled(name)) for name in found_labels(scored)}
    counts = {name: count for name, count in counts.items() if name not in SINKS}
    total, heads = sum(counts.values()), counted(len(scored.heads), "head")
    if not total:
        return f"None of {heads} has a label: no score is clearly above chance."
    words = [f"{counts[name]} {label_named(name).said}" for name in [*counts][:kinds]]
    named = f" ({', '.join(words)}{', …' * (len(counts) > kinds)})" if words else ""
    resting = sum(len(scored.labelled(name)) for name in SINKS if name in scored.labels)
    more = "is a sink head" if resting == 1 else "are sink heads"
    also = f"; {resting} more {more}" * bool(resting)
    return f"{total} of {heads} {'has' if total == 1 else 'have'} a label{named}{also}."


def _losses(report: ModelReport, others: int) -> str:
    """Return a sentence on the heads that matter most. others: the most after the first one."""
    ablation = report.ablation
    if ablation is None or not ablation.effects:
        return ""
    if not ablation.ranked_by.signed:  # never below zero, so that no test compares it with zero
        return ablation_answer(ablation)
    metric, ranked = ablation.metric, ablation.ranking(2 * len(ablation.effects))
    matter = [effect for effect in ranked.matter if effect.shown(metric).significant]
    harm = [effect for effect in ranked.harm if effect.shown(metric).significant]
    if matter[:1] == [*ranked.matter[:1]] != []:
        names = [ablation.name(effect.variant) for effect in ranked.matter[1 : 1 + others]]
        then = f", followed by {listed(names)}" if names else ""
        return f"{without_words(ablation, matter[0], most=True)}{then}."
    if not ablation.complete:  # the other texts may show which head matters
        return ""
    if matter or harm:
        largest = max(matter + harm, key=lambda effect: abs(effect.value(metric)))
        return f"{without_words(ablation, largest)}, the largest clear effect."
    bounded = any(effect.shown(metric).interval for effect in ablation.effects)
    few = "" if bounded else f" {counted(len(ablation.texts), 'text')}: too few."
    return f"No head clearly matters.{few}"


def _lines(report: ModelReport) -> list[doc.Part]:
    """Return lines on the model: its sizes, its layers, its tokenizer and its type of numbers."""
    info, cost = report.model, _cost(report)
    lines = {"shape": [info.architecture], "size": list[str](), "layers": list[str]()}
    runs = [info.dtype]
    if cost is not None:
        lines["shape"] += title_words(cost)[1:-1]
        lines["size"] = [
            f"{short_count(cost.spec.total)} parameters",
            f"{bytes_text(cost.weight_bytes)} of weights",
        ]
        if cost.cache.bytes_per_token:
            lines["size"].append(f"{bytes_text(cost.cache.bytes_per_token)} of cache per token")
        lines["layers"] = _kinds(cost)
        runs = [f"{info.dtype} (weights stored as {dtype_words(cost)})"]
    else:
        lines["shape"].append(shape_words(info))
        built = report.counted.cases[0].built if report.counted is not None else None
        if built is not None:
            parameters = f"{short_count(built.total)} parameters"
            lines["size"] = [parameters, bytes_text(built.weight_bytes)]
    if report.vocabulary is not None:
        runs.append(f"vocabulary {report.vocabulary:,} + special tokens")
    if report.context is not None:
        runs.append(f"context {report.context:,} tokens")
    return [
        doc.Facts([(word, False) for word in words], name, _LEAD)
        for name, words in (lines | {"runs in": runs}).items()
        if words
    ]


def _cost(report: ModelReport) -> CostReport | None:
    """Return the model's parameters and cache; None if its architecture cannot be counted."""
    cases = report.counted.cases if report.counted is not None else ()
    return cases[0].cost if cases else None


def _kinds(cost: CostReport) -> list[str]:
    """Return strings on the attention of each kind of layer, with the layers that have it."""
    kinds = []
    for stack in cost.spec.stacks:
        name = f"{stack.name} " if len(cost.spec.stacks) > 1 else ""
        for group in stack.groups:
            seen = "causal" if stack.causal else "both ways"
            span, many = layer_span(group), "s" if group.repeat > 1 else ""
            where = f"layer{many} {span}" if span[0].isdigit() else f"{span} layer{many}"
            kinds.append(f"{name}{group.kind} attention, {seen}, in {where}")
    return kinds


def _first(report: ModelReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: facts on the model, then the grids, tables and maps that fit."""
    facts = [*_lines(report), *map(doc.Note, report.notes)]
    left = lines - lines_of(facts, columns - _LEAD) - len(report.notes) - 1
    groups, grids, tables = [doc.Group(facts)], _grids(report, columns), _tables(report)
    across = len(grids) == 2 and sum(map(full_width, grids)) + _GAP <= columns
    tall = max((len(grid.rows) + _AROUND for grid in grids), default=0)
    if not across and left - 2 * (tall + 1) < _LEAST_ROWS + _AROUND:
        grids = grids[:1]
    high = tall + 1 if across else (tall + 1) * len(grids)
    if grids and left - high >= _LEAST_ROWS + 1:
        groups.append(doc.Group(grids, beside=doc.Beside(0, _GAP) if across else None, spaced=True))
        left -= high
    # One below the other, if there is room, each table has the width of all its columns.
    whole = sum(len(table.rows) + _AROUND for table in tables)
    beside = columns >= 2 * _TABLE + _GAP and left < 2 * whole
    shown = list[doc.Table]()
    while len(shown) < len(tables) and left >= _LEAST_ROWS + 1:
        table = tables[len(shown)]
        rows = min(len(table.rows), max(left - 1, _LEAST_ROWS))
        shown.append(table._replace(rows=table.rows[:rows], least=min(rows, _LEAST_ROWS)))
        if not beside:
            groups.append(doc.Group(shown[-1:], yields=len(shown) - 1))
            left -= rows + _AROUND
    if beside and shown:
        groups.append(doc.Group(shown, beside=doc.Beside(_TABLE, _GAP)))
        left -= max(len(table.rows) for table in shown) + _AROUND
    return [*groups, *_maps(report, columns, left)]


def _grids(report: ModelReport, columns: int) -> list[doc.HeadGrid]:
    grids = []
    if report.scored is not None and any(entry.label for entry in report.scored.heads):
        title: doc.Words = [("labels", True), ("built-in probes", False), (doc.SHADE, False)]
        grids.append(label_grid(report.scored)._replace(title=title, key=(), scale=None))
    if report.ablation is not None and (grid := head_grid(report.ablation, scaled=False)):
        grids.append(one_line(grid, columns - full_width(grids[0]) - _GAP) if grids else grid)
    return grids


def _tables(report: ModelReport) -> list[doc.Table]:
    tables = []
    if report.ablation is not None:
        ranked = [part for part in ranking_tables(report.ablation) if isinstance(part, doc.Table)]
        tables += [table._replace(title=()) for table in ranked[:1]]
    if report.scored is not None and (labels := leaders_table(report.scored)).rows:
        tables.append(labels)
    return tables


def _maps(report: ModelReport, columns: int, lines: int) -> Sequence[doc.Group]:
    """Return a group of the maps of the heads with a card that fit next to each other."""
    if not report.cards or lines < len(report.cards[0].map.first.record.queries) + _MAP_LINES:
        return ()
    record = report.cards[0].map.first.record
    wide = (2 if record.causal else 5) * len(record.keys) + 12
    maps = []
    for card in report.cards[: (columns + _GAP) // (wide + _GAP)]:
        shown = card.map.first
        words: doc.Words = [(card.name, True), (shown.scores(*card.head).label.said, False)]
        weights, axes = shown.weights(*card.head), (record.queries, record.keys)
        maps.append(doc.Map(card.name, weights, *axes, words, causal=record.causal))
    return [doc.Group([doc.Maps(maps, scale=None)], yields=5)] if maps else ()
