"""From a report to the cells of the grid: every head's label, or every head's one score."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.draw.blocks import DIM, Block, Line, flow, text_line
from attnviz.draw.labels import at_blanks, visible
from attnviz.draw.theme import Theme
from attnviz.measures.registry import label_named
from attnviz.patterns.colours import label_style
from attnviz.patterns.grid import GridCell
from attnviz.patterns.numbers import NOT_MEASURED, short
from attnviz.patterns.records import PatternReport, PatternScores

__all__ = ["NO_LABEL", "glyph_of", "label_cells", "label_legend", "score_cells", "score_legend"]

NO_LABEL = "-"
"""The sign of a head without a label."""

_GLYPHS = "░▒▓█"
_STEPS = (0.0, 0.25, 0.5, 0.75)
"""The strengths from which the glyphs stand."""

_WHOLE_SCALE = 24


def glyph_of(strength: float, theme: Theme) -> str:
    """A strength from 0 to 1 as one glyph; with ASCII only as the digit of its tenth."""
    if theme.ascii:
        return str(min(max(int(strength * 10), 0), 9))
    return _GLYPHS[max(sum(strength >= step for step in _STEPS) - 1, 0)]


def label_cells(report: PatternReport, theme: Theme) -> dict[tuple[int, int], GridCell]:
    """Every head's label, strength and score."""
    return {(entry.layer, entry.head): _labelled(entry, theme) for entry in report.heads}


def _labelled(entry: PatternScores, theme: Theme) -> GridCell:
    if entry.label is None:
        return GridCell(NO_LABEL, " ", "   ", DIM if theme.colour else None)
    strength = entry.strength.get(entry.label, 0.0)
    style = label_style(entry.label, strength) if theme.colour else None
    letter = label_named(entry.label).letter
    return GridCell(letter, glyph_of(strength, theme), short(entry.score), style)


def score_cells(report: PatternReport, name: str, theme: Theme) -> dict[tuple[int, int], GridCell]:
    """Every head's score of one label, coloured by its strength."""
    cells = {}
    for entry in report.heads:
        value = entry.scores.get(name)
        strength = entry.strength.get(name, 0.0)
        if value is None:
            cell = GridCell("", " ", NOT_MEASURED)
        else:
            style = label_style(name, strength) if theme.colour else None
            cell = GridCell("", glyph_of(strength, theme), short(value), style)
        cells[entry.layer, entry.head] = cell
    return cells


def label_legend(report: PatternReport, theme: Theme, room: int) -> Block:
    """Each label that some head has: its sign, its name, in how many; then what strength is."""
    counts = {name: len(report.labelled(name)) for name in report.labels}
    samples: list[Line] = []
    for name, count in counts.items():
        if count:
            samples.append(_sample(name, f"{name} in {count}", theme))
    bare = len(report.heads) - sum(counts.values())
    samples.append(text_line((NO_LABEL, DIM), f" no label in {bare}"))
    absent = [name for name, count in counts.items() if not count]
    if absent:
        words = visible(", ".join(absent), theme.encoding)
        samples += _words(f"in none: {words}", theme, room)
    return _flowed([*samples, *_strengths("previous", theme, room)], room)


def score_legend(name: str, theme: Theme, room: int) -> Block:
    """What colours or glyphs mean where the grid is of one score."""
    return _flowed(
        [_sample(name, visible(name, theme.encoding), theme), *_strengths(name, theme, room)], room
    )


def _flowed(samples: list[Line], room: int) -> Block:
    blocks = [Block((line,), Segment.get_line_length(line)) for line in samples]
    return flow(blocks, room, gap=2, between=0)


def _sample(name: str, words: str, theme: Theme) -> Line:
    letter = label_named(name).letter
    words = visible(words, theme.encoding)
    if theme.colour:
        return [Segment(f" {letter} ", label_style(name, 1.0)), Segment(f" {words}")]
    return text_line(letter, f" {words}")


def _words(text: str, theme: Theme, room: int) -> list[Line]:
    return [text_line((line, DIM)) for line in at_blanks(text, room, "", theme.ellipsis)]


def _strengths(name: str, theme: Theme, room: int) -> list[Line]:
    """How strength is shown: the share of what a score could gain over its base rate."""
    if theme.ascii and not theme.colour:
        return _words("strength: 0 to 9, tenths; left out beside a score", theme, room)
    title = Segment("strength ", DIM)
    if theme.colour:
        line = [Segment("0 ", DIM)]
        line += [Segment("  ", label_style(name, tenth / 4)) for tenth in range(5)]
        line.append(Segment(" 1", DIM))
        return [[title, *line]] if room >= _WHOLE_SCALE else [[title], line]
    words = [f"{glyph} from {step:.2f}" for glyph, step in zip(_GLYPHS, _STEPS, strict=True)]
    first, *others = [text_line((word, DIM)) for word in words]
    return [[title, *first], *others] if room >= _WHOLE_SCALE else [[title], first, *others]
