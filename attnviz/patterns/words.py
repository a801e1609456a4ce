"""What is said of scored heads: numbers as short texts, provenance, gaps, a reading for newcomers.

What was not measured says so, it is never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnviz.draw.provenance import counted
from attnviz.measures.registry import BASES, label_named
from attnviz.measures.rows import View
from attnviz.patterns.records import PatternReport, Probe

NOT_MEASURED = "n/m"
"""Stands where there is no number."""


# Numbers -------------------------------------------------------------------------------------


def _bare(text: str) -> str:
    """``-0.12`` as ``-.12``; ``-0.000`` as ``.000``."""
    if not any(digit in "123456789" for digit in text):
        text = text.lstrip("+-")
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text


def score(value: float | None) -> str:
    """A score, such as ``.982``."""
    return NOT_MEASURED if value is None else _bare(f"{value:.3f}")


def short(value: float | None) -> str:
    """A score in three columns, four below zero: ``.98``, ``1.0``, ``-.12``."""
    if value is None:
        return NOT_MEASURED
    return "1.0" if value >= 0.995 else _bare(f"{value:.2f}")


def signed(value: float | None) -> str:
    """A difference of scores, such as ``+.862``; without a sign where it rounds to nothing."""
    return NOT_MEASURED if value is None else _bare(f"{value:+.3f}")


def percent(value: float | None) -> str:
    """A share of texts, such as ``92%``."""
    return NOT_MEASURED if value is None else f"{value:.0%}"


def plain(value: float | None) -> str:
    """A number of nats or tokens, such as ``1.23`` or ``104.1``."""
    if value is None:
        return NOT_MEASURED
    return f"{value:.2f}" if abs(value) < 99.995 else f"{value:.1f}"


# Provenance ----------------------------------------------------------------------------------

_VIEWS: dict[View, str] = {
    "raw": "raw: the weights as they are",
    "without-first": "without first: the weight on the first token is left out, the rest of each "
    "row scaled to one",
    "norm-weighted": "norm-weighted: each weight times the norm of what it moves, each row scaled "
    "to one",
}


def provenance_words(report: PatternReport) -> Iterator[tuple[str, str]]:
    """What was scored, where it comes from, in which view, against what: (name, words)."""
    name = "over"
    for probe in report.probes:
        yield name, _probe_words(probe)
        name = ""
    if report.source:
        yield "from", report.source
    yield "view", _VIEWS[report.view]
    control = report.control
    if control is not None:
        labelled = [f"{name} {number}" for name, number in control.labelled.items() if number]
        yield (
            "control",
            f"the same architecture with random weights, seed {control.seed}; its heads that base "
            f"rates alone would label: {', '.join(labelled) or 'none'}",
        )


def _probe_words(probe: Probe) -> str:
    size = f"{probe.shortest:,} to {probe.longest:,}"
    if probe.shortest == probe.longest:
        size = f"{probe.longest:,}"
    parts = [f"{probe.name}: {counted(probe.texts, 'text')} of {size} tokens"]
    if probe.seeds:
        numbers = ", ".join(map(str, probe.seeds))
        parts.append(f"seed{'s' * (len(probe.seeds) != 1)} {numbers}")
    if probe.pairs:
        parts.append(counted(sum(probe.pairs.values()), "annotated pair"))
    if probe.skipped:
        parts.append(f"{counted(len(probe.skipped), 'text')} left out ({probe.skipped[0]})")
    return ", ".join(parts)


# Gaps ----------------------------------------------------------------------------------------


def gaps(report: PatternReport) -> list[str]:
    """Sentences on what has no number, and why."""
    reasons: dict[str, list[str]] = {}
    for name, reason in report.not_measured.items():
        reasons.setdefault(reason, []).append(name)
    return [f"not measured: {', '.join(names)}: {reason}" for reason, names in reasons.items()]


# A reading -----------------------------------------------------------------------------------

_HOW = (
    "How to read this: each cell of the grid is one attention head, rows are layers. Its letter is "
    "its label: what the head does most clearly; its colour or glyph says how strongly. The "
    "numbers go from 0 (never) to 1 (always).",
    "base: a label means something only against a base rate: what the score would be without "
    "the pattern. margin is the score minus its base rate, strength the share of what could "
    "be gained over it; a head whose best strength stays below the threshold gets no label.",
    "agree: the share of the texts (of random ones of the seeds, of annotated ones of ten "
    "equal parts) that show this label on their own.",
)
_CONTROL = (
    "random: the score of the same place in a model of this shape with random weights; what it "
    "does as well no training explains, so strength is counted from the highest such score of the "
    "layer."
)
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

_SINK = (
    "first or induction: a head that reaches both thresholds is called induction. It rests on the "
    "first token where nothing comes again, which is nearly everywhere."
)
_END = "A label says where a head looks, not that it matters: attnviz ablate measures that."


def reading(report: PatternReport, names: Sequence[str]) -> Iterator[str]:
    """How to read the grid and its numbers, then what each label means and who has it."""
    yield from _HOW
    if report.control is not None:
        yield _CONTROL
    families = {name: label_named(name).family for name in names}
    for words in dict.fromkeys(BASES[family] for family in families.values()):
        named = [name for name, family in families.items() if BASES[family] == words]
        yield f"base of {', '.join(named)}: {words}."
    if "relation" in families.values():
        yield f"pairs of words: {_DIRECTIONS[report.causal]}."
    for name in names:
        yield _about(report, name)
    yield from (_FURTHER[name] for name in names if name in _FURTHER)
    if {"first", "induction"} <= set(names):
        yield _SINK
    yield _END


def _about(report: PatternReport, name: str) -> str:
    """What a label means, from which strength it is given, and which head has it most."""
    threshold = report.thresholds.get(name)
    given = "" if threshold is None else f"; given from strength {threshold:.2f}"
    heads = report.labelled(name)
    where = "no head here"
    if heads:
        best = heads[0]
        where = f"here most of all {report.name(best.layer, best.head)}, {score(best.score)}"
    label = label_named(name)
    return f"{name} ({label.letter}): {label.meaning}{given}; {where}."
