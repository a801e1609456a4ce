"""The screen of ``attnviz patterns``: the grid, the best of each label, one label watched."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Block, Line, flow, stack, trimmed
from attnviz.draw.labels import at_blanks, visible
from attnviz.draw.legend import legend
from attnviz.draw.prose import paragraph, wrapped
from attnviz.draw.table import Column, table
from attnviz.draw.theme import Theme
from attnviz.measures.registry import BASES, label_named
from attnviz.patterns.cells import label_cells, label_legend, score_cells, score_legend
from attnviz.patterns.grid import head_grid
from attnviz.patterns.maps import full_map
from attnviz.patterns.numbers import score
from attnviz.patterns.provenance import count, pattern_doubts, pattern_provenance
from attnviz.patterns.records import PatternReport
from attnviz.patterns.rows import head_rows, statistic_columns
from attnviz.patterns.specialists import label_title, specialists
from attnviz.patterns.view import PatternView

__all__ = ["explain_patterns", "patterns_screen", "statistics_table", "watched"]

_LONGEST = 100
_DIRECTIONS = {
    True: "the later word is asked where it looks, because no token sees the future",
    False: "the dependent (a subject, a pronoun and so on) is asked whether it looks at its head",
}
"""How annotated pairs are read, by whether attention is causal."""

_FURTHER = {
    "induction": "prefix: the same over random tokens that come several times, all copies counted "
    "(prefix matching, Olsson et al. 2022).",
    "alignment": "monotone: how steadily the place looked at moves on as the output is written, "
    "from -1 (backwards) to 1.",
}
"""Scores that stand beside a label's own."""


def explain_patterns(report: PatternReport, watch: str | None, theme: Theme, room: int) -> Block:
    """How to read the grid and its numbers, then what each label means and who has it."""
    mark = "brightness" if theme.colour else "the digit" if theme.ascii else "the glyph"
    paragraphs = [
        "How to read this: each cell of the grid is one attention head, rows are layers. Its "
        f"letter is its label: what the head does most clearly; {mark} says how strongly. The "
        "numbers go from 0 (never) to 1 (always).",
        "base: a label means something only against a base rate: what the score would be without "
        "the pattern. margin is the score minus its base rate, strength the share of what could "
        "be gained over it; a head whose best strength stays below the threshold gets no label.",
        "agree: the share of the texts (of random ones of the seeds, of annotated ones of ten "
        "equal parts) that show this label on their own.",
    ]
    if report.control is not None:
        paragraphs.append(
            "random: the score of the same place in a model of this shape with random weights; "
            "what it does as well no training explains, so strength is counted from the highest "
            "such score of the layer."
        )
    names = report.labels if watch is None else (watch,)
    families = dict.fromkeys(label_named(name).family for name in names)
    for words in dict.fromkeys(BASES[family] for family in families):
        named = [name for name in names if BASES[label_named(name).family] == words]
        paragraphs.append(f"base of {', '.join(named)}: {words}.")
    if any(label_named(name).family == "relation" for name in names):
        paragraphs.append(f"pairs of words: {_DIRECTIONS[report.causal]}.")
    paragraphs += [_about(report, name) for name in names]
    paragraphs += [_FURTHER[name] for name in names if name in _FURTHER]
    if {"first", "induction"} <= set(names):
        paragraphs.append(
            "first or induction: a head that reaches both thresholds is called induction. It rests "
            "on the first token where nothing comes again, which is nearly everywhere."
        )
    paragraphs.append(
        "A label says where a head looks, not that it matters: attnviz ablate measures that."
    )
    safe = [visible(text, theme.encoding) for text in paragraphs]
    return stack([paragraph(text, min(room, _LONGEST), theme) for text in safe], gap=0)


def _about(report: PatternReport, name: str) -> str:
    """What a label means, from which strength it is given, and which head has it most."""
    threshold = report.thresholds.get(name)
    given = "" if threshold is None else f"; given from strength {threshold:.2f}"
    heads = report.labelled(name)
    where = "no head here"
    if heads:
        best = heads[0]
        where = f"here most of all {report.name(best.layer, best.head)}, {score(best.score)}"
    return f"{name} ({label_named(name).letter}): {label_named(name).meaning}{given}; {where}."


_LISTED = 24
_MAP_GAP = 3
_LEAST_MAP = 58


def watched(report: PatternReport, name: str, top: int | None, theme: Theme, room: int) -> Block:
    """The grid of one score, the maps of its best heads, and the ranking of all heads."""
    title = Block(tuple(label_title(name, label_named(name).meaning, theme, room - 1)), room)
    ranked = report.ranked(name)
    if not ranked:
        reason = report.not_measured.get(name, "this attention has no such score")
        said = visible(f"not measured: {reason}", theme.encoding)
        return stack([title, paragraph(said, room, theme)], gap=0)
    grid = head_grid(score_cells(report, name, theme), report.index_base, theme, room)
    listed = ranked[: top or _LISTED]
    heading: Line = [Segment(_ranking_title(report, name, len(listed), len(ranked)), BOLD)]
    rows = head_rows(report, name, listed, theme, room, ranking=True)
    parts = [
        title,
        grid,
        score_legend(name, theme, room),
        Block((*_broken(heading, room, theme), *rows.lines), room),
        _maps(report, name, theme, room),
    ]
    return stack(part for part in parts if part.lines)


def _broken(line: Line, room: int, theme: Theme) -> list[Line]:
    text = "".join(segment.text for segment in line)
    return [[Segment(piece, BOLD)] for piece in at_blanks(text, room, "", theme.ellipsis)]


def _ranking_title(report: PatternReport, name: str, listed: int, ranked: int) -> str:
    labelled = len(report.labelled(name))
    shown = f"the first {listed} of {ranked}" if listed < ranked else f"all {ranked}"
    return f"Ranking: {shown} heads; {count(labelled, 'head')} labelled"


def _maps(report: PatternReport, name: str, theme: Theme, room: int) -> Block:
    """The best heads over a text on which the label can be seen, one or two side by side."""
    heads = [entry for entry in report.labelled(name) if entry.example is not None]
    across = 2 if len(heads) > 1 and room >= 2 * _LEAST_MAP + _MAP_GAP else 1
    width = (room + _MAP_GAP) // across - _MAP_GAP
    maps = []
    for entry in heads[:across]:
        parts = [
            (report.name(entry.layer, entry.head), True),
            (f"{visible(name, theme.encoding)} {score(entry.scores[name])}", False),
            (f"base {score(entry.base_rate.get(name))}", False),
        ]
        maps.append(full_map(report, entry, wrapped(parts, width, theme), theme, width))
    return flow(maps, room, _MAP_GAP)


_TITLE = (
    "Statistics of every head; the bar is how evenly it spreads its attention (entropy over that "
    "of even attention)"
)


def statistics_table(report: PatternReport, theme: Theme, room: int) -> Block:
    """A row a head: evenness, entropy (nats), distance (tokens), confidence, first share."""
    heads = report.heads
    evenness = [entry.statistics.get("normalised_entropy") for entry in heads]
    labels = [visible(entry.label or "-", theme.encoding) for entry in heads]
    columns = [
        Column("even", [score(value) for value in evenness]),
        Column("label", labels, left=True),
        Column("score", [score(entry.score) if entry.label else "" for entry in heads]),
        *statistic_columns(heads),
    ]
    names = [report.name(entry.layer, entry.head) for entry in heads]
    rows = table(names, [value or 0.0 for value in evenness], 1.0, columns, theme, room)
    title = [[Segment(line, BOLD)] for line in at_blanks(_TITLE, room, "", theme.ellipsis)]
    return Block((*title, *rows.lines), room)


_MAP_WORDS = "small maps: queries down, keys across, pooled where a text is longer"


def patterns_screen(report: PatternReport, view: PatternView, theme: Theme, room: int) -> Block:
    """Everything that one run shows, in ``room`` columns."""
    parts = [pattern_provenance(report, view, room, theme)]
    notes = [
        paragraph(visible(note, theme.encoding), room, theme, DIM)
        for note in (*report.model.notes, *report.notes)
    ]
    parts.append(stack(notes, gap=0))
    if view.watch is not None:
        parts.append(watched(report, view.watch, view.top, theme, room))
    else:
        parts += [_grid(report, theme, room), specialists(report, view.top, theme, room)]
    if view.stats:
        parts.append(statistics_table(report, theme, room))
    parts.append(_maps_legend(report, view, theme, room))
    said = pattern_doubts(report) if view.watch is None else []
    parts.append(
        stack([paragraph(visible(text, theme.encoding), room, theme) for text in said], gap=0)
    )
    if view.explain:
        parts.append(explain_patterns(report, view.watch, theme, room))
    if view.hints:
        safe = [(visible(hint, theme.encoding), False) for hint in view.hints]
        parts.append(Block(tuple(wrapped(safe, room, theme)), room))
    return trimmed(stack(part for part in parts if part.lines))


def _grid(report: PatternReport, theme: Theme, room: int) -> Block:
    """Every head's label, under how many have one."""
    labelled = sum(entry.label is not None for entry in report.heads)
    title = f"What each head does: {labelled} of {count(len(report.heads), 'head')} labelled"
    lines = [[Segment(line, BOLD)] for line in at_blanks(title, room, "", theme.ellipsis)]
    cells = head_grid(label_cells(report, theme), report.index_base, theme, room)
    whole = stack([Block(tuple(lines), room), cells], gap=0)
    return stack([whole, label_legend(report, theme, room)])


def _maps_legend(report: PatternReport, view: PatternView, theme: Theme, room: int) -> Block:
    """What the cells of the maps on the screen are."""
    names = report.labels if view.watch is None else (view.watch,)
    if not any(entry.example for name in names for entry in report.labelled(name)[:1]):
        return Block((), 0)
    lines = [] if view.watch is not None else wrapped([(_MAP_WORDS, False)], room, theme)
    return stack([Block(tuple(lines), room), legend(theme, room)], gap=0)
