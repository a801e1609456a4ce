"""The document of ``attnviz patterns``: the grid, the best of each label, one label watched.

Its tables and grids are those of ``tables``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import partial

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted, whole_percent
from attnviz.draw.provenance import LONGEST_FINDING, model_words, spoken_date
from attnviz.inspect.patterns.report import PatternReport, Probe
from attnviz.inspect.patterns.tables import (
    LEAST_ROWS,
    behind,
    found_labels,
    interval,
    label_grid,
    leaders_table,
    name_of,
    score,
    score_grid,
    score_table,
)
from attnviz.measures.registry import View, label_named
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
    """Yield the options to try next on the command line."""
    labels = [name for name in report.labels if report.labelled(name)]
    if report.watch is None and labels:
        known = "induction" if "induction" in labels else labels[0]
        yield f"--watch {shlex.quote(label_named(known).said)} ranks all heads"
    elif report.watch in labels:
        words = ["attnviz", "ablate", "--head", name_of(report, report.labelled(report.watch)[0])]
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
    "card": " of the model card, scored on this text",
    "patterns": " of {date}, attnviz patterns, scored on this text",
    "text": " on this text",
    "none": "",
}
_PROBES = {
    "natural text": "English",
    "random repeats": "random",
    "random copies": "random",
    "annotated sentences": "annotated",
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
        counts = [f"{said} {count}" for said, count in labelled.items() if count]
        yield (
            "control",
            f"the same architecture with random weights, seed {control.seed}; its heads that would "
            f"get a label: {', '.join(counts) or 'none'}",
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

_TOLD = 5
"""The most labels that the finding counts."""


def finding(report: PatternReport, watch: str | None) -> str:
    """Return the finding: how many heads have each label, or the watched one. watch: its name."""
    if watch is not None:
        return _watched_finding(report, watch)
    if report.model.weights == "random":
        return "Random weights: no head gets a label, whatever its scores."
    total = len(report.heads)
    counts = {name: len(report.labelled(name)) for name in report.labels}
    labels = found_labels(report)
    if not labels:
        why = "no score is clearly above chance"
        if any(UNKNOWN_NOTE in note for note in report.notes):
            why = "more than a tenth of the tokens are unknown to the tokenizer"
        return f"None of {counted(total, 'head')} has a label: {why}."
    named = [name for name in labels if name not in SINKS]
    corpus = report.record is not None  # in which little may be repeated
    lack = "; no induction head" if counts.get("induction") == 0 and not corpus else ""
    resting = sum(counts[name] for name in labels if name in SINKS)
    labelled = sum(counts[name] for name in named)
    more = f"{resting}{' more' * bool(labelled)} {'is an' if resting == 1 else 'are'}"
    over = "these texts" if _texts(report) > 1 else "this text"
    also = f"; {more} attention sink{'s' * (resting > 1)} on {over}" if resting else ""
    have = "has" if labelled == 1 else "have"
    source = _FINDING_FROM[report.labels_from].format(date=spoken_date(report.labels_date))
    begin = f"{labelled} of {counted(total, 'head')} {have} a label{source}"
    for most in (_TOLD, 2, 1):
        words = [f"{counts[name]} {label_named(name).said}" for name in named[:most]]
        others = sum(counts[name] for name in named[most:])
        words += [f"{others} {'others' if others > 1 else 'other'}"] if others else []
        said = f"{begin}{': ' if words else ''}{', '.join(words)}{also}{lack}."
        if len(said) <= LONGEST_FINDING:
            break
    return said


def _watched_finding(report: PatternReport, watch: str) -> str:
    said, ranked = label_named(watch).said, report.ranked(watch)
    if not ranked:
        return f"{said} was not measured: {_reason(report, watch)}."
    if watch in report.untestable:
        return (
            f"{said} cannot be tested: a fixed offset explains "
            f"{whole_percent(report.untestable[watch])} of {behind(ranked[0], watch)}."
        )
    best, labelled = ranked[0], len(report.labelled(watch))
    ends = interval(best, watch)
    support = [f"chance {score(best.base_rate.get(watch))}"]
    support += [f"95% {ends}"] if ends else []
    support += [behind(best, watch)]
    return (
        f"{labelled} of {counted(len(report.heads), 'head')} {'has' if labelled == 1 else 'have'} "
        f"the label {said}; best {name_of(report, best)} "
        f"{score(best.scores.get(watch))} ({', '.join(support)})."
    )


def _reason(report: PatternReport, name: str) -> str:
    return report.not_measured.get(name, "this attention has no such score")


def gaps(report: PatternReport, watch: str | None = None, *, brief: bool = False) -> list[str]:
    """Return sentences on labels that cannot be tested or have no score, with the reasons.

    watch: the one label that is shown, or None. brief: True returns only the most important ones.
    """
    if watch is not None:
        if not report.ranked(watch):
            return [f"not measured: {label_named(watch).said} ({_reason(report, watch)})"]
        return []
    rates = {label_named(name).said: rate for name, rate in report.untestable.items()}
    if brief:
        names = ", ".join(rates)
        return [f"cannot be tested: {names} (a fixed offset explains them)"] if rates else []
    sentences = []
    if rates:
        explained = ", ".join(f"{said} {whole_percent(rate)}" for said, rate in rates.items())
        sentences.append(
            "cannot be tested: on so few or so regular pairs even a perfect head is not clear of a "
            f"fixed offset, which explains {explained}"
        )
    reasons: dict[str, list[str]] = {}
    for name, reason in report.not_measured.items():
        reasons.setdefault(reason, []).append(label_named(name).said)
    return sentences + [f"not measured: {', '.join(said)} ({why})" for why, said in reasons.items()]


def explanation(report: PatternReport, names: Sequence[str]) -> doc.Explanation:
    """Return the glossary: on which texts scores were measured, and what labels mean.

    names: the labels on the screen; those that most heads have are explained first.
    """
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


# The first screen ----------------------------------------------------------------------------

_CELL, _NAMES = 9, 3
"""The columns of a cell of the grid with its score, and of the names of the layers."""

_LEAST_TABLE = 70
_AROUND = 5
"""The lines around the rows of a grid and of a table below it."""


def _first(report: PatternReport, max_width: int, lines: int) -> list[doc.Group]:
    """Return the overview and the best head of each label, or all heads by the watched label.

    Both stand next to each other if they fit, else below each other, else the table stands alone.
    """
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


# Tables -------------------------------------------------------------------------------------


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
    listed, labelled = len(table.rows), len(report.labelled(name))
    shown = f"the first {listed} of {len(ranked)}" if listed < len(ranked) else f"all {len(ranked)}"
    title = f"Ranking: {shown} heads; {counted(labelled, 'head')} labelled"
    yield table._replace(title=[(title, True)], least=0)


def _ranked(report: PatternReport, name: str, top: int) -> doc.Table:
    table = score_table(report, name, report.ranked(name)[:top], everyone=True)
    return table._replace(least=LEAST_ROWS)
