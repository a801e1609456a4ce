"""The document of ``attnviz patterns``: the grid, the best of each label, one label watched.

Its tables and grids are those of ``tables``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted, whole_percent
from attnviz.draw.provenance import LONGEST_FINDING, model_words, spoken_date
from attnviz.draw.regions import region_finding, region_group
from attnviz.inspect.patterns.report import PatternReport, PatternScores, Probe, score_rows
from attnviz.inspect.patterns.tables import (
    LEAST_ROWS,
    HeadColumn,
    behind,
    found_labels,
    head_table,
    interval,
    label_grid,
    leaders_table,
    name_of,
    said_label,
    score,
    score_grid,
    score_table,
    statistic_columns,
)
from attnviz.measures.registry import View, label_named
from attnviz.records import SINKS, UNKNOWN_NOTE, Source

_LEAD = 8
_LONGEST = 100
_LISTED, _RANKED, _MAPPED = 4, 24, 2
_MOST_ROWS = 4096
"""The most heads that a page lists with all their numbers."""

_SHOWN: doc.Words = [("What it looks like", True), ("a text on which the label shows", False)]


def document(report: PatternReport) -> doc.Document:
    """Return the document: labels and the best heads of each, or a ranking by one label."""
    model, watch, top = report.model.name, report.watch, report.top
    notes = [doc.Note(note) for note in (*report.model.notes, *report.notes)]
    groups = [doc.Group(_about(report)), doc.Group(notes)]
    title = f"What the heads of {model} do"
    if not report.heads:
        return doc.Document(f"patterns of {model}", title, groups, finding="No text was measured.")
    if report.regions is not None:
        groups.append(region_group(report.regions, report.head_name))
    if watch is None:
        leaders = found_labels(report)
        best = [_best_heads(report, name, top or _LISTED) for name in leaders]
        groups += [doc.Group([label_grid(report)]), doc.Group(best, beside=doc.Beside(86, gap=4))]
        mapped = [(name, report.labelled(name)[0]) for name in leaders]
    else:
        groups += [doc.Group([part]) for part in _watched(report, watch, top or _RANKED)]
        labelled = [entry for entry in report.labelled(watch) if entry.example]
        mapped = [(watch, entry) for entry in labelled[:_MAPPED]]
    maps = [each for name, entry in mapped for each in _maps(report, entry, name)]
    groups += [doc.Group([_statistics(report)])] if report.stats else []
    groups += [doc.Group([doc.Maps(maps, title=_SHOWN)])] if maps else []
    groups.append(doc.Group([doc.Say(text) for text in gaps(report, watch)]))
    groups.append(doc.Group([_every_number(report)], full=True))
    shares = report.regions if report.model.weights != "random" else None
    return doc.Document(
        f"patterns of {model}",
        title + (f": {label_named(watch).said}" if watch is not None else ""),
        groups,
        explanation(report, [watch] if watch else report.labels),
        doc.next_steps(_hints(report)),
        heading=[(model, True), *((words, False) for words in _sizes(report))],
        quoted=report.text,
        finding=region_finding(shares, report.head_name) if shares else finding(report, watch),
        first=partial(_first, report, watch, maps),
    )


def _hints(report: PatternReport) -> Iterator[str]:
    """Yield the options to try next on the command line."""
    labels = [name for name in report.labels if report.labelled(name)]
    if report.watch is None and labels:
        known = "induction" if "induction" in labels else labels[0]
        yield f"--watch {shlex.quote(label_named(known).said)} ranks all heads"
    elif report.watch in labels:
        name = name_of(report, report.labelled(report.watch)[0])
        command = shlex.join(["attnviz", "ablate", "--head", name, *_same(report)])
        yield f"{command}: does it matter?"
    yield "--explain"
    if not report.stats and report.watch is None:
        yield "--stats: entropy and distance of every head"


def _same(report: PatternReport) -> Iterator[str]:
    """Yield the options that make another command use this report's model, attention and text."""
    if report.model.name != "tiny":
        yield from ("--model", report.model.name)
    if report.kind not in ("self", "encoder"):
        yield from ("--kind", report.kind)
    if report.index_base:
        yield from ("--index-base", str(report.index_base))
    if report.file:
        yield from ("--file", report.file)
    if report.target is not None:
        yield from ("--target", _typed(report.target))
    if report.text and not report.file:
        yield _typed(report.text)


def _typed(text: str) -> str:
    """Return the text if a shell can take it in one short argument, else ``TEXT``."""
    short_one = text.isprintable() and len(text) <= _LONGEST and not text.startswith("-")
    return text if short_one else "TEXT"


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

    watch: the one label that is shown, or None. brief: True returns only those for a first screen.
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
_AROUND, _AROUND_MAP = 2, 4
"""The lines around the rows of a grid or table, and of a map."""

_MAP_COLUMNS = {True: 48, False: 150}
"""The columns of a causal map, with tokens on its diagonal, and of one with tokens above."""


def _first(
    report: PatternReport, watch: str | None, maps: Sequence[doc.Map], max_width: int, lines: int
) -> list[doc.Group]:
    """Return the overview and the best head of each label, or all heads by the watched label.

    Both stand next to each other if they fit; maps stand below if there are lines left.
    watch: that label, or None. maps: examples.
    """
    if (regions := report.regions) is not None:
        shares = region_group(regions, report.head_name, max_width, len(regions.queries))
        rest = lines - len(regions.queries) - 3
        below = _first(replace(report, regions=None), watch, maps, max_width, rest)
        return [shares, *(group._replace(yields=1) for group in below)]
    if watch is not None and not report.ranked(watch):
        return []
    grid = label_grid(report) if watch is None else score_grid(report, watch)
    title: doc.Words = [("labels" if watch is None else "scores", True), (doc.SHADE, False)]
    grid = grid._replace(title=title, key=(), scale=None)
    table = leaders_table(report) if watch is None else _ranked(report, watch, _RANKED)
    sentences = [doc.Say(text) for text in gaps(report, watch, brief=True)]
    if not table.rows:
        return [doc.Group([grid]), doc.Group(sentences, yields=1)]
    tall = len(grid.rows) + _AROUND + 1
    low = len(table.rows) + len(sentences) + _AROUND
    rows = doc.Group([table, *sentences])
    if max_width >= _NAMES + _CELL * len(grid.columns) + _LEAST_TABLE:
        groups = [doc.Group([rows, grid], beside=doc.Beside(_LEAST_TABLE, yields=True))]
        used = max(tall, low)
    elif tall + LEAST_ROWS + len(sentences) + _AROUND > lines:
        groups, used = [rows], low
    else:
        groups, used = [doc.Group([grid]), rows], tall + low
    across = max(max_width // _MAP_COLUMNS[all(each.causal for each in maps)], 1)
    high = max((len(each.queries) for each in maps), default=0) + _AROUND_MAP
    drawn = maps[: across * max((lines - used) // high, 0)]
    return [*groups, doc.Group([doc.Maps(drawn)])] if drawn else groups


# Tables and maps ----------------------------------------------------------------------------

_STATISTICS = "Statistics of every head; the bar is its normalised entropy (1 = uniform attention)"


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


def _statistics(report: PatternReport) -> doc.Table:
    """Return a table of each head's evenness, entropy, distance, confidence, sink weight.

    Evenness is the entropy as a share of that of uniform attention.
    """

    def evenness(entry: PatternScores) -> float | None:
        return entry.statistics.get("normalised_entropy")

    columns: list[HeadColumn] = [
        HeadColumn("of uniform", lambda entry: score(evenness(entry))),
        HeadColumn("label", said_label, right=False),
        HeadColumn("score", lambda entry: score(entry.score) if entry.label else ""),
        *statistic_columns(report.heads),
    ]
    table = head_table(report, report.heads, evenness, columns)
    return table._replace(title=[(_STATISTICS, True)])


def _every_number(report: PatternReport) -> doc.Table:
    """Return a table of all numbers of all heads; a dash means not measured."""
    heads = report.heads[:_MOST_ROWS]
    header, *rows = score_rows(report, heads)
    columns = [doc.Column("head", right=False), doc.Column("label", right=False)]
    columns += [doc.Column(str(name)) for name in header[3:]]
    drawn = []
    for entry, (_, _, label, *numbers) in zip(heads, rows, strict=True):
        cells = ["–" if number is None else f"{number:.4g}" for number in numbers]
        drawn.append(doc.Row([name_of(report, entry), str(label), *cells]))
    return doc.Table(columns, drawn, [("Every head", True)])


def _maps(report: PatternReport, entry: PatternScores, name: str) -> Iterator[doc.Map]:
    """Yield the map of a head over a text that shows its label ``name``, if it has one."""
    if (example := entry.example) is None:
        return
    value = entry.score if name == entry.label else entry.scores.get(name)
    head = name_of(report, entry)
    words = [(head, True), (f"{label_named(name).said} {score(value)}", False)]
    hides = report.causal and example.keys is example.tokens
    yield doc.Map(head, example.weights, example.tokens, example.keys, words, causal=hides)
