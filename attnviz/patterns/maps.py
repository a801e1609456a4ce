"""The pattern itself: the map of a head over a text on which its label can be seen."""

from __future__ import annotations

from rich.segment import Segment

from attnviz.draw.axes import Axes
from attnviz.draw.blocks import BOLD, DIM, Block, Line, text_line
from attnviz.draw.heatmap import heatmap
from attnviz.draw.labels import token_labels
from attnviz.draw.maps import small_map
from attnviz.draw.theme import Theme
from attnviz.patterns.records import Example, PatternReport, PatternScores

__all__ = ["MAP_COLUMNS", "full_map", "small_example"]

MAP_COLUMNS = 16
_MAP_LINES = 7


def _size(example: Example) -> str:
    queries, keys = example.weights.shape
    same = example.keys is example.tokens
    return f"{queries} tokens" if same else f"{queries} by {keys} tokens"


def small_example(report: PatternReport, entry: PatternScores, theme: Theme) -> Block:
    """A head's small map between its name and the length of the text; empty without an example."""
    example = entry.example
    if example is None:
        return Block((), 0)
    causal = report.causal and example.keys is example.tokens
    drawn = small_map(example.weights, _MAP_LINES, MAP_COLUMNS, causal, theme)
    name = [Segment(report.name(entry.layer, entry.head), BOLD)]
    below = text_line((_size(example), DIM))
    return Block((name, *drawn.lines, below), MAP_COLUMNS)


def full_map(
    report: PatternReport, entry: PatternScores, title: list[Line], theme: Theme, room: int
) -> Block:
    """The same with tokens on both axes; empty without an example."""
    example = entry.example
    if example is None:
        return Block((), 0)
    axes = Axes(
        token_labels(example.tokens, theme.encoding),
        token_labels(example.keys, theme.encoding),
        report.causal and example.keys is example.tokens,
    )
    return heatmap(example.weights, axes, theme, title, room)
