"""What is said of a run in words: model, probes, view, control, and what has no number."""

from __future__ import annotations

from collections.abc import Iterator

from attnviz.draw.blocks import DIM, Block, Line, text_line
from attnviz.draw.labels import at_blanks, fit, visible, width
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import model_parts
from attnviz.draw.theme import Theme
from attnviz.measures.rows import View
from attnviz.patterns.records import PatternReport, Probe
from attnviz.patterns.view import PatternView

__all__ = ["VIEW_WORDS", "count", "pattern_doubts", "pattern_provenance", "provenance_words"]

_NAME = 8
VIEW_WORDS: dict[View, str] = {
    "raw": "raw: the weights as they are",
    "without-first": "without first: the weight on the first token is left out, the rest of each "
    "row scaled to one",
    "norm-weighted": "norm-weighted: each weight times the norm of what it moves, each row scaled "
    "to one",
}
"""What was done to the weights before they were scored."""


def count(number: int, noun: str) -> str:
    """Such as ``1 text`` or ``1,024 heads``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def pattern_provenance(report: PatternReport, view: PatternView, room: int, theme: Theme) -> Block:
    """Which model, over which probes, in which view: what a reader needs to repeat the run."""
    kind = [] if report.kind == "self" else [(f"{report.kind} attention", False)]
    weights_seed = report.model.seed
    seed = [] if weights_seed is None else [(f"seed {weights_seed} of the weights", False)]
    lines = wrapped([*model_parts(report.model, theme), *kind, *seed], room, theme)
    if view.text is not None:
        lines.append(_text_line("text", view.text, room, theme))
    if view.target is not None:
        lines.append(_text_line("target", view.target, room, theme))
    for name, words in provenance_words(report, view):
        lines += _named(name, visible(words, theme.encoding), room, theme)
    return Block(tuple(lines), room)


def _text_line(name: str, text: str, room: int, theme: Theme) -> Line:
    shown = visible(" ".join(text.split()), theme.encoding)
    cells = room - _NAME
    shown = fit(shown, cells, theme.ellipsis) if width(shown) > cells else shown
    return text_line((f"{name:<{_NAME}}", DIM), shown)


def provenance_words(report: PatternReport, view: PatternView) -> Iterator[tuple[str, str]]:
    """The same as (name, words), without model and text; safe neither for terminal nor page."""
    name = "over"
    for probe in report.probes:
        yield name, _probe_words(probe)
        name = ""
    if view.source:
        yield "from", view.source
    yield "view", VIEW_WORDS[report.view]
    if report.control is not None:
        labelled = [
            f"{name} {number}" for name, number in report.control.labelled.items() if number
        ]
        heads = ", ".join(labelled) or "none"
        yield (
            "control",
            f"the same architecture with random weights, seed {report.control.seed}; its heads "
            f"that base rates alone would label: {heads}",
        )


def _probe_words(probe: Probe) -> str:
    size = f"{probe.shortest:,} to {probe.longest:,}"
    if probe.shortest == probe.longest:
        size = f"{probe.longest:,}"
    parts = [f"{probe.name}: {count(probe.texts, 'text')} of {size} tokens"]
    if probe.seeds:
        numbers = ", ".join(map(str, probe.seeds))
        parts.append(f"seed{'s' * (len(probe.seeds) != 1)} {numbers}")
    if probe.pairs:
        parts.append(count(sum(probe.pairs.values()), "annotated pair"))
    if probe.skipped:
        parts.append(f"{count(len(probe.skipped), 'text')} left out ({probe.skipped[0]})")
    return ", ".join(parts)


def _named(name: str, words: str, room: int, theme: Theme) -> list[Line]:
    lines = at_blanks(words, room - _NAME, "", theme.ellipsis)
    return [
        text_line((f"{name if not place else '':<{_NAME}}", DIM), line)
        for place, line in enumerate(lines)
    ]


def pattern_doubts(report: PatternReport) -> list[str]:
    """Sentences on what has no number, and why."""
    reasons: dict[str, list[str]] = {}
    for name, reason in report.not_measured.items():
        reasons.setdefault(reason, []).append(name)
    return [f"not measured: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
