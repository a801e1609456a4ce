"""The chosen head in words: its label and scores, the links of the cursor, the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Line
from attnviz.draw.coloured_text import marks_line, pieces_line, pieces_of, rows_of
from attnviz.draw.document import Map
from attnviz.draw.labels import fit, width
from attnviz.draw.numbers import NumberScale
from attnviz.draw.prose import one_line
from attnviz.draw.provenance import label_source, label_words, share
from attnviz.draw.signed import ranked_table
from attnviz.draw.terminal import part_block
from attnviz.draw.theme import Theme, Tone
from attnviz.engine.likely import Likely
from attnviz.inspect.explore.heading import ROUNDED, effect_words, likely_words, removed_names
from attnviz.inspect.explore.session import same_tokens
from attnviz.inspect.explore.view import View, Written
from attnviz.inspect.heads.sentences import scored
from attnviz.measures.registry import MEASURES, said_name
from attnviz.records import Floats

MODES = {"raw": "", "no-sink": "sink left out", "value-weighted": "value-weighted"}
"""The words for each mode of the weights."""

_MOST_TOLD, _LEAST_TOLD = 7, 0.015
"""How many weights are named, and the smallest; the largest of all may be smaller."""


def head_line(view: View, theme: Theme, max_width: int, strong: bool) -> Line:
    """Return the line with the chosen head's name, label, score, uniform score and weight mode.

    theme: colours and characters. max_width: in characters. strong: whether the name
        stands out, because the cursor keys move in this pane.
    """
    scene, report = view.scene, view.shown.report
    entry = report.scores(*scene.head)
    what = entry.label
    words = _states(view)
    of_prompt = " (prompt)" if view.written is not None and view.written.at else ""
    words.append((scored(what.said, what.score) + of_prompt, False))
    words += [(said, "faint") for said in label_words(entry.label)[1:]]
    source = label_source([entry.label], "{source}, {date}")
    words += [(source, "faint")] if source else []
    name = Segment(f" {scene.name(scene.head)} ", theme.accent(ground=True) if strong else BOLD)
    return [name, Segment(" "), *one_line(words, theme, max_width - width(name.text) - 1)]


_SIDES = {"a": "first", "b": "second", "difference": "second less first"}
_REMOVED = {"b": "whole model", "difference": "change by ablation"}


def _states(view: View) -> list[tuple[str, Tone | bool]]:
    """Return how the shown weights differ from the raw weights of the first side, as remarks."""
    scene, words = view.scene, list[tuple[str, Tone | bool]]()
    if view.other is not None:
        by_position = scene.side == "difference" and not same_tokens(view.frame, view.other)
        words.append((_SIDES[scene.side] + (", by position" if by_position else ""), "strong"))
    elif scene.side in _REMOVED and scene.removed:
        words.append((_REMOVED[scene.side], "strong"))
    if view.shown.long is not None:
        words.append((view.shown.long.said, "strong"))
    if view.dark:
        words.append(("ablated", "bad"))
    elif scene.removed and scene.side == "a" and view.other is None:
        words.append((f"without {removed_names(scene)}", "bad"))
    return [*words, (MODES[scene.mode], "strong")] if MODES[scene.mode] else words


def score_line(view: View, theme: Theme, max_width: int) -> Line:
    """Return the line with the head's pattern scores, and the effect of its removal if known.

    theme: colours and characters. max_width: in characters.
    """
    scene, report = view.scene, view.shown.report
    entry = report.scores(*scene.head)
    words: list[tuple[str, Tone | bool]] = []
    if view.effects is not None and scene.head in view.effects.values:
        words.append((f"ablated: {effect_words(view.effects, scene.head)}", True))
    elif view.scanned is not None:
        words.append((f"ablating every head {view.scanned:.0%}, Esc stops", "faint"))
    sink = report.sinks.get(scene.head)
    if sink is not None:
        words.append((f"sink weight {share(sink)}", "faint"))
    known = {name: value for name, value in entry.scores.items() if value is not None}
    if "entropy" in known:
        words.append((f"entropy {known['entropy']:.2f} nats", "faint"))
    if view.written is not None and view.written.at:
        words[:0] = [("of the prompt", "faint")]
    ranked = sorted(
        (name for name in known if MEASURES[name].family != "statistic" and name != "first"),
        key=lambda name: -known[name],
    )
    words += [(f"{said_name(name)} {share(known[name])}", "faint") for name in ranked]
    return one_line(words, theme, max_width)


def word_lines(view: View, theme: Theme, max_width: int, rows: int) -> list[Line]:
    """Return the cursor's cell, row and column in words, and the likeliest next tokens.

    theme: colours and characters. max_width, rows: the available width in characters and lines.
    """
    if view.written is not None and view.written.at:
        return _written_lines(view, view.written, theme, max_width)[:rows]
    scene = view.scene
    queries, keys = view.names(theme.encoding)
    weights = view.weights
    query, key = scene.query, scene.key
    arrow = " -> " if theme.ascii else " → "
    value = float(weights[query, key])
    signed = view.limit > 0
    number = "not yet" if np.isnan(value) else f"{value:+.3f}" if signed else f"{value:.3f}"
    part = view.shown.long
    if part is not None:
        number = "hidden" if np.isnan(value) else number if value >= ROUNDED else f"{value:.1e}"
    if view.record.causal and key > query:
        number = "later, hidden"
    cell = [
        Segment(f"{queries[query]}{arrow}{keys[key]}", theme.accent()),
        Segment(f"  {number}", BOLD),
        Segment(f"  {MODES[scene.mode]}", DIM),
    ]
    if part is not None and part.pooled:
        cell.append(Segment(f"  mean over queries of the sum over {part.keys.step:,} keys", DIM))
    elif part is None and (regions := view.record.keys.regions):
        cell += _regions(view, regions, theme, max_width - Segment.get_line_length(cell))
    lead = max(width(f"from {queries[query]}"), width(f"to {keys[key]}"), width("next token")) + 2
    lead = min(lead, max_width // 2)
    ranked = partial(_ranked, lead=lead, theme=theme, max_width=max_width, signed=signed)
    lines = [
        cell,
        ranked(f"from {queries[query]}", weights=weights[query], names=keys),
        ranked(f"to {keys[key]}", weights=weights[:, key], names=queries),
    ]
    likely = _predicted(view)
    if likely:
        words = [(likely_words(each), False) for each in likely]
        lines.append([_lead("next token", lead, theme), *one_line(words, theme, max_width - lead)])
    return lines[:rows]


def _regions(view: View, regions: Sequence[str], theme: Theme, max_width: int) -> Line:
    """Return the line with the cursor key's region, and the query's weight on each region.

    The weights stand next to those of uniform attention. regions: the region of each key.
    """
    query = view.scene.query
    seen = slice(query + 1) if view.record.causal else slice(len(regions))
    row, of_keys = np.nan_to_num(view.weights[query][seen]), np.asarray(regions[seen])
    words: list[tuple[str, Tone | bool]] = [(f"in {regions[view.scene.key]}", "faint")]
    to = "" if view.limit else "to each (uniform): "
    for name in dict.fromkeys(regions[seen]):
        there = of_keys == name
        even = "" if view.limit else f" ({share(float(there.mean()))})"
        given = f"{name} {_weight(float(row[there].sum()), view.limit > 0)}{even}"
        words.append((to + given, False))
        to = ""
    return one_line(words, theme, max_width)


def _written_lines(view: View, written: Written, theme: Theme, max_width: int) -> list[Line]:
    """Return the end of the text, coloured by attention weight, and the token that the model chose.

    written: the generated text.
    """
    step = written.steps[written.at - 1]
    queries, keys = view.names(theme.encoding)
    layer, head = view.scene.head
    row = np.full(len(view.record.keys), np.nan)
    weights = step.rows[layer][head]
    row[: len(weights)] = weights
    lead = width("next token") + 2
    chosen = Likely(step.text, step.id, step.probability)
    words: list[tuple[str, Tone | bool]] = [(likely_words(chosen), True)]
    words += [(likely_words(each), False) for each in step.likely if each.id != step.id]
    return [
        *_tail(view, row, theme, max_width),
        _ranked(
            f"from {queries[step.place]}",
            lead,
            weights=row,
            names=keys,
            theme=theme,
            max_width=max_width,
            signed=False,
        ),
        [_lead("wrote", lead, theme), *one_line(words, theme, max_width - lead)],
    ]


def _tail(view: View, row: Floats, theme: Theme, max_width: int) -> list[Line]:
    """Return the last lines of the text, coloured by the newest token's attention weights.

    row: (key,) these weights.
    """
    keys = view.record.keys
    shown = Map("", row[None, :], keys, keys)
    lines = rows_of(pieces_of(shown, theme, max_width - 2), max_width - 2)
    drawn: list[Line] = []
    for pieces in lines[-2:] if theme.colour else lines[-1:]:
        drawn.append(pieces_line(pieces, shown, theme))
        if pieces[-1].place == len(keys) - 1:
            drawn[-1][-1] = Segment(pieces[-1].label, BOLD)
        if not theme.colour:
            drawn.append([Segment(marks_line(pieces, shown, theme))])
    return drawn


def _predicted(view: View) -> Sequence[Likely]:
    """Return the likeliest next tokens; during generation, those of the shown generation step."""
    if view.written is not None and view.written.at:
        return view.written.steps[view.written.at - 1].likely
    return view.shown.likely


def _lead(text: str, lead: int, theme: Theme) -> Segment:
    return Segment(fit(theme.spell(text), lead - 1, theme.ellipsis).ljust(lead), DIM)


def _ranked(
    title: str,
    lead: int,
    weights: Floats,
    names: Sequence[str],
    theme: Theme,
    max_width: int,
    signed: bool,
) -> Line:
    """Return the line with the tokens of the largest weights of a row or a column.

    title: stands before them. lead: the width of the title in characters. weights, names: of each
        token. signed: True writes the sign, for a difference.
    """
    sizes = np.abs(np.nan_to_num(weights))
    order = np.argsort(-sizes, kind="stable")[:_MOST_TOLD].tolist()
    words: list[tuple[str, Tone | bool]] = [
        (f"{names[place]} {_weight(float(weights[place]), signed)}", not rank)
        for rank, place in enumerate(order)
        if sizes[place] >= (_LEAST_TOLD if rank else ROUNDED)
    ]
    return [
        _lead(title, lead, theme),
        *one_line(words or [("nothing", "faint")], theme, max_width - lead),
    ]


def _weight(value: float, signed: bool) -> str:
    return f"{value:+.2f}" if signed else share(value)


def effect_lines(view: View, theme: Theme, max_width: int, rows: int) -> list[Line]:
    """Return the lines with the effects of removing single heads, the most important first.

    theme: colours and characters. max_width, rows: the available width in characters and lines.
    Each has a bar, as in ``attnviz ablate``; the chosen head stands out.
    """
    effects, name = view.effects, view.scene.name
    if effects is None:
        return []
    scale = NumberScale.over(effects.values.values())
    heads = effects.ranking()[:rows]
    values = [effects.values[head] for head in heads]
    texts = [("", list(map(scale.text, values)))]
    by_loss = effects.metric == "loss_delta"
    title = "loss without it" if by_loss else "change without it"
    unit = "nats/token" if by_loss else "output MSE"
    table = ranked_table(title, list(map(name, heads)), values, scale, texts)
    table = table._replace(title=[(title, True), (unit + scale.times, False)])
    lines = list(part_block(table, theme, max_width).lines[:rows])
    for place, line in enumerate(lines):
        if line and line[0].text.strip() == name(view.scene.head):
            lines[place] = [Segment(line[0].text, theme.accent()), *line[1:]]
    return lines
