"""The document of ``attnviz ablate``: map, ranking, attention of the heads, losses by token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.document import Explanation, Facts, Part, Quote, Words
from attnviz.draw.numbers import NumberScale, counted, listed, percent
from attnviz.draw.provenance import (
    advised,
    entropy_words,
    fits_two_lines,
    label_text,
    label_words,
    model_words,
    notes_group,
    probability,
)
from attnviz.draw.signed import Place, explained, one_line, signed_scale
from attnviz.engine.answers import START_END
from attnviz.engine.effects import METRICS, Metric
from attnviz.inspect.interventions.ablate.report import AblationReport, Effect, scale_of
from attnviz.inspect.interventions.ablate.request import UNITS
from attnviz.inspect.interventions.means import Mean
from attnviz.inspect.interventions.shown import (
    Cells,
    base_rates,
    effect_grid,
    effect_table,
    incomplete,
    label_column,
)
from attnviz.measures.bootstrap import LEAST_TEXTS
from attnviz.measures.labels import label_look
from attnviz.measures.sign_flips import CHANCE, DRAWS
from attnviz.records import HeadLabel, HeadScores, Tokens

_LABEL_ROOM = 19
_MOST_MAPPED, _MOST_FOLLOWED = 4, 4


def document(report: AblationReport) -> doc.Document:
    """Return the document of a report, with its first screen."""
    grid, tokens = head_grid(report), (report.targets or report.texts)[0]
    found = report.effects
    every = [_effects(report, found, found, "Every ablation")] if found else []
    groups = [
        doc.Group(about(report)),
        notes_group((*report.model.notes, *report.notes), tokens),
        doc.Group([grid] if grid is not None else []),
        doc.Group(ranking_tables(report), spaced=True),
        doc.Group(together(report)),
        doc.Group(attention_maps(report)),
        doc.Group(where_it_hurts(report) if report.by_token else []),
        doc.Group([doc.Say(text) for text in caveats(report)]),
        doc.Group(every, full=True),
    ]
    return doc.Document(
        name=f"ablated heads of {report.model.name}",
        title=" ".join(report.text.split()),
        groups=groups,
        explain=explanation(report),
        hints=doc.next_steps(_hints(report)),
        heading=heading(report),
        quoted=report.text if report.text_count == 1 else "",
        finding=finding(report),
        first=advised(partial(first_groups, report), tokens),
    )


def _hints(report: AblationReport) -> list[str]:
    """Return the options to try next on the command line."""
    hints = []
    best = report.ranking(1).matter
    random = report.model.weights == "random"
    has_losses = not report.classes or any(each.token_losses for each in report.effects)
    can_show = "loss" in report.baseline and has_losses and report.record is None
    if best and not report.by_token and can_show:
        chosen = f"--head {report.name(best[0].variant)} " if report.unit == "head" else ""
        hints.append(f"{chosen}--by-token")
    if report.source.endswith("built-in texts"):
        hints.append("--texts FILE your data")
    elif not (report.ranks or report.texts[0].joined or report.edges or random):
        hints.append("--texts FILE for intervals")
    if report.method == "exact" and len(report.effects) > 1 and not ablates_every(report):
        hints.append("--together")
    hints.append("--explain")
    return hints


# The map -------------------------------------------------------------------------------------


def head_grid(report: AblationReport, scaled: bool = True) -> doc.HeadGrid | None:
    """Return a grid of the effects of ablations, or of gradients; None for fewer than two.

    scaled: True adds a colour bar; a first screen has only the numbers.
    """
    found = _placed(report)
    if len(found) < 2:
        return None
    metric, gradient = report.ranked_by, report.method == "gradient"
    values, signed = (one.value for one in found.values()), metric.signed and not gradient
    scale = NumberScale.over(values, signed, metric.percent)
    grid = effect_grid(
        found,
        scale,
        map_title(report, brief=not scaled),
        report.column,
        base=report.index_base,
        blank=report.gradients if report.unit == "head" else (),  # what a budget left out
        bar=signed_scale(scale, metric.unit or metric.label) if scaled else None,
    )
    labels = {report.head_name(head): label_look(each) for head, each in report.labels.items()}
    return grid.with_known(labels, "gradient" if gradient else "effect of ablation")


def _placed(report: AblationReport) -> Mapping[Place, Mean]:
    """Return the values in the cells of the grid, by (layer, column); only finite ones."""
    if report.method == "gradient":
        return {head: Mean(value) for head, value in report.gradients.items()}
    placed = {report.cell(each.variant): each.shown(report.metric) for each in report.effects}
    return {
        place: one
        for place, one in placed.items()
        if place is not None and math.isfinite(one.value)
    }


# The ranking ---------------------------------------------------------------------------------


def ranking_tables(report: AblationReport, most: int | None = None) -> list[doc.Part]:
    """Return two tables: the heads that matter most, and the heads that are harmful.

    most: the rows of the first table; the report's own number by default.
    """
    if report.method == "gradient":
        return [_gradients(report, report.top if most is None else most)]
    if not report.singles:
        return []
    order, (title, harm_title) = report.ranking(most), ranking_titles(report)
    if not order.matter and not order.harm:
        line = f"{title}: none, no ablation changes {report.ranked_by.label}"
        return [doc.Facts([(line, True)])]
    tables = [(order.matter, title), (order.harm, harm_title)]
    return [_effects(report, found, report.singles, title) for found, title in tables if found]


def _gradients(report: AblationReport, most: int) -> doc.Table:
    heads = report.by_gradient[:most]
    scale = NumberScale.over(report.gradients.values(), signed=False)
    found = [Mean(report.gradients[head]) for head in heads]
    return effect_table(
        "Highest by gradient",
        [report.head_name(head) for head in heads],
        found,
        scale,
        [
            (f"gradient{scale.times}", [scale.text(one.value) for one in found]),
            label_column(report.labels, heads, _label),
        ],
    )


def _effects(
    report: AblationReport, effects: Sequence[Effect], among: Sequence[Effect], title: str
) -> doc.Table:
    """Return a table with a row for each ablation.

    effects: the ablations. among: those whose values the number format must cover. title: of the
        table.
    """
    scale = scale_of(among, report.metric)
    found = [effect.shown(report.metric) for effect in effects]
    table = effect_table(
        title,
        [report.name(effect.variant) for effect in effects],
        found,
        scale,
        [
            _metric_column(effects, among, report.metric),
            label_column(report.labels, [effect.head for effect in effects], _label),
            ("edge weight", [_weight(report.edge_weight(effect.variant)) for effect in effects]),
            base_rates("control", found, scale),
            *(_metric_column(effects, among, name) for name in report.metrics_aside(effects)),
        ],
    )
    control = "a random direction of equal norm ablated instead"
    return explained(table, "control", control_words(report) if report.edges else control)


def _metric_column(effects: Sequence[Effect], among: Sequence[Effect], name: Metric) -> Cells:
    metric, scale = METRICS[name], scale_of(among, name)
    values = [effect.shown(name).value for effect in effects]
    sign = "%" * metric.percent
    cells = [scale.text(value) + sign if math.isfinite(value) else "-" for value in values]
    return metric.label + scale.times, cells


def _weight(weight: float) -> str:
    return "" if math.isnan(weight) else probability(weight)


def _label(label: HeadLabel) -> str:
    return label_text(label, _LABEL_ROOM)


def together(report: AblationReport) -> list[doc.Part]:
    """Return the effects of ablating heads together, next to the sum of their single effects."""
    joint = report.joint
    if not joint:
        return []
    title = "Hidden in all of them" if report.edges else "Ablated together"
    parts: list[doc.Part] = [_effects(report, joint, report.effects, title)]
    scale = scale_of(report.effects, report.metric)
    alone = {single.head: single.means.get(report.metric) for single in report.singles}
    for effect in joint if report.ranked_by.signed else ():
        costs = [alone.get(head) for head in effect.variant.heads]
        known = [cost.value for cost in costs if cost is not None]
        if len(known) == len(costs):
            total = f"{scale.text(sum(known))}{scale.times}"
            said = f"{report.name(effect.variant)}: sum of single ablations {total}"
            parts.append(doc.Facts([(said, False)]))
    return parts


# Maps and texts ------------------------------------------------------------------------------


def attention_maps(report: AblationReport) -> list[doc.Part]:
    """Return the attention maps of the heads at the top of the ranking."""
    seen = report.patterns
    if seen is None:
        return []
    order = report.ranking()
    ranked = [*order.matter, *order.harm] or report.effects
    heads = [effect.head for effect in ranked if effect.head is not None]
    if report.method == "gradient":
        heads = report.by_gradient
    elif not heads and len(report.effects) == 1:
        heads = list(report.effects[0].variant.heads)
    known = {(scores.layer, scores.head) for scores in seen.heads}
    shown = [head for head in heads if head in known][:_MOST_MAPPED]
    if not shown:
        return []
    record = seen.record
    maps = [
        doc.Map(
            seen.name(layer, head),
            seen.weights(layer, head),
            record.queries,
            record.keys,
            below=[(word, False) for word in _about_head(seen.scores(layer, head))],
            causal=record.causal,
        )
        for layer, head in shown
    ]
    title = "Attention of these heads" + ", first text" * (report.text_count > 1)
    return [doc.Maps(maps, [(title, True)])]


def _about_head(scores: HeadScores) -> list[str]:
    return [*label_words(scores.label)[:2], *entropy_words(scores)]


def where_it_hurts(report: AblationReport) -> list[doc.Part]:
    """Return the first text, coloured by the change of each token's loss under some ablations.

    These are the joint ablations and the first ones of the ranking, all on one scale.
    """
    maps = token_maps(report)
    if not maps:
        line = "Δ loss by token: not measured, this model or method has no loss for each token"
        return [doc.Facts([(line, True)])]
    title = "Δ loss by token" + ", first text" * (report.text_count > 1)
    scale = signed_scale(NumberScale(maps[0].limit), "nats")
    return [doc.Maps(maps, [(title, True)], texts=True, scale=scale)]


def token_maps(report: AblationReport) -> list[doc.Map]:
    """Return a map of one query for each ablation whose effect on each token is known."""
    order = report.ranking()
    candidates = [*report.joint, *order.matter, *order.harm]
    chosen = [effect for effect in candidates if effect.token_losses][:_MOST_FOLLOWED]
    tokens = (report.targets or report.texts)[0]
    deltas: list[NDArray[np.floating]] = []
    for effect in chosen:
        delta = np.asarray(effect.token_losses[0], dtype=float)
        deltas.append(np.where(np.isfinite(delta), delta, np.nan))
    limit = max((float(np.nanmax(np.abs(delta), initial=0.0)) for delta in deltas), default=0.0)
    maps = []
    for effect, delta in zip(chosen, deltas, strict=True):
        name = report.missing(effect.variant)
        words: doc.Words = [(name, True), (effect_words(report, effect), False)]
        strip = doc.Map(
            f"{name} by token", delta[None], Tokens.bare((0,)), tokens, words, limit=limit
        )
        maps.append(strip)
    return maps


# The first screen ----------------------------------------------------------------------------

_GAP = 3
_CELL = 6
"""The columns that a cell of the map takes: a number such as ``+.44``, a mark and a blank."""

_SCALE_LINES = 3
"""The lines that the colour bar takes, with the empty line before it."""

_ROWS, _LEAST_ROWS = 5, 3
"""The rows that the ranking has next to other parts, and the rows that it keeps at least."""

_MOST_HARM = 2

_TABLE = 66
"""The columns that the ranking takes next to maps."""

_LONG_NAME = 10
_TEXT_LINES = 4
"""The lines that a further text takes, with its title."""


def first_groups(report: AblationReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the groups of the first screen that fit; the ranking is shortened when it is drawn.

    columns, lines: the available width in characters and lines.
    """
    tables = _tables(report)
    if report.by_token:
        texts_room = lines - sum(map(_least_lines, tables))
        return [_by_token(report, columns, texts_room), doc.Group(tables, yields=1)]
    grid, texts = head_grid(report, scaled=False), token_maps(report)
    half = (columns - _GAP) // 2
    grid = None if grid is None else one_line(grid, half)
    tall = 0 if grid is None else 1 + _grid_lines(grid, columns)
    left = lines - 1 - sum(map(_least_lines, tables))
    if grid is not None and tall > left:  # colours alone, and what they mean
        scaled = head_grid(report) or grid
        grid = scaled._replace(halved=True)
        tall = 2 + math.ceil(len(grid.rows) / 2) + _SCALE_LINES
    top: list[doc.Group] = []
    if grid is not None and tall <= left:
        top.append(doc.Group([grid]))
        if texts and _grid_lines(grid, half) == tall - 1:
            beside: list[doc.Part] = [grid, _text(report, texts[:1], tall - 1)]
            top, texts = [doc.Group(beside, beside=doc.Beside(half, _GAP))], texts[1:]
        lines -= tall + 1
    if half >= _TABLE + _GAP:
        side = _maps(report, half, lines) or _few_texts(report, texts, lines)
        beside_them = doc.Beside(half, _GAP)
    else:
        side = _maps(report, columns - _TABLE - _GAP, lines, rows=1)
        beside_them = doc.Beside(_TABLE, _GAP, yields=True)
    if side:
        return [*top, doc.Group([doc.Group(tables), *side], beside=beside_them)]
    rows = sum(min(len(table.rows), _ROWS) + 3 for table in tables if isinstance(table, doc.Table))
    below = _maps(report, columns, lines - rows) or _few_texts(report, texts, lines - rows)
    return [*top, doc.Group(tables), doc.Group(below, yields=1)]


def _tables(report: AblationReport) -> list[doc.Part]:
    """Return the ranking without its title, some harmful heads, and the joint ablations."""
    found: list[doc.Part] = []
    most = max(len(report.effects), len(report.gradients))
    for place, part in enumerate([*ranking_tables(report, most), *together(report)]):
        if isinstance(part, doc.Table) and place:
            part = part._replace(rows=part.rows[:_MOST_HARM], least=1)
        elif isinstance(part, doc.Table):
            part = part._replace(title=part.title[1:], least=_LEAST_ROWS)
        found.append(part)
    return found


def _least_lines(part: doc.Part) -> int:
    """Return how many lines a part needs; a table without the rows that it may leave out."""
    if not isinstance(part, doc.Table):
        return 1
    rows = len(part.rows)
    return bool(part.title) + 1 + min(rows, part.least) + (rows > part.least)


def _grid_lines(grid: doc.HeadGrid, columns: int) -> int:
    per_row = max((columns - 4) // _CELL, 1)
    parts = math.ceil(len(grid.columns) / per_row)
    return len(grid.rows) * parts + (parts == 1)


def _text(report: AblationReport, texts: list[doc.Map], lines: int) -> doc.Maps:
    """Return the coloured texts, each cut to a few lines around the largest changes."""
    named = []
    for text in texts:
        name = text.words[0][0]
        first = ", first text" * (report.text_count > 1 and len(name) < _LONG_NAME)
        named.append(text._replace(words=[(f"Δ loss without {name}{first}", True)]))
    return doc.Maps(named, texts=True, lines=lines, scale=None)


def _few_texts(report: AblationReport, texts: list[doc.Map], lines: int) -> list[doc.Part]:
    count = min(lines // _TEXT_LINES, len(texts))
    return [_text(report, texts[:count], max(lines // count - 1, 1))] if count else []


def _by_token(report: AblationReport, columns: int, lines: int) -> doc.Group:
    """Return the coloured texts, as much of them as fits next to the shortest ranking."""
    (part,) = where_it_hurts(report)
    if not isinstance(part, doc.Maps):
        return doc.Group([part])
    tokens = part.maps[0].keys
    whole = sum(map(len, tokens.texts)) // max(columns - 6, 1) + 1
    room = (lines - 4) // len(part.maps) - 1  # with title, scale and a blank line
    return doc.Group([part._replace(lines=0 if whole + 3 <= room else max(room, 1))])


def _maps(report: AblationReport, columns: int, lines: int, rows: int = 0) -> list[doc.Part]:
    """Return as many whole attention maps as fit."""
    for part in attention_maps(report):
        if isinstance(part, doc.Maps):
            causal, tokens = part.maps[0].causal, len(part.maps[0].keys)
            cell = 2 if causal else 5  # with a word above each column
            wide = cell * tokens + 12
            tall = len(part.maps[0].queries) + 4 + (not causal)  # with title and scores
            down = max((lines - 4) // tall, 0)
            count = max((columns + _GAP) // (wide + _GAP), 0) * (min(down, rows) if rows else down)
            if count:  # in one row the key would be the widest
                return [part._replace(maps=part.maps[:count], scale=None if rows else part.scale)]
    return []


_AS_MUCH = 0.8
"""The share of a head's effect from which a random direction is said to do as much."""

_LITTLE = 0.01
"""The change of the loss in nats, 1% of the perplexity, below which a head changes little."""

_NAMED = 3
"""The most heads that the finding names."""


def heading(report: AblationReport) -> Words:
    """Return the heading in one line: the model, the ablation and the texts."""
    shape = counted(sum(report.model.heads_of_layers.values()), "head")
    parts = [shape, _scan_facts(report)[0], _size(report)]
    loss = report.baseline.get("loss")
    if loss is not None:
        parts.append(f"{_loss_name(report)} {loss:.3f} nats")
    return [(report.model.name, True), *((part, False) for part in parts)]


def _size(report: AblationReport) -> str:
    size = counted(report.token_count, "token")
    if report.targets:
        size += f" and {sum(map(len, report.targets)):,} of the target"
    many = report.texts_wanted != 1
    return f"{counted(report.text_count, 'text')}, {size}" if many else size


# The finding ---------------------------------------------------------------------------------


def finding(report: AblationReport) -> str:
    """Return the main result in one sentence that claims no more than the texts can support."""
    if not report.complete:
        lead = incomplete(report.text_count, report.texts_wanted, "text", "ablations")
        return lead + answer(report)
    return answer(report)


def answer(report: AblationReport) -> str:
    """Return the finding, without the remark on an interrupted scan."""
    if not report.text_count:
        return "No text was measured."
    if report.model.weights == "random":
        return "Random weights: differences are noise, not a ranking."
    if report.ranks:
        return _ranking_words(report)
    end = " One text." * (report.text_count == 1)
    if report.edges:
        return _edge_words(report) + end
    if not report.effects:
        names = listed([report.head_name(head) for head in report.by_gradient[:_NAMED]])
        return f"Largest gradients: {names}; an estimate, nothing was ablated.{end}"
    if report.text_count > 1:
        end = f" {report.text_count} texts are too few for a ranking."
    best = (report.ranking(1).matter or tuple(report.effects[:1]))[0]
    if len(report.singles) == len(report.effects) > 1 and _is_little(report, best):
        what, unit = _measured(report)
        at, value = report.baseline["loss"], best.shown(report.metric).value
        return (
            f"No {UNITS[report.unit]} alone changes {what} by {_LITTLE}{unit}: the largest change "
            f"is {_three_digits(value, True)}, without {report.name(best.variant)} "
            f"({at:.3f} → {at + value:.3f}).{end}"
        )
    tried = counted(len(report.effects), UNITS[report.unit])
    most = f", the largest change of {tried}" * (len(report.effects) > 1)
    said = f"{without_words(report, best)}{most}"
    if math.isnan(report.chance):
        needs = f"{said}. One text is no ranking: give {LEAST_TEXTS} or more (--texts)."
        alone = report.text_count == 1 and len(report.singles) > 1 and not report.ranked_by.signed
        return needs if alone and fits_two_lines(needs) else f"{said}.{end}"
    draws = f"{round(report.chance * (DRAWS + 1)) - 1:,} of {DRAWS:,} draws"
    if report.chance < CHANCE:
        return f"{said}; chance does that in {draws}.{end}"
    return f"{said}, not beyond chance ({draws}).{end}"


def _edge_words(report: AblationReport) -> str:
    """Return what hidden edges change: in all heads at once, in the control, in one head."""
    found = (*report.joint, *report.ranking(1).matter, *report.effects)
    first, base = found[0], found[0].shown(report.metric).base_rate
    said = without_words(report, first)
    if report.metric == "loss_delta":
        said += f", KL {_three_digits(first.value('kl'), False)}"
    signed = report.ranked_by.signed
    if base is not None:
        said += f"; random edges {_three_digits(base, signed)}"
    if report.joint and report.singles and (best := report.ranking(1).matter):
        alone = _three_digits(best[0].shown(report.metric).value, signed)
        said += f"{'; ' if base is None else ', '}{report.name(best[0].variant)} alone {alone}"
    return f"{said}."


def _is_little(report: AblationReport, effect: Effect) -> bool:
    return report.metric == "loss_delta" and abs(effect.shown("loss_delta").value) < _LITTLE


def one_text(report: AblationReport, text: int, texts: int) -> str:
    """Return the largest effects of ablations over one of several texts, as one line.

    text: its index. texts: how many there are.
    """
    ranking = report.ranking(_NAMED)
    best = ((*ranking.matter, *ranking.harm) or report.effects)[:_NAMED]
    found = ", ".join(f"{report.name(each.variant)} {effect_words(report, each)}" for each in best)
    return f"text {text + 1:,} of {texts:,}: {found}"


def without_words(report: AblationReport, effect: Effect, called: str = "") -> str:
    """Return a clause with the effect of a missing head: by how much, from where to where.

    effect: of its ablation. called: the name of the head in the sentence; its usual name by
        default.
    """
    name, value = called or report.missing(effect.variant), effect.shown(report.metric).value
    before = {"loss_delta": "loss", "logit_diff": "logit_diff"}.get(report.metric)
    at = report.baseline.get(before or "")
    if before is None or at is None or not math.isfinite(value):
        if report.metric == "output_mse":
            return f"Without {name} the output changes ({_mean_square(report, effect)})"
        return f"Without {name} the output changes: {effect_words(report, effect)}"
    what, unit = _measured(report)
    if not value:
        return f"Without {name} {what} stays at {at:.3f}{unit}"
    moves = "rises" if value > 0 else "falls"
    size = _three_digits(abs(value), False)
    return f"Without {name} {what} {moves} by {size}{unit} ({at:.3f} → {at + value:.3f})"


def unclear_words(report: AblationReport, effect: Effect, called: str) -> str:
    """Return a clause on a missing head whose effect is not clear, with its interval.

    effect: of its ablation. called: the name of the head in the sentence.
    """
    what, unit = _measured(report)
    value = _three_digits(effect.shown(report.metric).value, report.ranked_by.signed)
    ends = interval_words(report, effect)
    return f"Without {called} {what} does not clearly change ({value}{unit}, 95% interval {ends})"


def _measured(report: AblationReport) -> tuple[str, str]:
    if report.metric == "loss_delta":
        return f"the {_loss_name(report)}", " nats" if report.classes else " nats a token"
    return ("the answer's lead", " logits") if report.metric == "logit_diff" else ("the output", "")


def _ranking_words(report: AblationReport) -> str:
    metric, tried = report.ranked_by, len(report.effects)
    if tried == 1:
        effect = report.effects[0]
        found = without_words(report, effect)
        ends = interval_words(report, effect)
        unclear = ", which includes 0" if effect.shown(report.metric).unclear else ""
        return f"{found}, 95% interval {ends}{unclear}."
    order = report.ranking(tried)
    if not metric.signed:
        moved = report.metric == "output_mse"
        lead = "The output changes most" if moved else f"{metric.title} is largest"
        return f"{lead} without {_largest(report, order.matter[:_NAMED])}."
    units = f"{len(report.singles) or tried} {UNITS[report.unit]}s"
    by_loss = report.metric == "loss_delta"
    unit = UNITS[report.unit]
    clear = [effect for effect in order.matter if effect.shown(report.metric).significant]
    first = clear[:_NAMED]
    if not first and not order.harm:
        return f"No significant effect among {units}."
    matter = f"No {unit} clearly matters"
    if first:
        most = order.matter[: len(first)] == tuple(first)
        more = [report.name(effect.variant) for effect in first[1:]]
        then = f", {'then' if most else 'clearly also'} without {listed(more)}" if more else ""
        of = f", the most of {units}" if most else ""
        matter = f"{without_words(report, first[0])}{of}{then}"
    if order.harm:
        names = listed([report.name(effect.variant) for effect in order.harm[:_NAMED]])
        less = "the loss falls" if by_loss else "the lead grows"
        return f"{matter}; {less} without {names}."
    none = f"no {unit}" if ablates_every(report) else f"none of these {len(report.singles)}"
    return f"{matter}; {none} is clearly harmful."


def _largest(report: AblationReport, first: Sequence[Effect]) -> str:
    """Return the names of the first heads, and whether random directions have equal effects."""
    leader, *others = (report.name(effect.variant) for effect in first)
    amount = effect_words(report, first[0]).removeprefix(f"{report.ranked_by.label} ")
    if report.metric == "output_mse":
        amount = _mean_square(report, first[0])
    names = f"{leader} ({amount})" + (f", then {listed(others)}" if others else "")
    known = [effect.means[report.metric] for effect in first]
    if any(one.base_rate is None or one.base_rate < _AS_MUCH * one.value for one in known):
        return names
    much = "much" if report.metric == "output_mse" else "large"
    return f"{names}, but as {much} for random directions of equal norm"


def _mean_square(report: AblationReport, effect: Effect) -> str:
    """Return the change of the output, such as ``mean square 0.00334, 1.2% of its own``.

    The second number compares the first with the mean square of the output itself.
    """
    value, own = effect.shown("output_mse").value, report.baseline.get("output_square")
    said = f"mean square {_three_digits(value, False)}"
    return f"{said}, {percent(value / own)} of its own" if own else said


def effect_words(report: AblationReport, effect: Effect) -> str:
    """Return an effect as a string, such as ``+0.441 nats/token`` or ``KL 0.31 nats/token``."""
    metric = report.ranked_by
    value = _three_digits(effect.shown(report.metric).value, metric.signed)
    shown = f"{value}{' ' * (not metric.percent)}{metric.unit}".rstrip()
    return shown if report.metric == "loss_delta" else f"{metric.label} {shown}"


def interval_words(report: AblationReport, effect: Effect) -> str:
    """Return the confidence interval of an effect as a string; empty if it has none.

    For example ``[+0.154, +0.502]``.
    """
    ends = effect.shown(report.metric).interval
    if ends is None:
        return ""
    return f"[{', '.join(_three_digits(end, report.ranked_by.signed) for end in ends)}]"


def _three_digits(value: float, signed: bool) -> str:
    """Return a number as a string with three digits, such as ``+0.470``; zero has no sign."""
    return f"{value or 0.0:{'+' * (signed and value != 0)}#.3g}".rstrip(".")


# Provenance ----------------------------------------------------------------------------------


def about(report: AblationReport) -> list[Part]:
    """Return the facts that a reader needs to repeat the run: model, texts, ablation, baseline."""
    kind = [] if report.kind == "self" else [f"{report.kind} attention"]
    drawn = report.mode == "resample" or report.text_count > 1 or report.model.seed is not None
    seed = [f"seed {report.seed}"] * drawn
    facts = [(fact, False) for fact in (*kind, _size(report), *seed)]
    many = report.texts_wanted != 1
    parts: list[Part] = [
        Facts([*model_words(report.model), *facts]),
        Quote("texts" if many else "text", f"the first: {report.text}" if many else report.text),
    ]
    if report.target is not None:
        parts.append(Quote("target", report.target))
    if report.source:
        told = report.source.startswith(f"{report.texts_wanted} ")
        lead = f"{counted(report.texts_wanted, 'text')} from " if many and not told else ""
        parts.append(Facts([(lead + report.source, False)], lead=7))
    return [*parts, Facts([(fact, False) for fact in _scan_facts(report)])]


def _scan_facts(report: AblationReport) -> list[str]:
    facts = {
        "exact": [_ablation(report), _amount(report)],
        "budget": [_ablation(report), f"gradient pre-ranking, top {len(report.effects)} measured"],
        "gradient": ["first-order estimate by gradient", "no head is ablated"],
    }[report.method]
    if report.positions == "last":
        facts.append("last prediction of each text only")
    loss, name = report.baseline.get("loss"), _loss_name(report)
    if loss is not None:
        unit = "nats" if report.classes else "nats/token"
        facts.append(f"{name} {loss:.3f} {unit} with every head")
        facts += ["each word masked in turn"] * (name == "pseudo-loss")
    if report.answer is not None and report.foil is not None:
        asked = f'answer "{report.answer}" against foil "{report.foil}"'
        before = report.baseline.get("logit_diff")
        facts.append(asked if before is None else f"{asked}: {before:+.3f} logits")
    elif report.classes:
        asked = "predicted with every head" if report.answer is None else f'"{report.answer}"'
        facts.append(f"{'answer' if report.classes == START_END else 'label'}: {asked}")
    return facts


def _loss_name(report: AblationReport) -> str:
    """Return the name of the loss: of labels, or a pseudo-loss if each word is masked in turn."""
    if report.classes:
        return "answer loss" if report.classes == START_END else "label loss"
    seen = report.patterns
    masked = seen is not None and not seen.record.causal and not report.targets
    masked = masked or (report.record is not None and "MaskedLM" in report.model.architecture)
    return "pseudo-loss" if masked else "loss"


def _amount(report: AblationReport) -> str:
    count = len(report.singles)
    if not count:
        return "heads ablated together"
    every = "all " * (count > 1 and ablates_every(report))
    return f"{every}{counted(count, UNITS[report.unit])} measured"


def ablates_every(report: AblationReport) -> bool:
    """Return whether every head of the model (or every other unit) was ablated alone."""
    info = report.model
    in_a_layer = {"head": info.heads, "kv-head": info.kv_heads, "layer": 1}[report.unit]
    return len(report.singles) == in_a_layer * len(info.heads_of_layers)


def _ablation(report: AblationReport) -> str:
    if report.edges:
        return f"{', '.join(edge.name for edge in report.edges)} hidden"
    if report.mode == "zero":
        return "zero ablation"
    reference = f" over {report.reference}" if report.reference else ""
    if report.mode == "mean":
        return f"mean ablation{reference}"
    return f"resample ablation{reference}, up to {counted(report.draws, 'draw')}"


def map_title(report: AblationReport, brief: bool = False) -> str:
    """Return the title of the grid: ``Loss increase when one head is ablated (Δ nats/token)``.

    The words differ by metric. brief: True gives a short one, ``Δ loss, nats``.
    """
    metric = report.ranked_by
    if report.method == "gradient":
        return "First-order importance of each head (gradient estimate)"
    if brief:
        return f"{metric.label}, {metric.unit.removesuffix('/token')}".removesuffix(", ")
    unit = f" ({'Δ ' * (report.metric == 'loss_delta')}{metric.unit})" if metric.unit else ""
    done = f"one {UNITS[report.unit]} is ablated"
    if report.edges:
        done = f"the edge{'s are' if len(report.edges) > 1 else ' is'} hidden in one"
        done += f" {UNITS[report.unit]}"
    title = f"{metric.title} when {done}{unit}"
    return f"{title}, where measured" if report.method == "budget" else title


def ranking_titles(report: AblationReport) -> tuple[str, str]:
    """Return two titles: of the table of heads that matter, and of that of heads that do harm."""
    if len(report.singles) == 1:
        return f"{report.ranked_by.title} without it", ""
    if not report.ranks:
        texts = "random weights" if report.model.weights == "random" else "these texts only"
        return f"Largest changes, {'this text only' if report.text_count == 1 else texts}", ""
    if report.metric == "logit_diff":
        return "The answer's lead falls most without", "The answer's lead grows without"
    if report.metric == "loss_delta":
        return "Loss increases most without", "Loss decreases without"
    return f"{report.ranked_by.title} is largest without", ""


def caveats(report: AblationReport) -> list[str]:
    """Return the caveats: sentences on the limits of the numbers."""
    found = []
    values = [each.means.get(report.metric, Mean(0.0)).value for each in report.effects]
    lost = sum(not math.isfinite(value) for value in values)
    first = report.effects[0].means.values() if report.effects else ()
    if lost:
        found.append(
            f"no numbers: {counted(lost, 'ablation')} overflowed and stay blank"
            f"{report.model.overflow_advice}."
        )
    if report.method == "gradient":
        found.append(
            "estimate: the gradient is a first-order estimate of a small change of a head, not "
            "what its ablation costs; --method exact measures that."
        )
    if report.method == "budget":
        found.append(
            f"measured: {len(report.effects)} of {counted(len(report.gradients), 'head')}, those "
            "that the gradient ranks highest."
        )
    if report.rank_correlation is not None:
        found.append(
            f"rank correlation of gradient and exact, {len(report.effects)} ablations: "
            f"{report.rank_correlation:+.2f}; the gradient is approximate."
        )
    if any(one.interval is not None for one in first):
        found.append(
            f"interval: 95%, bootstrap-t over {counted(report.text_count, 'text')}, 2,000 draws; "
            "paired differences to the model with every head."
        )
    if len(report.effects) > 1 and any(one.adjusted is not None for one in first):
        tried = len(report.effects)
        found.append(
            f"correction: {tried} ablations are tried, and {0.05 * tried:.1f} intervals would "
            "exclude 0 by chance alone. Named first, or called harmful, is only what is "
            "significant among all: bootstrap-t over the texts, largest |t|, p at most .05."
        )
    if not math.isnan(report.chance) and report.model.weights != "random":
        found.append(
            "chance: in each draw the Δ loss of every token gets a random sign, and the largest "
            f"change of {counted(len(report.effects), 'ablation')} is taken. What happens at one "
            "token alone cannot beat that: --texts FILE measures whether it lasts."
        )
    if report.edges:
        found.append(
            "edge: the score of the attention from the first word to the second becomes -inf, and "
            "the softmax runs over the other keys; nothing else is changed."
        )
    alone = report.text_count == 1 and len(report.singles) > 1 and not report.edges
    if alone and not report.ranked_by.signed:
        found.append(
            "one text: a change of the output is above zero for every head, so this text alone "
            f"has no control. --texts FILE with {LEAST_TEXTS} or more has intervals over texts, "
            "and a random direction of equal norm ablated instead of each head."
        )
    if any(effect.shown(report.metric).base_rate is not None for effect in report.effects):
        found.append(f"control: {control_words(report)}.")
    return found


def control_words(report: AblationReport) -> str:
    """Return a clause on what the control does instead of an ablation."""
    if report.edges:
        draws = counted(report.edge_draws, "draw")
        return f"random edges of the same distance hidden instead, mean of {draws}"
    return "ablates a random direction of equal norm instead of the head"


def explanation(report: AblationReport) -> Explanation:
    """Return the glossary, with the data that the effects were measured on."""
    many = report.texts_wanted != 1
    of = counted(report.text_count, "text") if many else "this text alone"
    tokens = counted(report.token_count, "token")
    seed = f", seed {report.seed}" * many
    return Explanation(
        "ablate",
        f"measured over {of} ({tokens}{seed}); each number is the difference to the model with "
        "every head.",
    )
