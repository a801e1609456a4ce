"""Which patterns emerged: of each number of heads the best head, coloured by its score."""

from __future__ import annotations

import numpy as np
from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Block, Line
from attnviz.draw.labels import fit, width
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import share
from attnviz.draw.scale import weight_steps
from attnviz.draw.theme import Theme
from attnviz.sweep.numbers import heads_name
from attnviz.sweep.records import PatternScore, SweepReport

__all__ = ["patterns_found"]

_CELL = 12
_GAP = 1
_EVEN = 6
_LONGEST, _SHORTEST = 24, 6


def patterns_found(report: SweepReport, theme: Theme, room: int) -> Block:
    """A row a pattern, a column a number of heads; as many columns as there is room for."""
    first = report.of(report.measured[0])[0].patterns
    longest = min(max(width(pattern.words) for pattern in first), _LONGEST)
    named = max(min(longest, room - _EVEN - _GAP - _CELL), _SHORTEST)
    shown = report.measured[: max((room - named - _EVEN) // (_CELL + _GAP), 1)]
    even = _EVEN if room >= named + _EVEN + _GAP + _CELL else 0
    head = " " * named + "even".rjust(even)[:even]
    head += "".join(" " * _GAP + heads_name(heads).center(_CELL) for heads in shown)
    lines: list[Line] = [[Segment(head.rstrip(), DIM)]]
    for pattern in first:
        line = [
            Segment(fit(pattern.words, named, theme.ellipsis), BOLD),
            Segment(share(pattern.even).rjust(even)[:even], DIM),
        ]
        for heads in shown:
            line += [Segment(" " * _GAP), _cell(report, heads, pattern, theme)]
        lines.append(line)
    left_out = len(report.measured) - len(shown)
    title = wrapped(_title(report, left_out), room, theme)
    return Block((*title, *lines), room)


def _cell(report: SweepReport, heads: int, pattern: PatternScore, theme: Theme) -> Segment:
    """The mean score of the best heads, and the name of the first seed's."""
    best = [model.pattern(pattern.name) for model in report.of(heads)]
    score = sum(one.score for one in best) / len(best)
    step = int(weight_steps(np.array(min(score, 1.0))))
    return theme.cells(step, _CELL, f"{share(score)} L{best[0].layer}H{best[0].head}")


def _title(report: SweepReport, left_out: int) -> list[tuple[str, bool]]:
    parts = [
        ("What the heads look at", True),
        ("share of its attention that the best head has there", False),
        ("even: attention spread evenly", False),
    ]
    if len(report.seeds) > 1:
        parts.append((f"mean over seeds, the head is seed {report.seeds[0]}'s", False))
    if left_out:
        parts.append((f"{left_out} more are in --json", False))
    return parts
