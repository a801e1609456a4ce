"""The document of ``attnviz generate``: the text, what the heads did, and each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.labels import cut, cut_at_word, token_label, token_labels, token_name, word_label
from attnviz.draw.numbers import counted
from attnviz.draw.page.data import (
    UNLABELLED,
    Look,
    Page,
    PageCapture,
    PageHead,
    PageMeasure,
    PageStep,
    page_label,
)
from attnviz.draw.palette import STEPS, Tint, shades
from attnviz.draw.provenance import (
    LONGEST_FINDING,
    advised,
    fits_two_lines,
    known_text,
    label_source,
    model_words,
    named,
    notes_group,
    probability,
    share,
    spread_words,
)
from attnviz.draw.regions import region_heads, region_table
from attnviz.engine.head_run import Head
from attnviz.inspect.generate.report import GenerateReport, HeadActivity
from attnviz.inspect.generate.run import WrittenRun
from attnviz.measures.registry import label_named
from attnviz.records import SINKS, RegionShares, Tokens

_SOURCES = 3
_LIKELY = 5
_LONGEST_TOKEN, _SHORT_TOKEN = 14, 10
_LEAST_STEPS, _LEAST_BESIDE = 4, 72
_LEAST_WRITTEN = 20
_LEAST_MAP, _LEAST_WIDE, _BETWEEN = 9, 50, 13
"""The least lines and columns of a map, and the lines that other parts take."""

_GAP = 3
_CELL, _NUMBERED, _INDENT = 5, 9, 3
"""The columns of a grid cell with letters, of one with a number too, and of the layer names."""

_STEPS, _SOURCE = 46, 24
"""The columns of the table of the steps, and of each further source in it."""

_OTHERS = 12
"""The lines that a long text leaves to the heads and the steps."""

_LOOP = 6
"""The fewest tokens of a loop, all its rounds together."""

_FEWEST = 3
"""The fewest steps on which a head without a label from elsewhere is said to stand out."""

_ACTIVITY = "activity"
_ENDINGS = {
    "end": "end of text",
    "context": "context full",
    "interrupted": "interrupted",
    "failed": "the next step failed",
}


def document(report: GenerateReport) -> doc.Document:
    """Return the document of one generation."""
    run, info = report.run, report.run.model
    how = [(word, False) for word in _how(run)]
    about: list[doc.Part] = [
        doc.Facts([*model_words(info.of(run.kind)), *how]),
        doc.Quote("prompt", run.text),
        doc.Quote("written", run.text_written, 8),
    ]
    next_steps = [] if report.chosen else [f"--head {run.name(_another(report))}"]
    next_steps += ["--temperature 0.8"] * run.sampling.greedy + ["--save run.jsonl", "--explain"]
    measured = f"weights of the last token at each of {counted(len(run.steps), 'step')}."
    return doc.Document(
        f"a text that {info.name} wrote",
        f"Where heads of {info.name} looked while it wrote",
        [
            doc.Group(about),
            notes_group(info.notes, run.tokens),
            doc.Group([texts(run, report.head, whole=True)]),
            *([] if run.regions is None else [doc.Group([_regions(report, run.regions)])]),
            *([] if report.chosen else [doc.Group([_grid(report)])]),
            doc.Group([_steps(report)]),
            doc.Group([_maps(report)]),
        ],
        doc.Explanation("generate", f"measured on this prompt alone, the {measured}"),
        doc.next_steps(next_steps, tone="faint"),
        heading=[*named(info), *how],
        quoted="" if run.source is None else run.text,  # else the text itself shows it
        finding=_finding(report),
        first=advised(partial(_first, report), run.tokens),
        page=partial(_page, report),
    )


def _another(report: GenerateReport) -> Head:
    """Return a head to suggest next: the clearest one with another name than the shown one."""
    found, name = report.found, report.found[report.head].name
    others = [head for head in found if head != report.head] or [report.head]
    clear = [head for head in others if found[head].known and found[head].name != name]
    return max(clear or others, key=lambda head: np.nan_to_num(found[head].score))


def _first(report: GenerateReport, columns: int, lines: int) -> Sequence[doc.Group]:
    """Return the first screen: the text, then the heads and a map next to the table of steps."""
    run, grids = report.run, [] if report.chosen else [_grid(report)]
    written = [doc.Quote("written", run.text_written, 8)] if run.kind == "cross" else []
    top = [doc.Group([*written, texts(run, report.head, max(lines // 2, lines - _OTHERS))])]
    if run.regions is not None:
        top.append(doc.Group([_regions(report, run.regions, 1)]))
        lines -= 5
    room, heads = columns - _GAP - _STEPS, max((len(grid.columns) for grid in grids), default=0)
    wide = _INDENT + _NUMBERED * heads
    if wide > room:
        wide = _INDENT + _CELL * heads
        grids = [
            grid._replace(cells={at: cell._replace(text="") for at, cell in grid.cells.items()})
            for grid in grids
        ]
    if wide > room or columns < _LEAST_BESIDE:
        return [*top, doc.Group(grids), doc.Group([_steps(report, columns)], yields=1)]
    letters = sum(map(len, run.tokens.texts))
    rest = lines - 2 * (letters // columns) - sum(len(grid.rows) for grid in grids) - _BETWEEN
    maps = [_maps(report, 1, rest)] if rest >= _LEAST_MAP and room >= _LEAST_WIDE else []
    if not grids and not maps:
        return [*top, doc.Group([_steps(report, columns)], yields=len(top) - 1)]
    half = (columns - _GAP) // 2
    halved = half >= max(wide, _STEPS)
    left = half if halved else wide
    parts = [doc.Group([*grids, *maps], spaced=True)]
    parts.append(doc.Group([_steps(report, columns - _GAP - left)]))
    beside = doc.Beside(left, _GAP, 2, yields=not halved)
    return [*top, doc.Group(parts, beside=beside, yields=len(top) - 1)]


# Words ---------------------------------------------------------------------------------------


def _how(run: WrittenRun) -> list[str]:
    """Return strings on the sampling, the length, the ending and the ablated heads."""
    words, sampling = [] if run.kind == "self" else [f"{run.kind} attention"], run.sampling
    chosen = ["greedy"]
    if not sampling.greedy:
        chosen = [f"temperature {sampling.temperature:g}"]
        chosen += [] if sampling.top_k is None else [f"top-k {sampling.top_k}"]
        chosen += [] if sampling.top_p is None else [f"top-p {sampling.top_p:g}"]
        chosen += [f"seed {sampling.seed}"]
    words.append(", ".join(chosen))
    words += [f"{len(run.source or run.begun)} + {len(run.steps)} tokens"]
    words += [_ENDINGS[run.ending]] if run.ending in _ENDINGS else []
    if run.removed:
        few = ", ".join(map(run.name, run.removed[:_SOURCES]))
        more = len(run.removed) - _SOURCES
        words.append(f"without {few}" + (f" and {more} more" if more > 0 else ""))
    return words


def _finding(report: GenerateReport) -> str:
    """Return the finding: the generated text, then what the first shown head attends to."""
    run, activity = report.run, report.found[report.head]
    name = f"{run.name(report.head)}{_labelled(activity)}"
    of = f"{activity.steps} of " * (activity.steps < len(run.steps))
    over = f"over {of}{counted(len(run.steps), 'step')}"
    target, score = label_named(activity.name).target, share(activity.score)
    told = target and activity.steps >= min(_FEWEST, len(run.steps))
    lead = "" if report.chosen or activity.label or told else "No head stands out: "
    written = [step.id for step in run.steps]
    words = f"{lead}{name} scores {score} for {activity.said} here ({_base(activity)}) {over}."
    if math.isnan(activity.score):
        words = f"{name} has no numbers."
    elif loop := loop_of((*run.begun.ids, *written), len(written)):
        period, since = loop
        same = counted(period, "token") if period > 1 else "token"
        cycle = f"From token {since + 1} on it repeats the same {same}"
        words = f"{cycle}; {_copied(report, name)}."
    elif activity.name == "induction":
        words = f"{_copied(report, name)}."
    elif target:
        on = f"puts {score} of its attention on {target}"
        words = f"{lead}{name} {on} ({_base(activity)}) {over}."
    elif activity.name == "spread":
        how = f"{spread_words(activity.score)}, {score} ({_base(activity)})"
        words = f"{lead}{name} attends {how} {over}."
    elif activity.name == "peaked":
        given = f"{score} of its attention on a single token on average ({_base(activity)})"
        words = f"{lead}{name} puts {given} {over}."
    for room in range(LONGEST_FINDING - len(words) - 1, _LEAST_WRITTEN, -1):
        if fits_two_lines(f"{_written(run.text_written, room)} {words}"):
            return f"{_written(run.text_written, room)} {words}"
    return f"{_written(run.text_written, _LEAST_WRITTEN)} {words}"


def loop_of(ids: Sequence[int], written: int) -> tuple[int, int] | None:
    """Return the length in tokens of the loop in which a text ends, and the step that begins it.

    ids: of the whole text. written: how many of them are generated; only these count. None unless
    the same tokens stand there three times, or twice and then six tokens of them.
    """
    for period in range(1, written // 2):
        alike = 0
        while alike + period < written and ids[-1 - alike] == ids[-1 - alike - period]:
            alike += 1
        if alike >= min(2 * period, period + _LOOP) and alike + period >= _LOOP:
            return period, written - alike - period
    return None


def _copied(report: GenerateReport, name: str) -> str:
    """Return how many written tokens copy what the shown head attends to most, and the mean."""
    copies, steps = report.run.copies, counted(len(report.run.steps), "token")
    mean = f" (mean over heads: {sum(copies.values()) / len(copies):.0f})" * (len(copies) > 1)
    count = copies[report.head]
    return f"{count} of {steps} cop{'y' if count != 1 else 'ies'} what {name} attends to most{mean}"


def _written(text: str, max_width: int) -> str:
    """Return a sentence with the written text in quotes, in at most ``max_width`` columns."""
    words, lead = " ".join(text.split()), "The model writes "
    if not words:
        return "The model writes blanks alone." if text else "The model writes nothing."
    shown = cut_at_word(word_label([words]), max_width - len(lead) - 3)
    end = "" if shown.endswith((".", "…", "!", "?")) else "."
    if {'"', "“", "”"} & {*shown}:  # quotes within quotes are hard to read
        return f"{lead.rstrip()}: {shown}{end}"
    return f"{lead}“{shown}”{end}"


def _labelled(activity: HeadActivity) -> str:
    """Return the label of a head in brackets, such as `` (induction .87)``."""
    if activity.label is None:
        return ""
    source = label_source([activity.label], ", {source} {date}")
    return f" ({known_text(activity.label)}{source})"


def _over_steps(activity: HeadActivity) -> str:
    """Return a head's activity, such as ``over the steps: induction .43 (uniform .04)``."""
    if math.isnan(activity.score):
        return "over the steps: no numbers"
    return f"over the steps: {activity.said} {share(activity.score)} ({_base(activity)})"


def _base(activity: HeadActivity) -> str:
    return "1 = uniform" if activity.name == "spread" else f"uniform {share(activity.uniform)}"


# Parts ---------------------------------------------------------------------------------------


def texts(run: WrittenRun, head: Head, lines: int = 0, *, whole: bool = False) -> doc.Maps:
    """Return the prompt and the generated text, each token coloured by its largest weight.

    head: the (layer, head) of the weights. whole: whether both texts are shown as one. lines: the
    most lines on a terminal for all, 0 for no limit.
    """
    peaks, begun = run.peaks(head), len(run.begun)
    if run.kind == "cross":
        parts = [("text", peaks, run.keys)]
    else:
        peaks = np.append(peaks, np.nan)  # the last token, which no query saw
        behind = run.tokens.taken(range(begun, len(run.tokens)))
        parts = [("prompt", peaks[:begun], run.begun), ("written", peaks[begun:], behind)]
        parts = [("text", peaks, run.tokens)] if whole else parts
    asking = Tokens.bare((0,))
    maps = [doc.Map(name, values[None], asking, tokens) for name, values, tokens in parts]
    title = [(f"shade: largest weight from {run.name(head)} in any step", True)]
    of_text = max(lines - 1 - len(maps), 1) if lines else 0
    return doc.Maps(maps, title, texts=True, lines=of_text, scale=None)


def _regions(report: GenerateReport, shares: RegionShares, most: int = 0) -> doc.Table:
    """Return a table of the attention to each region during generation: all heads, and single ones.

    shares: the numbers. most: how many single heads, the shown ones first; 0 for all.
    """
    run = report.run
    named = region_heads(shares, run.name)
    shown = {run.name(head) for head in report.heads}
    rows = sorted(named.rows, key=lambda row: row.cells[0] not in shown)
    mean = doc.Row([f"mean of {len(shares.heads)}", *region_table(shares).rows[0].cells[2:]])
    title = [(f"attention of the {counted(len(run.steps), 'step')} to regions (uniform)", True)]
    return named._replace(rows=[mean, *rows[: most or len(rows)]], title=title, least=0)


def _grid(report: GenerateReport) -> doc.HeadGrid:
    """Return a grid of each head's activity; only heads whose label is a finding are coloured."""
    layers = sorted({layer for layer, _ in report.found})
    heads = 1 + max(head for _, head in report.found)
    base, cells = report.run.index_base, {}
    for (layer, head), activity in report.found.items():
        label, measure = activity.label, label_named(activity.name)
        name = report.run.name((layer, head))
        tip = f"{name}{_labelled(activity)} · {_over_steps(activity)}"
        cell = doc.Cell(0.0, None, "", measure.short, tip)
        if label is not None and activity.known and activity.name not in SINKS:
            tint = Tint(round(label.score * (STEPS - 1)), shades(measure.colour))
            cell = doc.Cell(label.score, tint, share(label.score), measure.short, tip)
        cells[layers.index(layer), head] = cell
    rows = [f"L{layer + base}" for layer in layers]
    return doc.HeadGrid(rows, [f"H{head + base}" for head in range(heads)], cells)


def _steps(report: GenerateReport, max_width: int = 0) -> doc.Table:
    """Return a table of generation steps: query, generated token, and its most attended keys.

    max_width: the width in characters of a first screen, which shows what fits; 0 for everything.
    """
    run, head = report.run, report.head
    keys, queries = token_labels(run.keys), token_labels(run.queries)
    most = min((max_width - _STEPS) // _SOURCE + 1, _SOURCES) if max_width else _SOURCES
    longest = _LONGEST_TOKEN if not max_width or most > 1 else _SHORT_TOKEN

    def attended(at: int) -> str:
        sources = run.sources(head, at, max(most, 1))
        words = [f"{cut(keys[key], longest)} {share(weight)}" for key, weight in sources]
        return " · ".join(words) or "–"

    steps, words = run.steps, partial(doc.ColumnOf, right=False)
    entropy = doc.ColumnOf[int]("entropy", lambda at: f"{steps[at].entropy:.2f}")
    return doc.table(
        range(len(steps)),
        words("query", lambda at: cut(queries[steps[at].place], longest)),
        words("wrote", lambda at: cut(token_label(steps[at].text), longest)),
        doc.ColumnOf("p", lambda at: probability(steps[at].probability)),
        *([entropy] if most > 1 else []),
        doc.ColumnOf("sink", lambda at: share(run.sink_weight(head, at))),
        words(f"{run.name(head)} attended to", attended),
        least=_LEAST_STEPS if max_width else 0,
    )


def _maps(report: GenerateReport, most: int | None = None, lines: int = 0) -> doc.Maps:
    """Return maps of the shown heads, with a row for each step and a column for each token.

    most: the number of heads, None for all. lines: the most lines of a map, 0 for no limit.
    """
    run = report.run
    looking = run.queries.taken(range(run.start, len(run.queries)))
    maps = []
    for head in report.heads[:most]:
        weights = run.weights(head[0])[head[1]].astype(float)
        if run.kind != "cross":
            later = np.arange(weights.shape[1]) > run.start + np.arange(len(weights))[:, None]
            weights[later] = np.nan
        words = [(run.name(head), True), (_over_steps(report.found[head]), False)]
        maps.append(doc.Map(run.name(head), weights, looking, run.keys, words))
    if lines:
        return doc.Maps(maps, lines=lines, scale=None)
    return doc.Maps(maps, [("Rows of the steps", True)])


# The page ------------------------------------------------------------------------------------


def _page(report: GenerateReport) -> Page:
    """Return the page of a run: prompt and written tokens are queries, as far as they are known."""
    run, queries, across = report.run, report.run.queries, report.run.kind == "cross"
    order = [*dict.fromkeys([*report.heads, *run.heads])]
    places = {head: at for at, head in enumerate(run.heads)}
    ends = run.text if across else run.text + run.text_written
    capture = PageCapture(
        name="",
        kind=run.kind,
        causal=not across,
        heads=[_page_head(run, head, report.found[head]) for head in run.heads],
        weights=[_weights(run, head) for head in run.heads],
        queries=queries,
        keys=run.keys if across else queries,
        texts=(run.text_written if across else ends, ends),
        order=[places[head] for head in order],
        sink=np.flatnonzero(run.sink).tolist(),
        steps=[
            PageStep(
                step.place,
                step.text,
                step.probability,
                [(token.text, token.probability) for token in step.likely[:_LIKELY]],
            )
            for step in run.steps
        ],
        query=run.start,
        head=places[order[0]],
    )
    look = [look for head in report.heads for look in _look(run, places[head], head)]
    measure = PageMeasure(_ACTIVITY, "score over the steps")
    return Page(run.model.name, [capture], [measure], look, "; --save x.jsonl keeps everything")


def _page_head(run: WrittenRun, head: Head, activity: HeadActivity) -> PageHead:
    label = activity.label
    known = label_named("" if label is None else label.name)
    over = "" if math.isnan(activity.score) else f" {share(activity.score)}"
    return PageHead(
        *head,
        name=run.name(head),
        label=UNLABELLED if label is None else page_label(label, known.meaning, known.colour),
        score=math.nan if label is None else label.score,
        facts=f"{activity.said}{over} over the {activity.steps} steps that could show it",
        values={_ACTIVITY: None if math.isnan(activity.score) else activity.score},
    )


def _weights(run: WrittenRun, head: Head) -> NDArray[np.floating]:
    """Return the weights (query, key) of a head; NaN for a prompt whose weights were not kept."""
    layer, number = head
    whole = np.full((len(run.queries), len(run.keys)), np.nan, np.float32)
    for kept in run.prompt:
        if kept.layer == layer and number in kept.heads:
            rows = kept.weights[kept.heads.index(number)]
            whole[: rows.shape[0], : rows.shape[1]] = rows
    for step in run.steps:
        row = step.rows[layer][number]
        whole[step.place, : len(row)] = row
    return whole


def _look(run: WrittenRun, number: int, head: Head) -> list[Look]:
    """Return the step in which a head's weight on one token was largest, the sink left out."""
    best = [
        (weight, key, at)
        for at in range(len(run.steps))
        for key, weight in run.sources(head, at, 1)
    ]
    if not best:
        return []
    weight, key, at = max(best)
    step, source = run.steps[at], token_name(token_labels(run.keys), key)
    words = f"step {at + 1}, before “{token_label(step.text)}”: “{source}” {share(weight)}"
    return [Look(0, number, step.place, key, words)]
