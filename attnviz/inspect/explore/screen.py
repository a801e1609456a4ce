"""What people read in explore: the words, and the grid of heads, a row for each layer.

In every function, ``theme`` has the colours and characters; ``max_width`` counts characters, and
``rows`` lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Block, Line
from attnviz.draw.coloured_text import marks_line, pieces_line, pieces_of, rows_of
from attnviz.draw.document import Map
from attnviz.draw.grid import APART, GridCell, GridPart, GridPicture, draw_small_maps, names_width
from attnviz.draw.labels import at_blanks, fit, token_labels, visible, width
from attnviz.draw.maps import signed_tint, small_map, weight_steps
from attnviz.draw.numbers import NumberScale
from attnviz.draw.palette import STEPS, Tint
from attnviz.draw.prose import cut_at_word, one_line
from attnviz.draw.provenance import label_source, label_words, named, shape_words, share, size_words
from attnviz.draw.signed import ranked_table
from attnviz.draw.terminal import part_block
from attnviz.draw.theme import Theme, Tone
from attnviz.engine.generation import Step
from attnviz.engine.head_run import Head
from attnviz.engine.likely import Likely
from attnviz.engine.scan.run import Effects
from attnviz.inspect.explore.session import Frame, model_name, same_tokens, two_models
from attnviz.inspect.explore.view import View
from attnviz.inspect.heads.layout import label_grid
from attnviz.inspect.heads.report import compare_heads
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
    frame, whole, effects = view.frame, view.whole, view.effects
    if view.removed:
        change = ""
        if frame.loss is not None and whole.loss is not None:
            change = f": loss {whole.loss:.3f} → {frame.loss:.3f} "
            change += f"({frame.loss - whole.loss:+.3f} nats/token)"
        elif effects is not None and len(view.removed) == 1:
            (head,) = view.removed
            change = f": {effect_words(effects, head)}" if head in effects.values else ""
        return [f"Without {removed_names(view)}{change}", *_next_tokens(whole, frame)]
    if view.other is not None:
        return _of_two(view, view.other)
    return _of_heads(view.shown).removesuffix(".").split(". ")


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
    sentences = [f"N{view.unlike[1:]}"] if view.unlike else []
    if moved := moved_attention(*frames):
        most = max(moved, key=lambda head: moved[head])
        mean = sum(moved.values()) / len(moved)
        sentences.append(
            f"{view.name(most)} moved most: {share(moved[most])} of its attention "
            f"(mean of {len(moved)} heads {share(mean)})"
        )
    sentences += _next_tokens(*frames)
    losses = [frame.loss for frame in frames if frame.loss is not None]
    if len(losses) == 2:
        models = [model_name(frame.report.record.model) for frame in frames]
        between = f" ({' → '.join(models)})" if two_models(*frames) else ""
        sentences.append(f"Loss {losses[0]:.3f} → {losses[1]:.3f} nats/token{between}")
    return sentences or ["Two texts of equal length, compared by position"]


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
    """Return the line with the chosen head's name, label, score, uniform score and weight mode.

    Before the label stands how the shown weights differ from the raw ones of the first side.
    """
    label, words = view.shown.report.scores(*view.head).label, list[tuple[str, Tone | bool]]()
    if view.other is not None:
        by_position = view.side == "difference" and not same_tokens(view.frame, view.other)
        words.append((_SIDES[view.side] + (", by position" if by_position else ""), "strong"))
    elif view.side in _REMOVED and view.removed:
        words.append((_REMOVED[view.side], "strong"))
    if view.dark:
        words.append(("ablated", "bad"))
    elif view.removed and view.side == "a" and view.other is None:
        words.append((f"without {removed_names(view)}", "bad"))
    words += [(MODES[view.mode], "strong")] if MODES[view.mode] else []
    of_prompt = "" if view.step is None else " (prompt)"
    words.append((scored(label.said, label.score) + of_prompt, False))
    source = label_source([label], "{source}, {date}")
    words += [(word, "faint") for word in (*label_words(label)[1:], source) if word]
    name = Segment(f" {view.name(view.head)} ", theme.accent(ground=True) if strong else BOLD)
    return [name, Segment(" "), *one_line(words, theme, max_width - width(name.text) - 1)]


_SIDES = {"a": "first", "b": "second", "difference": "second less first"}
_REMOVED = {"b": "whole model", "difference": "change by ablation"}


def score_line(view: View, theme: Theme, max_width: int) -> Line:
    """Return the line with the head's pattern scores, and the effect of its removal if known."""
    report = view.shown.report
    words: list[tuple[str, Tone | bool]] = []
    if view.step is not None:
        words.append(("of the prompt", "faint"))
    if view.effects is not None and view.head in view.effects.values:
        words.append((f"ablated: {effect_words(view.effects, view.head)}", True))
    elif view.scanned is not None:
        words.append((f"ablating every head {view.scanned:.0%}, Esc stops", "faint"))
    if (sink := report.sinks.get(view.head)) is not None:
        words.append((f"sink weight {share(sink)}", "faint"))
    scores = report.scores(*view.head).scores.items()
    known = {name: score for name, score in scores if score is not None}
    if "entropy" in known:
        words.append((f"entropy {known['entropy']:.2f} nats", "faint"))
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
    (queries, keys), weights = view.names(theme.encoding), view.weights
    query, key, signed = view.query, view.key, view.limit > 0
    weight = float(weights[query, key])
    number = "not yet" if np.isnan(weight) else f"{weight:+.3f}" if signed else f"{weight:.3f}"
    if view.record.causal and key > query:
        number = "later, hidden"
    arrow = " -> " if theme.ascii else " → "
    cell = [
        Segment(f"{queries[query]}{arrow}{keys[key]}", theme.accent()),
        Segment(f"  {number}", BOLD),
        Segment(f"  {MODES[view.mode]}", DIM),
    ]
    if regions := view.record.keys.regions:
        cell += _regions(view, regions, theme, max_width - Segment.get_line_length(cell))
    titles = f"from {queries[query]}", f"to {keys[key]}"
    lead = min(max(map(width, (*titles, "next token"))) + 2, max_width // 2)
    ranked = partial(_ranked, lead=lead, theme=theme, max_width=max_width, signed=signed)
    lines = [
        cell,
        ranked(titles[0], weights=weights[query], names=keys),
        ranked(titles[1], weights=weights[:, key], names=queries),
    ]
    if likely := view.shown.likely:
        words = [(likely_words(token), False) for token in likely]
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
    row, tokens = view.weights[step.place], view.record.keys
    shown = Map("", row[None, :], tokens, tokens)
    lines = rows_of(pieces_of(shown, theme, max_width - 2), max_width - 2)
    drawn: list[Line] = []
    for pieces in lines[-2:] if theme.colour else lines[-1:]:
        drawn.append(pieces_line(pieces, shown, theme))
        if pieces[-1].first == len(tokens) - 1:
            drawn[-1][-1] = Segment(pieces[-1].label, BOLD)
        if not theme.colour:
            drawn.append([Segment(marks_line(pieces, shown, theme))])
    lead, chosen = width("next token") + 2, Likely(step.text, step.id, step.probability)
    others = (token for token in step.likely if token.id != step.id)
    words = [(likely_words(token), token is chosen) for token in (chosen, *others)]
    return [
        *drawn,
        _ranked(f"from {queries[step.place]}", lead, row, keys, theme, max_width),
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
        (f"{names[at]} {_weight(float(weights[at]), signed)}", not rank)
        for rank, at in enumerate(order)
        if sizes[at] >= (_LEAST_TOLD if rank else ROUNDED)
    ]
    shown = one_line(words or [("nothing", "faint")], theme, max_width - lead)
    return [_lead(title, lead, theme), *shown]


def _weight(value: float, signed: bool) -> str:
    return f"{value:+.2f}" if signed else share(value)


def effect_lines(view: View, theme: Theme, max_width: int, rows: int) -> list[Line]:
    """Return the lines with the effects of removing single heads, the most important first."""
    effects, name = view.effects, view.name
    if effects is None:
        return []
    scale, heads = NumberScale.over(effects.values.values()), effects.ranking()[:rows]
    values = [effects.values[head] for head in heads]
    by_loss = effects.metric == "loss_delta"
    title = "loss without it" if by_loss else "change without it"
    unit = "nats/token" if by_loss else "output MSE"
    texts = [("", list(map(scale.text, values)))]
    table = ranked_table(title, list(map(name, heads)), values, scale, texts)
    table = table._replace(title=[(title, True), (unit + scale.times, False)])
    lines = list(part_block(table, theme, max_width).lines[:rows])
    for at, line in enumerate(lines):
        if line and line[0].text.strip() == name(view.head):
            lines[at] = [Segment(line[0].text, theme.accent()), *line[1:]]
    return lines


_NAMED, _LEAST_SIDE = 11, 5  # the fewest columns and queries of a small map
_LEAST_NUMBER = 4  # columns, such as +.05

_FAINT = "1c2027 68707c"
"""The ends of the grey scale for heads without a label, darker for a lower score."""


class Heads(NamedTuple):
    """The grid of heads as it is drawn, the layer of each row and the head of each column."""

    part: GridPart
    layers: Sequence[int]
    numbers: Sequence[int]

    def head_at(self, picture: GridPicture, column: int, line: int) -> Head | None:
        """Return the head that is drawn at a position of the screen; None if there is none.

        Where two heads share one character, it is the one that is not chosen yet.
        """
        cell = picture.cell_at(column, line)
        if cell is None:
            return None
        row, number = cell
        if picture.shared == 2 and cell == self.part.cursor and row + 1 < len(self.layers):
            row += 1
        return self.layers[row], self.numbers[number]

    def thumbnail(self, frame: Frame, theme: Theme, lines: int, columns: int) -> Thumbnail | None:
        """Return the size of small maps of all heads; None if they do not fit or are too small."""
        record = frame.report.record
        queries, keys = len(record.queries), len(record.keys)
        size = Thumbnail((queries + 1) // 2, max(keys, _NAMED))
        fits = (size.lines + 1) * len(self.layers) <= lines and self.wide(size) <= columns
        return size if fits and theme.half_blocks and queries >= _LEAST_SIDE else None

    def wide(self, size: Thumbnail) -> int:
        """Return the width in characters of a grid of small maps of this size."""
        return names_width(self.part.rows) + (size.columns + APART) * len(self.numbers)

    def small_maps(self, frame: Frame, theme: Theme, size: Thumbnail, focused: bool) -> GridPicture:
        """Return a grid of small maps, each under the name and the cell of its head."""
        cells = {
            (self.layers.index(layer), self.numbers.index(head)): drawn
            for (layer, head), drawn in _small_maps(frame, theme, size).items()
        }
        return draw_small_maps(self.part, cells, size, theme, focused)


class Thumbnail(NamedTuple):
    """The size of a small map of one head, without the line of its name.

    lines: each shows two queries. columns: its width in characters: one for each key, or more for
        the name.
    """

    lines: int
    columns: int


@lru_cache(maxsize=2)
def _small_maps(frame: Frame, theme: Theme, size: Thumbnail) -> Mapping[Head, Block]:
    record = frame.report.record
    return {
        (layer, head): small_map(weights, *size, record.causal, theme)
        for layer, head, weights in record
    }


def heads_of(view: View) -> Heads:
    """Return the grid of heads for a screen state, with the facts that its cells show.

    A cell shows the first of these that is available: the token that a generated token attended
    to, how much attention differs between the two runs, the effect of a removal, the label.
    """
    if view.step is not None:
        return _grid(view, _sources(view, view.step))
    if view.side == "difference" and view.against is not None:
        moved = moved_attention(view.frame, view.against)
        if moved:
            steps = weight_steps(np.array([*moved.values()]))
            cells = {
                head: GridCell((share(value), ""), Tint(int(step)), value)
                for (head, value), step in zip(moved.items(), steps, strict=True)
            }
            return _grid(view, cells)
    if view.by_effect and view.effects is not None:
        return _grid(view, _effects(view.effects))
    return labelled(view)


def labelled(view: View) -> Heads:
    """Return the grid of each head's label and score."""
    return _grid(view, _labels(view.shown))


def _grid(view: View, cells: Mapping[Head, GridCell]) -> Heads:
    heads, base = view.shown.heads, view.shown.report.index_base
    layers, numbers = (sorted(set(axis)) for axis in zip(*heads, strict=True))

    def cell(head: Head) -> tuple[int, int]:
        return layers.index(head[0]), numbers.index(head[1])

    part = GridPart(
        rows=[f"L{layer + base}" for layer in layers],
        columns=[f"H{number + base}" for number in numbers],
        cells={cell(head): drawn for head, drawn in cells.items()},
        cursor=cell(view.head),
        crossed={cell(head) for head in view.removed},
    )
    return Heads(part, layers, numbers)


@lru_cache(maxsize=4)
def _labels(frame: Frame) -> Mapping[Head, GridCell]:
    grid, cells = label_grid(frame.report), {}
    layers, numbers = (sorted(set(axis)) for axis in zip(*frame.heads, strict=True))
    for entry in frame.report.heads:
        drawn = grid.cells[layers.index(entry.layer), numbers.index(entry.head)]
        label = entry.label
        letter = label.letter if label.is_finding else label.short[:1]
        texts = f"{label.short} {drawn.text}".strip(), label.short, letter
        score = 0.0 if math.isnan(label.score) else label.score
        faint = Tint(round(score * (STEPS - 1)), _FAINT)
        cells[entry.place] = GridCell(texts, drawn.tint, drawn.strength, faint)
    return cells


def _sources(view: View, step: Step) -> dict[Head, GridCell]:
    """Return for each head the token with its largest weight in a step, sinks excluded."""
    labels, cells = token_labels(view.record.keys), {}
    for layer, rows in step.rows.items():
        for head, row in enumerate(rows):
            left = view.without_sink(row)
            key = int(left.argmax())
            weight, name = float(left[key]), fit(labels[key], min(width(labels[key]), 8))
            tint = Tint(int(weight_steps(np.array(weight)))) if weight >= 0.05 else None
            cells[layer, head] = GridCell((f"{name} {share(weight)}", name, ""), tint, weight)
    return cells


@lru_cache(maxsize=4)
def moved_attention(frame: Frame, other: Frame) -> Mapping[Head, float]:
    """Return for each head the share of attention, 0 to 1, that goes to other keys on another side.

    Empty if the tokens of the two sides differ.
    """
    return compare_heads([frame.report, other.report]).moved[1] or {}


def _effects(effects: Effects) -> dict[Head, GridCell]:
    scale = NumberScale(max(map(abs, effects.values.values()), default=0.0) or 1.0)
    cells = {}
    for head, value in effects.values.items():
        rooms = (scale.room, _LEAST_NUMBER)
        texts = [(scale.fitted(value, room) or "").rjust(room) for room in rooms]
        root = float(np.sign(value) * np.sqrt(abs(value) / scale.limit))
        cells[head] = GridCell((*texts, ""), signed_tint(value, scale.limit), root)
    return cells
