"""Words about scored heads: short numbers, provenance, gaps, an explanation for newcomers.

A number that was not measured is shown as such, never as 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attnviz.draw.document import Explanation, Meaning
from attnviz.draw.numbers import counted, whole_percent
from attnviz.draw.provenance import LONGEST_FINDING, spoken_date
from attnviz.inspect.patterns.records import PatternReport, PatternScores, Probe
from attnviz.measures.registry import View, label_named
from attnviz.records import SINKS, UNKNOWN_NOTE, Source

NOT_MEASURED = "n/m"
"""Shown in place of a missing number."""


# Numbers -------------------------------------------------------------------------------------


def _bare(text: str) -> str:
    """Return a number without the zero before its point: ``-0.12`` as ``-.12``.

    A zero has no sign: ``-0.000`` is ``.000``.
    """
    if not any(digit in "123456789" for digit in text):
        text = text.lstrip("+-")
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text


def score(value: float | None) -> str:
    """Return a score as a string, such as ``.982``; a dash for None."""
    return NOT_MEASURED if value is None else _bare(f"{value:.3f}")


def short(value: float | None) -> str:
    """Return a score in three characters, four if negative: ``.98``, ``1.0``, ``-.12``."""
    if value is None:
        return NOT_MEASURED
    return "1.0" if value >= 0.995 else _bare(f"{value:.2f}")


def signed(value: float | None) -> str:
    """Return a difference of scores as a string, such as ``+.862``; no sign if it rounds to 0."""
    return NOT_MEASURED if value is None else _bare(f"{value:+.3f}")


def share_of_texts(value: float | None) -> str:
    """Return a share of texts as a string, such as ``92%``; a dash for None."""
    return NOT_MEASURED if value is None else whole_percent(value)


def interval(entry: PatternScores, name: str) -> str:
    """Return the 95% confidence interval of a head's score as a string, such as ``.79–.90``.

    name: of the score. Empty if it has none.
    """
    ends = entry.intervals.get(name)
    return "" if ends is None else "–".join(map(short, ends))


def behind(entry: PatternScores, name: str) -> str:
    """Return the sample size of a head's score ``name`` as a string, such as ``81 pairs``."""
    if entry.events is not None and name == entry.label:
        return counted(entry.events, "place")
    relation = label_named(name).family == "relation"
    return counted(entry.measured.get(name, 0), "pair" if relation else "text")


def plain(value: float | None) -> str:
    """Return a number of nats or tokens as a string, such as ``1.23`` or ``104.1``."""
    if value is None:
        return NOT_MEASURED
    return f"{value:.2f}" if abs(value) < 99.995 else f"{value:.1f}"


# Provenance ----------------------------------------------------------------------------------

_VIEWS: dict[View, str] = {
    "raw": "raw: the attention weights as they are",
    "without-first": "without sink: the weight on the first token is left out, the rest of each "
    "row renormalised",
    "norm-weighted": "norm-weighted: each weight times the norm of the value that it moves, rows "
    "renormalised",
}


_LABELS_FROM: dict[Source, str] = {
    "card": "from the model card, measured on the probes; the scores are of this text",
    "patterns": "of {date}, attnviz patterns, measured on the probes; the scores are of this text",
    "text": "from this text, where at least 8 places show them, clear of chance",
}


_FINDING_FROM: dict[Source, str] = {
    "card": " of the model card, scored on this text",
    "patterns": " of {date}, attnviz patterns, scored on this text",
    "text": " on this text",
    "none": "",
}


def provenance_words(report: PatternReport) -> Iterator[tuple[str, str]]:
    """Yield facts (name, words) on the texts, their source, the weight transform and the labels."""
    name = "over"
    for probe in report.probes:
        yield name, _probe_words(probe)
        name = ""
    if report.source:
        yield "from", report.source
    yield "view", _VIEWS[report.view]
    if report.labels_from != "none":
        date = spoken_date(report.labels_date)
        yield "labels", _LABELS_FROM[report.labels_from].format(date=date)
    control = report.control
    if control is not None:
        labelled = [
            f"{label_named(name).said} {number}"
            for name, number in control.labelled.items()
            if number
        ]
        yield (
            "control",
            f"the same architecture with random weights, seed {control.seed}; its heads that would "
            f"get a label: {', '.join(labelled) or 'none'}",
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


# The answer ----------------------------------------------------------------------------------

_TOLD = 5
"""The most labels that the answer in a sentence counts."""

_PROBES = {
    "natural text": "English",
    "random repeats": "random",
    "random copies": "random",
    "annotated sentences": "annotated",
    "text": "",
}


def size_words(report: PatternReport) -> list[str]:
    """Return strings with the number of heads and the number of texts or tokens."""
    found = [counted(len(report.heads), "head")]
    found += [] if report.kind == "self" else [f"{report.kind} attention"]
    if report.text:
        return [*found, counted(report.probes[0].longest, "token")]
    texts = sum(probe.texts for probe in report.probes)
    kinds = dict.fromkeys(_PROBES.get(probe.name, probe.name) for probe in report.probes)
    return [*found, f"{counted(texts, 'text')} ({', '.join(kinds)})"]


def finding(report: PatternReport, watch: str | None) -> str:
    """Return the finding: how many heads have each label, or the watched one. watch: its name."""
    if watch is not None:
        return _watched_finding(report, watch)
    if report.model.weights == "random":
        return "Random weights: no head gets a label, whatever its scores."
    total = len(report.heads)
    counts = {name: len(report.labelled(name)) for name in report.labels}
    found = found_labels(report)
    if not found:
        why = "no score is clearly above chance"
        if any(UNKNOWN_NOTE in note for note in report.notes):
            why = "more than a tenth of the tokens are unknown to the tokenizer"
        return f"None of {counted(total, 'head')} has a label: {why}."
    named = [name for name in found if name not in SINKS]
    corpus = report.record is not None  # in which little may be repeated
    lack = "; no induction head" if counts.get("induction") == 0 and not corpus else ""
    resting = sum(counts[name] for name in found if name in SINKS)
    sinks = f"attention sink{'s' * (resting > 1)}"
    over = "these texts" if sum(probe.texts for probe in report.probes) > 1 else "this text"
    labelled = sum(counts[name] for name in named)
    more = f"{resting}{' more' * bool(labelled)} {'is an' if resting == 1 else 'are'}"
    also = f"; {more} {sinks} on {over}" if resting else ""
    have = "has" if labelled == 1 else "have"
    source = _FINDING_FROM[report.labels_from].format(date=spoken_date(report.labels_date))
    begin = f"{labelled} of {counted(total, 'head')} {have} a label{source}"
    for most in (_TOLD, 2, 1):
        counted_words = [f"{counts[name]} {label_named(name).said}" for name in named[:most]]
        others = sum(counts[name] for name in named[most:])
        counted_words += [f"{others} {'others' if others > 1 else 'other'}"] if others else []
        listed = f": {', '.join(counted_words)}" if counted_words else ""
        said = f"{begin}{listed}{also}{lack}."
        if len(said) <= LONGEST_FINDING:
            break
    return said


def found_labels(report: PatternReport) -> list[str]:
    """Return the labels that heads have, those of most heads first, attention sinks last."""
    found = [name for name in report.labels if report.labelled(name)]
    return sorted(found, key=lambda name: (name in SINKS, -len(report.labelled(name))))


def _watched_finding(report: PatternReport, watch: str) -> str:
    said, ranked = label_named(watch).said, report.ranked(watch)
    if not ranked:
        return f"{said} was not measured: {_reason(report, watch)}."
    if watch in report.untestable:
        pairs = behind(ranked[0], watch)
        return (
            f"{said} cannot be tested: a fixed offset explains "
            f"{whole_percent(report.untestable[watch])} of {pairs}."
        )
    best, labelled = ranked[0], len(report.labelled(watch))
    ends = interval(best, watch)
    support = [f"chance {score(best.base_rate.get(watch))}"]
    support += [f"95% {ends}"] if ends else []
    support += [behind(best, watch)]
    return (
        f"{labelled} of {counted(len(report.heads), 'head')} {'has' if labelled == 1 else 'have'} "
        f"the label {said}; best {report.head_name((best.layer, best.head))} "
        f"{score(best.scores.get(watch))} ({', '.join(support)})."
    )


def _reason(report: PatternReport, name: str) -> str:
    return report.not_measured.get(name, "this attention has no such score")


# Gaps ----------------------------------------------------------------------------------------


def gaps(report: PatternReport, watch: str | None = None, *, brief: bool = False) -> list[str]:
    """Return sentences on labels that cannot be tested or have no score, with the reasons.

    watch: the one label that is shown, or None. brief: True returns only those for a first screen.
    """
    if watch is not None:
        if not report.ranked(watch):
            return [f"not measured: {label_named(watch).said} ({_reason(report, watch)})"]
        return []
    names = ", ".join(label_named(name).said for name in report.untestable)
    if brief:
        return [f"cannot be tested: {names} (a fixed offset explains them)"] if names else []
    found = [_untestable(report.untestable)] if names else []
    reasons: dict[str, list[str]] = {}
    for name, reason in report.not_measured.items():
        reasons.setdefault(reason, []).append(label_named(name).said)
    return found + [f"not measured: {', '.join(said)} ({why})" for why, said in reasons.items()]


def _untestable(rates: Mapping[str, float]) -> str:
    found = ", ".join(
        f"{label_named(name).said} {whole_percent(rate)}" for name, rate in rates.items()
    )
    return (
        "cannot be tested: on so few or so regular pairs even a perfect head is not clear of a "
        f"fixed offset, which explains {found}"
    )


# A reading -----------------------------------------------------------------------------------


def explanation(report: PatternReport, names: Sequence[str]) -> Explanation:
    """Return the glossary: on which texts scores were measured, and what labels mean.

    names: the labels on the screen; those that most heads have are explained first.
    """
    labels = [name for name in found_labels(report) if name in names]
    labels += [name for name in names if name not in labels]
    named = map(label_named, labels)
    terms = [Meaning((label.short, label.said), f"{label.meaning}.") for label in named]
    if report.text:
        size = counted(report.probes[0].longest, "token")
        return Explanation("patterns", f"scores are of this text alone, {size}.", terms)
    parts = [counted(sum(probe.texts for probe in report.probes), "text")]
    pairs = sum(sum(probe.pairs.values()) for probe in report.probes)
    parts += [counted(pairs, "annotated pair")] if pairs else []
    seeds = dict.fromkeys(str(seed) for probe in report.probes for seed in probe.seeds)
    parts += [f"random tokens of seeds {', '.join(seeds)}"] if seeds else []
    if report.control is not None:
        parts.append(f"a control with random weights of seed {report.control.seed}")
    measured = f"measured over {', '.join(parts)}. A label says where a head attends, not that it "
    return Explanation("patterns", f"{measured}matters.", terms)
