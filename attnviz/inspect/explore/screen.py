"""What explore says in words: the finding, the chosen head, the cursor, the prediction.

In every function, ``theme`` has the colours and characters; ``max_width`` counts characters, and
``rows`` lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Line
from attnviz.draw.coloured_text import marks_line, pieces_line, pieces_of, rows_of
from attnviz.draw.document import Map
from attnviz.draw.labels import at_blanks, fit, token_labels, visible, width
from attnviz.draw.numbers import NumberScale
from attnviz.draw.prose import cut_at_word, one_line
from attnviz.draw.provenance import label_source, label_words, named, shape_words, share, size_words
from attnviz.draw.signed import ranked_table
from attnviz.draw.terminal import part_block
from attnviz.draw.theme import Theme, Tone
from attnviz.engine.generation import Step
from attnviz.engine.head_run import Head
from attnviz.engine.likely import Likely
from attnviz.engine.scan.run import Effects
from attnviz.inspect.explore.grid import moved_attention
from attnviz.inspect.explore.session import Frame, model_name, same_tokens, two_models
from attnviz.inspect.explore.view import View
from attnviz.inspect.heads.sentences import finding, scored
from attnviz.measures.registry import MEASURES, said_name
from attnviz.records import Floats, Tokens

ROUNDED = 0.005
"""The smallest share that does not round to zero."""


def heading(view: View, theme: Theme, max_width: int) -> Line:
    """Return the line with the model, the size of the text, its loss, then the text itself."""
    report = view.shown.report
    info, record = report.record.model, view.record
    short = replace(info.of(record.kind), name=model_name(info))
    words: list[tuple[str, Tone | bool]] = [*named(short), (shape_words(short), False)]
    prompt = ""
    if view.step is not None:
        prompt = "prompt "
        size = len(report.record.queries)
        words.append((f"{size} + {len(record.queries) - size} tokens", False))
    else:
        words.append((size_words(record), False))
    if record.kind != "self":
        words.append((f"{record.kind} attention", False))
    if view.shown.loss is not None:
        words.append((f"{prompt}loss {view.shown.loss:.3f} nats/token", False))
    line = one_line(words, theme, max_width)
    left = max_width - Segment.get_line_length(line) - width(theme.dot)
    text = visible(" ".join(view.shown.text.split()), theme.encoding)
    if left >= 16 and text:
        shown = text if width(text) <= left else cut_at_word(text, left, theme)
        line += [Segment(theme.dot, DIM), Segment(shown, DIM)]
    return line


def finding_lines(view: View, theme: Theme, max_width: int, rows: int) -> list[Line]:
    """Return the finding in at most ``rows`` lines: as many whole sentences as fit."""
    sentences = [theme.spell(sentence) for sentence in _answer(view)]
    while sentences:
        lines = at_blanks(f"{'. '.join(sentences)}.", max_width, "", theme.ellipsis)
        if len(lines) > rows and len(sentences) == 1:
            line = cut_at_word(" ".join(lines[rows - 1 :]), max_width, theme)
            lines = [*lines[: rows - 1], line]
        if len(lines) <= rows:
            return [[Segment(line, BOLD)] for line in lines]
        sentences.pop()
    return []


def _answer(view: View) -> list[str]:
    """Return the sentences of the finding on the maps in view, without full stops."""
    if (text := view.written) is not None:
        sampling, state = text.sampling, "done"
        if text.running:
            state = "paused" if text.paused else "writes"
        warm = f"temperature {sampling.temperature:g}, seed {sampling.seed}"
        without = f" without {removed_names(view)}" if view.frame.removed else ""
        done = f"token {text.at} of {len(text.steps)}"
        chosen = warm if sampling.temperature else "greedy"
        return [f"Generating{without}, {state}: {done}, {chosen}"]
    if view.removed:
        return _of_removed(view)
    if view.other is not None:
        return _of_two(view, view.other)
    return _of_heads(view.shown).removesuffix(".").split(". ")


def _of_removed(view: View) -> list[str]:
    frame, whole, effects = view.frame, view.whole, view.effects
    said = f"Without {removed_names(view)}"
    if frame.loss is not None and whole.loss is not None:
        change = frame.loss - whole.loss
        said += f": loss {whole.loss:.3f} → {frame.loss:.3f} ({change:+.3f} nats/token)"
    elif effects is not None and len(view.removed) == 1:
        (head,) = view.removed
        said += f": {effect_words(effects, head)}" if head in effects.values else ""
    return [said, *_next_tokens(whole, frame)]


def _next_tokens(before: Frame, after: Frame) -> list[str]:
    """Return the sentence on the likeliest token of two results; none if it says nothing."""
    tops = [frame.likely[0] for frame in (before, after) if frame.likely]
    if len(tops) < 2 or all(token.probability < ROUNDED for token in tops):
        return []
    return [f"Next {likely_words(tops[0])} → {likely_words(tops[1])}"]


def removed_names(view: View) -> str:
    """Return the names of the heads that are ablated, with commas between."""
    return ", ".join(map(view.name, sorted(view.removed)))


@lru_cache(maxsize=4)
def _of_heads(frame: Frame) -> str:
    return finding(frame.alone)


def _of_two(view: View, other: Frame) -> list[str]:
    """Return the finding on two sides: the head that moved most, the next token, both losses."""
    frames = view.frame, other
    said = [f"N{view.unlike[1:]}"] if view.unlike else []
    moved = moved_attention(*frames)
    if moved:
        most = max(moved, key=lambda head: moved[head])
        mean = sum(moved.values()) / len(moved)
        said.append(
            f"{view.name(most)} moved most: {share(moved[most])} of its attention "
            f"(mean of {len(moved)} heads {share(mean)})"
        )
    said += _next_tokens(*frames)
    losses = [frame.loss for frame in frames if frame.loss is not None]
    if len(losses) == 2:
        models = [model_name(frame.report.record.model) for frame in frames]
        between = f" ({' → '.join(models)})" if two_models(*frames) else ""
        said.append(f"Loss {losses[0]:.3f} → {losses[1]:.3f} nats/token{between}")
    return said or ["Two texts of equal length, compared by position"]


def likely_words(likely: Likely) -> str:
    """Return a token and its probability, such as ``“The” .07``."""
    chance = "<.005" if likely.probability < ROUNDED else share(likely.probability)
    (label,) = token_labels(Tokens((0,), (likely.text,), (False,)))
    return f"“{label}” {chance}"


def effect_words(effects: Effects, head: Head) -> str:
    """Return the effect of removing a head as a string, with its rank among all heads."""
    rank = effects.ranking().index(head) + 1
    unit = "nats/token" if effects.metric == "loss_delta" else "output MSE"
    return f"{effects.values[head]:+.3f} {unit}, {rank} of {len(effects.values)}"


MODES = {"raw": "", "no-sink": "sink left out", "value-weighted": "value-weighted"}
"""The words for each mode of the weights."""

_MOST_TOLD, _LEAST_TOLD = 7, 0.015
"""How many weights are named, and the smallest; the largest of all may be smaller."""


def head_line(view: View, theme: Theme, max_width: int, strong: bool) -> Line:
    """Return the line with the chosen head's name, label, score, uniform score and weight mode."""
    label = view.shown.report.scores(*view.head).label
    words = _states(view)
    of_prompt = "" if view.step is None else " (prompt)"
    words.append((scored(label.said, label.score) + of_prompt, False))
    words += [(said, "faint") for said in label_words(label)[1:]]
    source = label_source([label], "{source}, {date}")
    words += [(source, "faint")] if source else []
    name = Segment(f" {view.name(view.head)} ", theme.accent(ground=True) if strong else BOLD)
    return [name, Segment(" "), *one_line(words, theme, max_width - width(name.text) - 1)]


_SIDES = {"a": "first", "b": "second", "difference": "second less first"}
_REMOVED = {"b": "whole model", "difference": "change by ablation"}


def _states(view: View) -> list[tuple[str, Tone | bool]]:
    """Return how the shown weights differ from the raw weights of the first side, as remarks."""
    words: list[tuple[str, Tone | bool]] = []
    if view.other is not None:
        by_position = view.side == "difference" and not same_tokens(view.frame, view.other)
        words.append((_SIDES[view.side] + (", by position" if by_position else ""), "strong"))
    elif view.side in _REMOVED and view.removed:
        words.append((_REMOVED[view.side], "strong"))
    if view.dark:
        words.append(("ablated", "bad"))
    elif view.removed and view.side == "a" and view.other is None:
        words.append((f"without {removed_names(view)}", "bad"))
    return [*words, (MODES[view.mode], "strong")] if MODES[view.mode] else words


def score_line(view: View, theme: Theme, max_width: int) -> Line:
    """Return the line with the head's pattern scores, and the effect of its removal if known."""
    report = view.shown.report
    words: list[tuple[str, Tone | bool]] = []
    if view.effects is not None and view.head in view.effects.values:
        words.append((f"ablated: {effect_words(view.effects, view.head)}", True))
    elif view.scanned is not None:
        words.append((f"ablating every head {view.scanned:.0%}, Esc stops", "faint"))
    sink = report.sinks.get(view.head)
    if sink is not None:
        words.append((f"sink weight {share(sink)}", "faint"))
    known = {
        name: value for name, value in report.scores(*view.head).scores.items() if value is not None
    }
    if "entropy" in known:
        words.append((f"entropy {known['entropy']:.2f} nats", "faint"))
    if view.step is not None:
        words[:0] = [("of the prompt", "faint")]
    ranked = sorted(
        (name for name in known if MEASURES[name].family != "statistic" and name != "first"),
        key=lambda name: -known[name],
    )
    words += [(f"{said_name(name)} {share(known[name])}", "faint") for name in ranked]
    return one_line(words, theme, max_width)


def word_lines(view: View, theme: Theme, max_width: int, rows: int) -> list[Line]:
    """Return at most ``rows`` lines on the cursor's cell, row and column, and the next tokens."""
    if view.step is not None:
        return _written_lines(view, view.step, theme, max_width)[:rows]
    queries, keys = view.names(theme.encoding)
    weights = view.weights
    query, key = view.query, view.key
    arrow = " -> " if theme.ascii else " → "
    value = float(weights[query, key])
    signed = view.limit > 0
    number = "not yet" if np.isnan(value) else f"{value:+.3f}" if signed else f"{value:.3f}"
    if view.record.causal and key > query:
        number = "later, hidden"
    cell = [
        Segment(f"{queries[query]}{arrow}{keys[key]}", theme.accent()),
        Segment(f"  {number}", BOLD),
        Segment(f"  {MODES[view.mode]}", DIM),
    ]
    if regions := view.record.keys.regions:
        cell += _regions(view, regions, theme, max_width - Segment.get_line_length(cell))
    lead = max(width(f"from {queries[query]}"), width(f"to {keys[key]}"), width("next token")) + 2
    lead = min(lead, max_width // 2)
    ranked = partial(_ranked, lead=lead, theme=theme, max_width=max_width, signed=signed)
    lines = [
        cell,
        ranked(f"from {queries[query]}", weights=weights[query], names=keys),
        ranked(f"to {keys[key]}", weights=weights[:, key], names=queries),
    ]
    if likely := view.shown.likely:
        words = [(likely_words(each), False) for each in likely]
        lines.append([_lead("next token", lead, theme), *one_line(words, theme, max_width - lead)])
    return lines[:rows]


def _regions(view: View, regions: Sequence[str], theme: Theme, max_width: int) -> Line:
    """Return the line with the cursor key's region, and the query's weight on each region."""
    query = view.query
    seen = slice(query + 1) if view.record.causal else slice(len(regions))
    row, of_keys = np.nan_to_num(view.weights[query][seen]), np.asarray(regions[seen])
    words: list[tuple[str, Tone | bool]] = [(f"in {regions[view.key]}", "faint")]
    to = "" if view.limit else "to each (uniform): "
    for name in dict.fromkeys(regions[seen]):
        there = of_keys == name
        even = "" if view.limit else f" ({share(float(there.mean()))})"
        given = f"{name} {_weight(float(row[there].sum()), view.limit > 0)}{even}"
        words.append((to + given, False))
        to = ""
    return one_line(words, theme, max_width)


def _written_lines(view: View, step: Step, theme: Theme, max_width: int) -> list[Line]:
    """Return the last lines of the text, coloured by weight, and the token that the model chose."""
    queries, keys = view.names(theme.encoding)
    row, tokens = view.weights[step.query], view.record.keys
    shown = Map("", row[None, :], tokens, tokens)
    lines = rows_of(pieces_of(shown, theme, max_width - 2), max_width - 2)
    drawn: list[Line] = []
    for pieces in lines[-2:] if theme.colour else lines[-1:]:
        drawn.append(pieces_line(pieces, shown, theme))
        if pieces[-1].place == len(tokens) - 1:
            drawn[-1][-1] = Segment(pieces[-1].label, BOLD)
        if not theme.colour:
            drawn.append([Segment(marks_line(pieces, shown, theme))])
    lead = width("next token") + 2
    chosen = Likely(step.text, step.id, step.probability)
    words: list[tuple[str, Tone | bool]] = [(likely_words(chosen), True)]
    words += [(likely_words(each), False) for each in step.likely if each.id != step.id]
    return [
        *drawn,
        _ranked(f"from {queries[step.query]}", lead, row, keys, theme, max_width),
        [_lead("output", lead, theme), *one_line(words, theme, max_width - lead)],
    ]


def _lead(text: str, lead: int, theme: Theme) -> Segment:
    return Segment(fit(theme.spell(text), lead - 1, theme.ellipsis).ljust(lead), DIM)


def _ranked(
    title: str,
    lead: int,
    weights: Floats,
    names: Sequence[str],
    theme: Theme,
    max_width: int,
    signed: bool = False,
) -> Line:
    """Return the line with the tokens of the largest weights of a row or a column."""
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
    """Return the lines with the effects of removing single heads, the most important first."""
    effects, name = view.effects, view.name
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
        if line and line[0].text.strip() == name(view.head):
            lines[place] = [Segment(line[0].text, theme.accent()), *line[1:]]
    return lines
