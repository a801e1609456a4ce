"""The whole answer of ``attnviz scaling``, put together from its views."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Block, flow, stack, trimmed
from attnviz.draw.labels import at_blanks, visible
from attnviz.draw.prose import paragraph, wrapped
from attnviz.draw.table import Column, table
from attnviz.draw.theme import Theme
from attnviz.scaling.case import case_block
from attnviz.scaling.numbers import percent, plain
from attnviz.scaling.provenance import bars_legend, scaling_provenance
from attnviz.scaling.records import ScalingCase, ScalingReport
from attnviz.scaling.seen import seen

__all__ = ["entropy_gain", "explanation", "overview", "scaling_screen"]

_TITLE = "What the scale changes (without → with); the bar is the entropy that it gives back"


def entropy_gain(case: ScalingCase) -> float:
    """The mean normalised entropy with the scale less that without it; in [−1, 1]."""
    name = "normalised_entropy"
    return case.scaled.measures[name].value - case.plain.measures[name].value


def overview(report: ScalingReport, theme: Theme, room: int) -> Block:
    """A row a case; the columns that the width has room for."""
    arrow = "->" if theme.ascii else "→"
    columns = [
        _column("entropy", "normalised_entropy", report, arrow),
        _column("variance", "score_variance", report, arrow),
        _column("Jacobian", "jacobian_norm", report, arrow),
        _column("largest", "largest_weight", report, arrow),
        _column("below 0.01", "queries_vanished", report, arrow),
    ]
    names = [report.name(case) for case in report.cases]
    gains = [max(entropy_gain(case), 0.0) for case in report.cases]
    title = _TITLE.replace("→", arrow)
    heads = [[Segment(line, BOLD)] for line in at_blanks(title, room, "", theme.ellipsis)]
    return Block((*heads, *table(names, gains, 1.0, columns, theme, room).lines), room)


def _column(title: str, measure: str, report: ScalingReport, arrow: str) -> Column:
    show = percent if measure == "queries_vanished" else plain
    cells = [
        f"{show(case.plain.measures[measure].value)} {arrow} "
        f"{show(case.scaled.measures[measure].value)}"
        for case in report.cases
    ]
    return Column(title, cells)


def explanation(report: ScalingReport) -> list[str]:
    """Paragraphs, each of which begins with a word and a colon."""
    last = report.cases[-1]
    norms = [side.measures["jacobian_norm"].value for side in (last.plain, last.scaled)]
    passed = norms[1] * last.scaled.scale
    paragraphs = [
        "How to read this: attention compares a query with every key by the sum of the products "
        "of their d_k entries (the score), and the softmax turns the scores of a query into "
        "weights that sum to one. Here the same scores are softened twice: bare, and times the "
        "scale.",
        "Variance: a sum of d_k independent products of variance 1 has variance d_k, so bare "
        "scores grow with the width of a head. Times 1/√d_k they have variance 1 at any width.",
        "Weights: the softmax is exponential. Scores that lie 20 apart give weights that differ "
        "by e to the 20th, half a billion: one key gets nearly everything, the others nothing.",
        "Gradient: the Jacobian says how the weights answer to a small change of the scores that "
        "the softmax is given. Where one weight is nearly one it is nearly zero: the choice of "
        "the key can no longer be learnt from.",
        "Beware: on the way to the bare products the gradient is multiplied with the scale once "
        f"more: at {report.name(last)} the mean norm {plain(norms[1])} becomes {plain(passed)}, "
        f"beside {plain(norms[0])} without the scale. What the scale is against is not a "
        "small mean, but queries that pass next to nothing: the share below 0.01.",
    ]
    if report.model is None:
        keys = report.keys
        paragraphs.append(
            f"Even attention: over {keys:,} keys every weight is {plain(1 / keys)}, the entropy 1 "
            f"and the norm {plain(math.sqrt(keys - 1) / keys)}."
        )
    else:
        paragraphs.append(
            "Model: its queries and keys were made with the scale in place, so without it this is "
            "not how it would have come out of training: it shows what the scale does to them now."
        )
    return paragraphs


_GAP = 3
_BESIDE = 78
"""Columns that a case needs to be beside another one."""

_LONGEST = 100
_MOST_IN_FULL = 4
_EXTREMES = "In full: where the scale gives back the most entropy, and where the least"


def scaling_screen(
    report: ScalingReport, theme: Theme, room: int, hints: Sequence[str] = (), explain: bool = False
) -> Block:
    """Everything that one run shows, in ``room`` columns.

    Of a model with many layers or heads only the two between which the scale's effect is most
    different are drawn in full.
    """
    parts = [scaling_provenance(report, theme, room)]
    notes = [paragraph(visible(note, theme.encoding), room, theme, DIM) for note in report.notes]
    parts.append(stack(notes, gap=0))
    if report.model is not None and len(report.cases) > 1:
        parts.append(overview(report, theme, room))
    drawn = _in_full(report)
    if len(drawn) < len(report.cases):
        parts.append(Block(tuple(wrapped([(_EXTREMES, False)], room, theme)), room))
    parts.append(_cases(report, drawn, theme, room))
    words = min(room, _LONGEST)
    parts.append(paragraph(bars_legend(report, theme), words, theme, DIM))
    parts.append(_paragraphs(seen(report), theme, words))
    if explain:
        parts.append(_paragraphs(explanation(report), theme, words))
    if hints:
        parts.append(Block(tuple(wrapped([(hint, False) for hint in hints], room, theme)), room))
    return trimmed(stack(part for part in parts if part.lines))


def _cases(report: ScalingReport, drawn: Sequence[ScalingCase], theme: Theme, room: int) -> Block:
    beside = 2 if room >= 2 * _BESIDE + _GAP else 1
    width = (room + _GAP) // beside - _GAP
    blocks = [case_block(report, case, theme, width) for case in drawn]
    return flow(blocks, room, _GAP)


def _in_full(report: ScalingReport) -> Sequence[ScalingCase]:
    """The cases that are drawn: all, or of many the two extremes."""
    cases = report.cases
    if report.model is None or len(cases) <= _MOST_IN_FULL:
        return cases
    ranked = sorted(cases, key=entropy_gain)
    return (ranked[-1], ranked[0])


def _paragraphs(texts: Sequence[str], theme: Theme, room: int) -> Block:
    return stack([paragraph(_safe(text, theme), room, theme) for text in texts], gap=0)


def _safe(text: str, theme: Theme) -> str:
    if theme.ascii:
        text = text.replace("×", "x").replace("√d_k", "sqrt(d_k)")
    return visible(text, theme.encoding)
