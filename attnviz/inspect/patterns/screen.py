"""The document of ``attnviz patterns``: the grid, the best of each label, one label watched."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted, whole_percent
from attnviz.draw.palette import STEPS, shades
from attnviz.draw.provenance import LONGEST_FINDING, model_words, spoken_date
from attnviz.inspect.patterns.probes import ON_TEXT
from attnviz.inspect.patterns.report import PatternReport, PatternScores, Probe
from attnviz.measures.one_text import FEWEST_EVENTS
from attnviz.measures.registry import MEASURES, STATISTICS, View, label_named, said_name
from attnviz.records import SINKS, UNKNOWN_NOTE, Source

_LEAD = 8
_LISTED, _RANKED = 4, 24


def document(report: PatternReport) -> doc.Document:
    """Return the document: labels and the best heads of each, or a ranking by one label."""
    model, watch, top = report.model.name, report.watch, report.top
    notes = [doc.Note(note) for note in (*report.model.notes, *report.notes)]
    groups = [doc.Group(_about(report)), doc.Group(notes)]
    title = f"What the heads of {model} do"
    if not report.heads:
        return doc.Document(f"patterns of {model}", title, groups, finding="No text was measured.")
    if watch is None:
        best = [_best_heads(report, name, top or _LISTED) for name in found_labels(report)]
        groups += [doc.Group([label_grid(report)]), doc.Group(best, beside=doc.Beside(86, gap=4))]
    else:
        groups += [doc.Group([part]) for part in _watched(report, watch, top or _RANKED)]
    groups.append(doc.Group([doc.Say(text) for text in gaps(report, watch)]))
    return doc.Document(
        f"patterns of {model}",
        title + (f": {label_named(watch).said}" if watch is not None else ""),
        groups,
        explanation(report, [watch] if watch else report.labels),
        doc.next_steps(_hints(report)),
        heading=[(model, True), *((words, False) for words in _sizes(report))],
        quoted=report.text,
        finding=finding(report, watch),
        first=partial(_first, report),
    )


def _hints(report: PatternReport) -> Iterator[str]:
    labels = [name for name in report.labels if report.labelled(name)]
    if report.watch is None and labels:
        known = "induction" if "induction" in labels else labels[0]
        yield f"--watch {shlex.quote(label_named(known).said)}: rank all heads"
    elif report.watch in labels:
        strongest = report.head_name(report.labelled(report.watch)[0].place)
        words = ["attnviz", "ablate", "--head", strongest]
        words += [] if report.model.name == "tiny" else ["--model", report.model.name]
        words += [] if report.kind in ("self", "encoder") else ["--kind", report.kind]
        words += ["--index-base", str(report.index_base)] if report.index_base else []
        yield f"{shlex.join(words)}: does it matter?"
    yield "--explain"


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
    "card": " of the model card that this text can score",
    "patterns": " of {date}, attnviz patterns, that this text can score",
    "text": " on this text",
    "none": "",
}
_PROBES = {
    "natural text": "English",
    "random repeats": "random tokens",
    "random copies": "random tokens",
    "annotated sentences": "annotated sentences",
    "text": "",
}


def _about(report: PatternReport) -> list[doc.Part]:
    """Return the facts that a reader needs to repeat the run: model, probes, weight transform."""
    words: list[tuple[str, bool]] = model_words(report.model)
    words += [] if report.kind == "self" else [(f"{report.kind} attention", False)]
    seed = report.model.seed
    words += [] if seed is None else [(f"seed {seed} of the weights", False)]
    texts = {"text": report.text or None, "target": report.target}
    return [
        doc.Facts(words),
        *(doc.Quote(name, text, _LEAD) for name, text in texts.items() if text is not None),
        *(doc.Facts([(words, False)], name, _LEAD) for name, words in _provenance(report)),
    ]


def _provenance(report: PatternReport) -> Iterator[tuple[str, str]]:
    """Yield facts (name, words) on the texts, their source, the weight transform and the labels."""
    for at, probe in enumerate(report.probes):
        yield "" if at else "over", _probe_words(probe)
    if report.source:
        yield "from", report.source
    yield "view", _VIEWS[report.view]
    if report.labels_from != "none":
        date = spoken_date(report.labels_date)
        yield "labels", _LABELS_FROM[report.labels_from].format(date=date)
    if (control := report.control) is not None:
        labelled = {label_named(name).said: count for name, count in control.labelled.items()}
        counts = [f"{name} {count}" for name, count in labelled.items() if count]
        yield (
            "control",
            f"the same architecture with random weights, seed {control.seed}; its heads that would "
            f"get a label: {', '.join(counts) or 'none'}",
        )


def _probe_words(probe: Probe) -> str:
    size = f"{probe.longest:,}"
    if probe.shortest < probe.longest:
        size = f"{probe.shortest:,} to {size}"
    parts = [f"{probe.name}: {counted(probe.texts, 'text')} of {size} tokens"]
    if probe.seeds:
        numbers = ", ".join(map(str, probe.seeds))
        parts.append(f"seed{'s' * (len(probe.seeds) != 1)} {numbers}")
    if probe.pairs:
        parts.append(counted(sum(probe.pairs.values()), "annotated pair"))
    if probe.skipped:
        parts.append(f"{counted(len(probe.skipped), 'text')} left out ({probe.skipped[0]})")
    return ", ".join(parts)


def _sizes(report: PatternReport) -> list[str]:
    """Return strings with the number of heads and the number of texts or tokens."""
    sizes = [counted(len(report.heads), "head")]
    sizes += [] if report.kind == "self" else [f"{report.kind} attention"]
    if report.text:
        return [*sizes, counted(report.probes[0].longest, "token")]
    kinds = dict.fromkeys(_PROBES.get(probe.name, probe.name) for probe in report.probes)
    return [*sizes, f"{counted(_texts(report), 'text')} ({', '.join(kinds)})"]


def _texts(report: PatternReport) -> int:
    return sum(probe.texts for probe in report.probes)


# The finding ---------------------------------------------------------------------------------

_TOLD = 5  # the most labels that the finding counts


def finding(report: PatternReport, watch: str | None) -> str:
    """Return the finding: how many heads have each label, or the watched one. watch: its name."""
    if watch is not None:
        return _watched_finding(report, watch)
    if report.model.weights == "random":
        return "Random weights: no head gets a label, whatever its scores."
    total, labels = counted(len(report.heads), "head"), found_labels(report)
    counts = {name: len(report.labelled(name)) for name in report.labels}
    if not labels:
        why = "no score is clearly above chance"
        if report.text and report.probes[0].longest <= FEWEST_EVENTS:
            why = f"it takes at least {FEWEST_EVENTS} places that show a pattern"
        if any(UNKNOWN_NOTE in note for note in report.notes):
            why = "more than a tenth of the tokens are unknown to the tokenizer"
        return f"None of {total} has a label: {why}."
    named = [name for name in labels if name not in SINKS]
    corpus = report.record is not None  # in which little may be repeated
    lack = "; no induction head" if counts.get("induction") == 0 and not corpus else ""
    resting = sum(counts[name] for name in labels if name in SINKS)
    labelled = sum(counts[name] for name in named)
    more = f"{resting}{' more' * bool(labelled)} {'is a' if resting == 1 else 'are'}"
    over = "these texts" if _texts(report) > 1 else "this text"
    also = f"; {more} sink head{'s' * (resting > 1)} on {over}" if resting else ""
    have = "has" if labelled == 1 else "have"
    source = _FINDING_FROM[report.labels_from].format(date=spoken_date(report.labels_date))
    begin = f"{labelled} of {total} {have} a label{source}"
    for most in (_TOLD, 2, 1):
        words = [f"{counts[name]} {label_named(name).said}" for name in named[:most]]
        others = sum(counts[name] for name in named[most:])
        words += [f"{others} {'others' if others > 1 else 'other'}"] if others else []
        sentence = f"{begin}{': ' if words else ''}{', '.join(words)}{also}{lack}."
        if len(sentence) <= LONGEST_FINDING:
            break
    return sentence


def _watched_finding(report: PatternReport, watch: str) -> str:
    label, ranked = label_named(watch).said, report.ranked(watch)
    if not ranked:
        return f"{label[0].upper()}{label[1:]} was not measured: {_reason(report, watch)}."
    best, labelled, size = ranked[0], len(report.labelled(watch)), behind(ranked[0], watch)
    if watch in report.untestable:
        explained = whole_percent(report.untestable[watch])
        label = f"{label[0].upper()}{label[1:]}"
        return f"{label} cannot be tested: a fixed offset explains {explained} of {size}."
    ends = interval(best, watch)
    support = [f"chance {score(best.base_rate.get(watch))}", *[f"95% CI {ends}"] * bool(ends), size]
    return (
        f"{labelled} of {counted(len(report.heads), 'head')} {'has' if labelled == 1 else 'have'} "
        f"the label {label}; best {report.head_name(best.place)} "
        f"{score(best.scores.get(watch))} ({', '.join(support)})."
    )


def _reason(report: PatternReport, name: str) -> str:
    other = "a text without annotations" if report.text else "this attention"
    return report.not_measured.get(name, f"{other} has no such score")


def gaps(report: PatternReport, watch: str | None = None, *, brief: bool = False) -> list[str]:
    """Return sentences on labels that cannot be tested or have no score, with the reasons."""
    if watch is not None:
        reason = f"{label_named(watch).said} ({_reason(report, watch)})"
        return [] if report.ranked(watch) else [f"not measured: {reason}"]
    rates = {label_named(name).said: rate for name, rate in report.untestable.items()}
    if brief:
        names = ", ".join(rates)
        return [f"cannot be tested: {names} (a fixed offset scores just as high)"] if rates else []
    sentences = []
    if rates:
        explained = ", ".join(f"{whole_percent(rate)} on {name}" for name, rate in rates.items())
        sentences.append(
            "cannot be tested: with so few, or such regular, pairs even a perfect head cannot be "
            f"told apart from a fixed offset, which already scores {explained}"
        )
    reasons: dict[str, list[str]] = {}
    for name, reason in report.not_measured.items():
        reasons.setdefault(reason, []).append(label_named(name).said)
    return sentences + [f"not measured: {', '.join(some)} ({why})" for why, some in reasons.items()]


def explanation(report: PatternReport, names: Sequence[str]) -> doc.Explanation:
    """Return the glossary: on which texts scores were measured, and what labels mean."""
    labels = dict.fromkeys(name for name in (*found_labels(report), *names) if name in names)
    terms = [
        doc.Meaning((label.short, label.said), f"{label.meaning}.")
        for label in map(label_named, labels)
    ]
    if report.text:
        size = counted(report.probes[0].longest, "token")
        return doc.Explanation("patterns", f"scores are of this text alone, {size}.", terms)
    parts = [counted(_texts(report), "text")]
    pairs = sum(sum(probe.pairs.values()) for probe in report.probes)
    parts += [counted(pairs, "annotated pair")] if pairs else []
    seeds = dict.fromkeys(str(seed) for probe in report.probes for seed in probe.seeds)
    parts += [f"random tokens of seeds {', '.join(seeds)}"] if seeds else []
    if report.control is not None:
        parts.append(f"a control with random weights of seed {report.control.seed}")
    measured = f"measured over {', '.join(parts)}. A label says where a head attends, not that it "
    return doc.Explanation("patterns", f"{measured}matters.", terms)


_CELL, _NAMES = 9, 3
"""The columns of a cell of the grid with its score, and of the names of the layers."""

_LEAST_TABLE = 70
_AROUND = 5  # the lines around the rows of a grid and of a table below it


def _first(report: PatternReport, max_width: int, lines: int) -> list[doc.Group]:
    """Return the overview and the best head of each label, or all heads by the watched label."""
    if (watch := report.watch) is not None and not report.ranked(watch):
        return []
    grid = label_grid(report) if watch is None else score_grid(report, watch)
    title: doc.Words = [("labels" if watch is None else "scores", True), (doc.SHADE, False)]
    grid = grid._replace(title=title, key=(), scale=None)
    table = leaders_table(report) if watch is None else _ranked(report, watch, _RANKED)
    sentences = [doc.Say(text) for text in gaps(report, watch, brief=True)]
    if not table.rows:
        return [doc.Group([grid]), doc.Group(sentences, yields=1)]
    rows = doc.Group([table, *sentences])
    if max_width >= _NAMES + _CELL * len(grid.columns) + _LEAST_TABLE:
        return [doc.Group([rows, grid], beside=doc.Beside(_LEAST_TABLE, yields=True))]
    if len(grid.rows) + LEAST_ROWS + len(sentences) + _AROUND > lines:
        return [rows]
    return [doc.Group([grid]), rows]


def _best_heads(report: PatternReport, name: str, top: int) -> doc.Table:
    """Return a table of the best heads of a label, with pattern scores and base rates."""
    heads, label = report.labelled(name), label_named(name)
    title = [(label.said, True), (counted(len(heads), "head"), False), (label.meaning, False)]
    rest = len(heads) - top
    table = score_table(report, name, heads[:top], everyone=False)
    return table._replace(title=title, more=f"and {rest} more" if rest > 0 else "")


def _watched(report: PatternReport, name: str, top: int) -> Iterator[doc.Part]:
    """Yield the grid of one score and the ranking of all heads; nothing if no head has it."""
    if not (ranked := report.ranked(name)):
        return
    yield score_grid(report, name)
    table = _ranked(report, name, top)
    shown, labelled = f"all {len(ranked)}", counted(len(report.labelled(name)), "head")
    if len(table.rows) < len(ranked):
        shown = f"the first {len(table.rows)} of {len(ranked)}"
    title = f"Ranking: {shown} heads; {labelled} labelled"
    yield table._replace(title=[(title, True)], least=0)


def _ranked(report: PatternReport, name: str, top: int) -> doc.Table:
    table = score_table(report, name, report.ranked(name)[:top], everyone=True)
    return table._replace(least=LEAST_ROWS)


NOT_MEASURED = "n/m"
"""Shown in place of a missing number."""

LEAST_ROWS = 4


def said_label(entry: PatternScores, absent: str = "–") -> str:
    """Return the head's label in words. absent: the text for a head without a label."""
    return absent if entry.label is None else label_named(entry.label).said


def score(value: float | None, form: str = ".3f") -> str:
    """Return a score as a string without the zero before its point, such as ``.982``.

    A zero has no sign: ``-0.000`` is ``.000``. form: ``+.3f`` for a difference, such as ``+.862``.
    """
    if value is None:
        return NOT_MEASURED
    text = f"{value:{form}}"
    if not any(digit in "123456789" for digit in text):
        text = text.lstrip("+-")
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text


def short(value: float | None) -> str:
    """Return a score in three characters, four if negative: ``.98``, ``1.0``, ``-.12``."""
    return "1.0" if value is not None and value >= 0.995 else score(value, ".2f")


def interval(entry: PatternScores, name: str) -> str:
    """Return a score's 95% confidence interval, such as ``.79–.90``; empty if it has none."""
    return "–".join(map(short, entry.intervals.get(name, ())))


def behind(entry: PatternScores, name: str) -> str:
    """Return the sample size of a head's score ``name`` as a string, such as ``81 pairs``."""
    if entry.events is not None and name == entry.label:
        return counted(entry.events, "place")
    relation = label_named(name).family == "relation"
    return counted(entry.measured.get(name, 0), "pair" if relation else "text")


# Grids and maps ------------------------------------------------------------------------------

_NONE = "·"
_TICKS = [(0.0, "0"), (0.25, ".25"), (0.5, ".50"), (0.75, ".75"), (1.0, "1")]


def label_tint(name: str, strength: float) -> doc.Tint:
    """Return a label's colour, from dark but visible at strength 0 to full at 1."""
    step = round(min(max(strength, 0.0), 1.0) * (STEPS - 1))
    return doc.Tint(step, shades(label_named(name).colour))


def label_grid(report: PatternReport) -> doc.HeadGrid:
    """Return the grid of heads with their labels, and the number of heads for each label."""
    counts = {name: len(report.labelled(name)) for name in report.labels}
    total, resting = len(report.heads), sum(counts.get(name, 0) for name in SINKS)
    labelled = sum(counts.values())
    title = f"What each head does: {labelled - resting} of {counted(total, 'head')} labelled"
    title += f", {counted(resting, 'more sink')}" if resting else ""
    key = [
        doc.Key(label_tint(name, 1.0), f"{label.said} in {counts[name]}", label.short)
        for name, label in zip(counts, map(label_named, counts), strict=True)
        if counts[name]
    ]
    without = f"no label{' or sink' * bool(resting)} in {total - labelled}"
    key.append(doc.Key(None, without, _NONE))
    absent = ", ".join(label_named(name).said for name in counts if not counts[name])
    key += [doc.Key(None, f"in no head: {absent}")] if absent else []

    def cell(entry: PatternScores) -> doc.Cell:
        if entry.label is None:
            return doc.Cell(0.0, letter=_NONE)
        strength = max(entry.strength.get(entry.label, 0.0), 0.0)  # None if the text cannot show it
        label, tint = label_named(entry.label), label_tint(entry.label, strength)
        return doc.Cell(strength, tint, short(entry.score), label.short, hue=label.colour)

    return _grid(report, cell, "previous", title=[(title, True)], key=key)


def score_grid(report: PatternReport, name: str) -> doc.HeadGrid:
    """Return the grid of heads with their score for the label ``name``, coloured by strength."""

    def cell(entry: PatternScores) -> doc.Cell:
        value, strength = entry.scores.get(name), max(entry.strength.get(name, 0.0), 0.0)
        tint = None if value is None else label_tint(name, strength)
        return doc.Cell(strength, tint, short(value))

    label = label_named(name)
    title: doc.Words = [(f"{label.said}: score of every head", True), (label.meaning, False)]
    return _grid(report, cell, name, title=title)


def _grid(
    report: PatternReport, cell: Callable[[PatternScores], doc.Cell], name: str, **fields: Any
) -> doc.HeadGrid:
    """Return a grid of the heads; their cells also get what is known of them."""
    cells = {}
    for entry in report.heads:
        tip = f"{report.head_name(entry.place)}: {said_label(entry, 'no label')}"
        for of, value in entry.scores.items():
            if value is not None:
                tip += f"\n{of} {score(value)}, chance {score(entry.base_rate.get(of))}"
        values, label = _values(entry), said_label(entry, "")
        cells[entry.place] = cell(entry)._replace(tip=tip, values=values, label=label)
    scale = doc.Scale(_TICKS, "strength", palette=shades(label_named(name).colour))
    return doc.head_grid(cells, report.index_base, scale=scale, **fields)


def _values(entry: PatternScores) -> dict[str, float]:
    """Return the score of a head's label, and all its scores, by their names in words."""
    values = {"score": entry.score}
    for name, value in entry.scores.items():
        own = name.removeprefix(ON_TEXT)
        values[said_name(own).replace("_", " ") + ", on text" * (own != name)] = value
    return {name: value for name, value in values.items() if value is not None}


# Tables --------------------------------------------------------------------------------------


def found_labels(report: PatternReport) -> list[str]:
    """Return the labels that heads have, those of most heads first, attention sinks last."""
    labels = [name for name in report.labels if report.labelled(name)]
    return sorted(labels, key=lambda name: (name in SINKS, -len(report.labelled(name))))


HeadColumn: TypeAlias = doc.ColumnOf[PatternScores]
Leaders: TypeAlias = doc.ColumnOf[tuple[PatternScores, ...]]
_BESIDE = {"alignment": {"monotone": "monotone"}, "induction": {"prefix_matching": "prefix match"}}
"""For a label, related scores and the titles of their columns."""

_STATISTICS = {name: said_name(name) for name in STATISTICS if name != "normalised_entropy"}


def leaders_table(report: PatternReport) -> doc.Table:
    """Return a table with a row for each label: its best head, score, chance and sample size."""
    heads = [report.labelled(name) for name in found_labels(report)]
    columns: list[Leaders] = [
        Leaders("", lambda labelled: said_label(labelled[0]), right=False),
        Leaders("best", lambda labelled: report.head_name(labelled[0].place), right=False),
        Leaders("score", lambda labelled: short(labelled[0].score)),
        Leaders("chance", lambda labelled: short(labelled[0].chance)),
        Leaders("95% CI", lambda labelled: interval(labelled[0], labelled[0].label or "")),
        Leaders("n", lambda labelled: behind(labelled[0], labelled[0].label or "")),
        Leaders("heads", lambda labelled: str(len(labelled))),
    ]
    if not any(entry.intervals for entry in report.heads):
        del columns[4]
    return doc.table(
        heads,
        *columns,
        row=lambda labelled: {
            "bar": (max(labelled[0].score or 0.0, 0.0), 1.0),
            "tint": label_tint(labelled[0].label or "", 1.0),
        },
        ranked=True,
        least=LEAST_ROWS,
    )


def score_table(
    report: PatternReport, name: str, heads: Sequence[PatternScores], everyone: bool
) -> doc.Table:
    """Return a table of one pattern score: a row for each head, with bar, base rate, statistics."""

    def margin(entry: PatternScores) -> str:
        value, base = entry.scores.get(name), entry.base_rate.get(name)
        return score(None if value is None or base is None else value - base, "+.3f")

    def agreement(entry: PatternScores) -> str:
        return NOT_MEASURED if entry.agreement is None else whole_percent(entry.agreement)

    def beside(other: str, entry: PatternScores) -> str:
        value = {**entry.scores, **entry.statistics}.get(other)
        if value is None or other not in STATISTICS or MEASURES[other].unit == "share":
            return score(value)
        return f"{value:.2f}" if abs(value) < 99.995 else f"{value:.1f}"  # nats or tokens

    known = [{**entry.scores, **entry.statistics} for entry in heads]
    columns: list[HeadColumn] = [
        HeadColumn("", lambda entry: report.head_name(entry.place), right=False),
        HeadColumn("score", lambda entry: score(entry.scores.get(name))),
        HeadColumn("chance", lambda entry: score(entry.base_rate.get(name))),
    ]
    if any(name in entry.intervals for entry in heads):
        columns.append(HeadColumn("95% CI", lambda entry: interval(entry, name)))
    columns.append(HeadColumn("n", lambda entry: behind(entry, name)))
    if report.control is not None:
        columns.append(HeadColumn("random", lambda entry: score(entry.control.get(name))))
    if everyone:
        columns.append(HeadColumn("label", said_label, right=False))
    elif any(entry.agreement is not None for entry in heads):  # a single text gives none
        columns.append(HeadColumn("agreement", agreement))
    columns.append(HeadColumn("above chance", margin))
    columns += [
        HeadColumn(title, partial(beside, other))
        for other, title in (_BESIDE.get(name, {}) | _STATISTICS).items()
        if any(numbers.get(other) is not None for numbers in known)
    ]
    return doc.table(
        heads,
        *columns,
        row=lambda entry: {
            "bar": (max(entry.scores.get(name) or 0.0, 0.0), 1.0),
            "tint": label_tint(name, 1.0),
        },
        ranked=True,
    )
