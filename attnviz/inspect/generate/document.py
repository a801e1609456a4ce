"""The document of ``attnviz generate``: the text, what the heads did, and each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.labels import cut, cut_at_word, token_label, token_labels, word_label
from attnviz.draw.numbers import counted
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
from attnviz.engine.generation import Sampling
from attnviz.engine.head_run import Head
from attnviz.inspect.generate.page import run_page
from attnviz.inspect.generate.records import GenerateReport, HeadActivity, WrittenRun
from attnviz.measures.registry import label_named
from attnviz.records import SINKS, RegionShares, Tokens

_SOURCES = 3
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


def run_document(report: GenerateReport) -> doc.Document:
    """Return the document of one generation."""
    run, info = report.run, report.run.model
    about: list[doc.Part] = [
        doc.Facts([*model_words(info), *((word, False) for word in _how(run))]),
        doc.Quote("prompt", run.text),
        doc.Quote("written", run.text_written, 8),
    ]
    in_prompt = run.source is None  # then the text itself shows it
    next_steps = [] if report.chosen else [f"--head {run.name(_another(report))}"]
    next_steps += ["--temperature 0.8"] * run.sampling.greedy + ["--save run.jsonl", "--explain"]
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
        doc.Explanation(
            "generate",
            "measured on this prompt alone, the weights of the last token at each of "
            f"{counted(len(run.steps), 'step')}.",
        ),
        doc.next_steps(next_steps, tone="faint"),
        heading=[*named(info), *((word, False) for word in _how(run))],
        quoted="" if in_prompt else run.text,
        finding=finding(report),
        first=advised(partial(_first, report), run.tokens),
        page=partial(run_page, report),
    )


def _another(report: GenerateReport) -> Head:
    """Return a head to suggest next: the clearest one with another name than the shown one."""
    name = report.found[report.head].name
    others = [head for head in report.found if head != report.head] or [report.head]
    clear = [
        head for head in others if report.found[head].known and report.found[head].name != name
    ]
    return max(clear or others, key=lambda head: np.nan_to_num(report.found[head].score))


def _first(report: GenerateReport, columns: int, lines: int) -> Sequence[doc.Group]:
    """Return the first screen: the text, then the heads and a map next to the table of steps."""
    run, grids = report.run, [] if report.chosen else [_grid(report)]
    written = [doc.Quote("written", run.text_written, 8)] if run.kind == "cross" else []
    text = doc.Group([*written, texts(run, report.head, max(lines // 2, lines - _OTHERS))])
    top, last = [text], 0
    if run.regions is not None:
        top, last = [text, doc.Group([_regions(report, run.regions, 1)])], 1
        lines -= 5
    room, heads = columns - _GAP - _STEPS, max((len(grid.columns) for grid in grids), default=0)
    wide = _INDENT + _NUMBERED * heads
    if wide > room:
        grids, wide = [_lettered(grid) for grid in grids], _INDENT + _CELL * heads
    if wide > room or columns < _LEAST_BESIDE:
        return [*top, doc.Group(grids), doc.Group([_steps(report, columns)], yields=1)]
    letters = sum(map(len, run.tokens.texts))
    rest = lines - 2 * (letters // columns) - sum(len(grid.rows) for grid in grids) - _BETWEEN
    maps = [_maps(report, 1, rest)] if rest >= _LEAST_MAP and room >= _LEAST_WIDE else []
    if not grids and not maps:
        return [*top, doc.Group([_steps(report, columns)], yields=last)]
    half = (columns - _GAP) // 2
    halved = half >= max(wide, _STEPS)
    left = half if halved else wide
    parts = [doc.Group([*grids, *maps], spaced=True)]
    parts.append(doc.Group([_steps(report, columns - _GAP - left)]))
    beside = doc.Beside(left, _GAP, 2, yields=not halved)
    return [*top, doc.Group(parts, beside=beside, yields=last)]


# Words ---------------------------------------------------------------------------------------


def sampling_words(sampling: Sampling) -> str:
    """Return the sampling as a string: ``greedy``, or ``temperature 0.8, top-p 0.9, seed 3``."""
    if sampling.greedy:
        return "greedy"
    words = [f"temperature {sampling.temperature:g}"]
    words += [] if sampling.top_k is None else [f"top-k {sampling.top_k}"]
    words += [] if sampling.top_p is None else [f"top-p {sampling.top_p:g}"]
    return ", ".join([*words, f"seed {sampling.seed}"])


_ENDINGS = {
    "end": "end of text",
    "context": "context full",
    "interrupted": "interrupted",
    "failed": "the next step failed",
}


def _how(run: WrittenRun) -> list[str]:
    """Return strings on the sampling, the length, the ending and the ablated heads."""
    words = [] if run.kind == "self" else [f"{run.kind} attention"]
    words += [sampling_words(run.sampling)]
    words += [f"{len(run.source or run.begun)} + {len(run.steps)} tokens"]
    words += [_ENDINGS[run.ending]] if run.ending in _ENDINGS else []
    if run.removed:
        few = ", ".join(map(run.name, run.removed[:_SOURCES]))
        more = len(run.removed) - _SOURCES
        words.append(f"without {few}" + (f" and {more} more" if more > 0 else ""))
    return words


_FEWEST = 3
"""The fewest steps on which a head without a label from elsewhere is said to stand out."""


def finding(report: GenerateReport) -> str:
    """Return the finding: the generated text, then the attention of the first shown head.

    The head's attention is compared with uniform attention.
    """
    run, one = report.run, report.found[report.head]
    name = f"{run.name(report.head)}{_labelled(one)}"
    of = f"{one.steps} of " * (one.steps < len(run.steps))
    over = f"over {of}{counted(len(run.steps), 'step')}"
    target = label_named(one.name).target
    told = target and one.steps >= min(_FEWEST, len(run.steps))
    lead = "" if report.chosen or one.label or told else "No head stands out: "
    head = f"{lead}{name} scores {share(one.score)} for {one.said} here ({_base(one)}) {over}."
    if math.isnan(one.score):
        head = f"{name} has no numbers."
    elif target:
        given = f"{target} {share(one.score)} of its attention ({_base(one)})"
        head = f"{lead}{name} gives {given} {over}."
    elif one.name == "spread":
        how = f"{spread_words(one.score)}, {share(one.score)} ({_base(one)})"
        head = f"{lead}{name} attends {how} {over}."
    elif one.name == "peaked":
        given = f"one token {share(one.score)} of its attention on average ({_base(one)})"
        head = f"{lead}{name} gives {given} {over}."
    room = max(LONGEST_FINDING - len(head) - 1, _LEAST_WRITTEN)
    while room > _LEAST_WRITTEN:
        shown = f"{written_words(run.text_written, room)} {head}"
        if fits_two_lines(shown):
            return shown
        room -= 1
    return f"{written_words(run.text_written, room)} {head}"


def written_words(text: str, max_width: int) -> str:
    """Return a sentence with the written text in quotes, in at most ``max_width`` columns."""
    words, lead = " ".join(text.split()), "The model writes "
    if not words:
        return "The model writes blanks alone." if text else "The model writes nothing."
    shown = cut_at_word(word_label([words]), max_width - len(lead) - 3)
    return f"{lead}“{shown}”{'' if shown.endswith(('.', '…', '!', '?')) else '.'}"


def _labelled(one: HeadActivity) -> str:
    """Return the label of a head in brackets, such as `` (induction .87)``."""
    if one.label is None:
        return ""
    source = label_source([one.label], ", {source} {date}")
    return f" ({known_text(one.label)}{source})"


def activity_words(one: HeadActivity) -> str:
    """Return a head's activity as a string, such as ``induction .43 (uniform .04)``."""
    if math.isnan(one.score):
        return "no numbers"
    return f"{one.said} {share(one.score)} ({_base(one)})"


def _base(one: HeadActivity) -> str:
    return "1 = uniform" if one.name == "spread" else f"uniform {share(one.uniform)}"


def _over_steps(one: HeadActivity) -> str:
    return f"over the steps: {activity_words(one)}"


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
    each = max(lines - 1 - len(maps), 1) if lines else 0
    title = [(f"shade: largest weight from {run.name(head)} in any step", True)]
    return doc.Maps(maps, title, texts=True, lines=each, scale=None)


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
    base = report.run.index_base
    return doc.HeadGrid(
        [f"L{layer + base}" for layer in layers],
        [f"H{head + base}" for head in range(heads)],
        {
            (layers.index(layer), head): _cell(report.run.name((layer, head)), one)
            for (layer, head), one in report.found.items()
        },
    )


def _cell(name: str, one: HeadActivity) -> doc.Cell:
    measure = label_named(one.name)
    tip = f"{name}{_labelled(one)} · {_over_steps(one)}"
    if one.label is None or not one.known or one.name in SINKS:
        return doc.Cell(0.0, None, "", measure.short, tip)
    tint = Tint(round(one.label.score * (STEPS - 1)), shades(measure.colour))
    return doc.Cell(one.label.score, tint, share(one.label.score), measure.short, tip)


def _lettered(grid: doc.HeadGrid) -> doc.HeadGrid:
    cells = {place: cell._replace(text="") for place, cell in grid.cells.items()}
    return grid._replace(cells=cells)


def _steps(report: GenerateReport, max_width: int = 0) -> doc.Table:
    """Return a table of generation steps: query, generated token, and its most attended keys.

    max_width: the width in characters of a first screen, which shows what fits; 0 for everything.
    """
    run, labels = report.run, token_labels(report.run.keys)
    queries = token_labels(run.queries)
    most = min((max_width - _STEPS) // _SOURCE + 1, _SOURCES) if max_width else _SOURCES
    longest = _LONGEST_TOKEN if not max_width or most > 1 else _SHORT_TOKEN
    rows = []
    for place, step in enumerate(run.steps):
        sources = run.sources(report.head, place, max(most, 1))
        named = [f"{cut(labels[at], longest)} {share(weight)}" for at, weight in sources]
        cells = [cut(queries[step.place], longest), cut(token_label(step.text), longest)]
        cells += [probability(step.probability)]
        cells += [f"{step.entropy:.2f}"] if most > 1 else []
        cells += [share(run.sink_weight(report.head, place)), " · ".join(named) or "–"]
        rows.append(doc.Row(cells))
    columns = [
        doc.Column("query", right=False),
        doc.Column("wrote", right=False),
        doc.Column("p"),
        *([doc.Column("entropy")] if most > 1 else []),
        doc.Column("sink"),
        doc.Column(f"{run.name(report.head)} attended to", right=False),
    ]
    return doc.Table(columns, rows, least=_LEAST_STEPS if max_width else 0)


def _maps(report: GenerateReport, most: int | None = None, lines: int = 0) -> doc.Maps:
    """Return maps of the shown heads, with a row for each step and a column for each token.

    most: the number of heads, None for all. lines: the most lines of a map, 0 for no limit.
    """
    run = report.run
    looking = run.queries.taken(range(run.start, len(run.queries)))
    maps = []
    for layer, head in report.heads[:most]:
        weights = run.weights(layer)[head].astype(float)
        if run.kind != "cross":
            later = np.arange(weights.shape[1]) > run.start + np.arange(len(weights))[:, None]
            weights[later] = np.nan
        words = [(run.name((layer, head)), True), (_over_steps(report.found[layer, head]), False)]
        maps.append(doc.Map(run.name((layer, head)), weights, looking, run.keys, words))
    title = [] if lines else [("Rows of the steps", True)]
    scale = None if lines else doc.WEIGHTS
    return doc.Maps(maps, title, lines=lines, scale=scale)
