"""The document of ``attnviz patch``: prompts, grid, ranking, heads together, single tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.grid import full_width
from attnviz.draw.labels import token_labels
from attnviz.draw.numbers import NumberScale, counted
from attnviz.draw.provenance import advised, known_text, notes_group
from attnviz.draw.signed import one_line, signed_grid, signed_scale
from attnviz.inspect.interventions.patch.records import METRICS, PatchEffect, PatchReport
from attnviz.inspect.interventions.patch.words import (
    about,
    base_rate,
    base_tokens,
    caveats,
    change_words,
    explanation,
    finding,
    grid_title,
    heading,
    joint_words,
    quoted,
    runs,
    token_title,
)
from attnviz.inspect.interventions.shown import (
    Cells,
    base_rates,
    effect_grid,
    effect_table,
    label_column,
    number,
)
from attnviz.measures.labels import label_look
from attnviz.records import Tokens

_GAP = 3
_PROMPTS, _TABLE = 34, 87
"""The columns that the prompts, and the ranking, take next to the grid."""

_LEAST_ROWS = 3
_AROUND_TOKENS = 10
"""The lines of a first screen that are not for the grid of tokens."""


def patch_document(report: PatchReport) -> doc.Document:
    """Return the document of a report, with its first screen."""
    tokens = report.pairs[0].tokens.clean
    every = ranking_table(report, report.ranking(len(report.effects)), "Every patch")
    largest = "Largest effects" if report.ratio else "Largest changes"
    groups = [
        doc.Group(about(report)),
        notes_group((*report.model.notes, *report.notes), tokens),
        doc.Group([prompts(report), runs(report)]),
        doc.Group([head_grid(report)]),
        doc.Group([ranking_table(report, report.ranking(), largest)]),
        doc.Group(together(report)),
        doc.Group(token_grid(report)),
        doc.Group([doc.Say(text) for text in caveats(report)]),
        doc.Group([every], full=True),
    ]
    return doc.Document(
        name=f"patched activations of {report.model.name}",
        title=" ".join(report.text.split()),
        groups=groups,
        explain=explanation(report),
        hints=doc.next_steps(_hints(report)),
        heading=heading(report),
        quoted=report.text if report.pairs_wanted == 1 else "",
        finding=finding(report),
        first=advised(partial(first_groups, report), tokens),
    )


def _hints(report: PatchReport) -> list[str]:
    """Return the options to try next on the command line."""
    hints = []
    if report.source.endswith("built-in pairs"):
        hints.append('"CLEAN" "CORRUPT" your own')
    elif len(report.pairs) == 1:
        hints.append("--pairs FILE for intervals")
    carrying = [report.names(effect) for effect in report.ranking(2)]
    if len(carrying) == 2 and report.together is None and not report.whole_layers:
        hints.append(f"--together {','.join(carrying)}")
    if len(report.pairs) == 1 and report.by_token is None:
        hints.append("--by-token")
    hints.append("--explain")
    return hints


# The prompts ---------------------------------------------------------------------------------


def prompts(report: PatchReport, lines: int = 0) -> doc.Maps:
    """Return both prompts of the first pair, with the tokens highlighted that differ.

    lines: the most lines of each prompt; 0 for the default of four.
    """
    pair, maps = report.pairs[0], []
    both, differ = pair.tokens, pair.tokens.changed
    many = ", pair 1" * (len(report.pairs) > 1)
    short = "Δlogit" if report.metric == "logit_diff" else METRICS[report.metric].short
    words = (quoted(pair.answer), "" if pair.foil is None else quoted(pair.foil))
    for name, tokens, changed, sign, value, word in (
        ("clean", both.clean, differ[0], 1.0, pair.clean_metric, words[0]),
        ("corrupt", both.corrupt, differ[1], -1.0, pair.corrupt_metric, words[1]),
    ):
        marks = np.zeros((1, len(tokens)))
        marks[0, list(changed)] = sign
        kept = [at for at, special in enumerate(tokens.special) if not special]
        metric = f"{short} {value:+.2f}"
        asks = [(f"{'answer' if sign > 0 else 'foil'} {word}", False)] if word else []
        title: doc.Words = [(name + many, True), *asks, (metric, False)]
        maps.append(
            doc.Map(name, marks[:, kept], Tokens.bare((0,)), tokens.taken(kept), title, limit=1.0)
        )
    return doc.Maps(maps, texts=True, lines=lines or 4, scale=None)


# The grid ------------------------------------------------------------------------------------


def head_grid(report: PatchReport, scaled: bool = True) -> doc.HeadGrid:
    """Return a grid of the effects of single patches.

    scaled: True adds a colour bar; a first screen has only the numbers.
    """
    found = {effect.places[0]: report.mean(effect) for effect in report.effects}
    scale = NumberScale.over(one.value for one in found.values())
    grid = effect_grid(
        found,
        scale,
        grid_title(report, brief=not scaled),
        report.column,
        base=report.index_base,
        blank=found,
        bar=_bar(report, scale) if scaled else None,
    )
    labels = {report.name(place): label_look(label) for place, label in report.labels.items()}
    return grid.with_known(labels, "effect of the patch")


def _bar(report: PatchReport, scale: NumberScale) -> doc.Scale:
    unit = "effect" if report.ratio else METRICS[report.metric].unit
    return signed_scale(scale, unit, "effect" if report.ratio else "Δ")


def token_grid(report: PatchReport, most: int = 0) -> list[doc.Part]:
    """Return a grid of patches of single tokens: a row for each token, a column for each head.

    The columns are layers where whole layers are patched. most: the number of rows, those with the
    largest effects; 0 for all.
    """
    found = report.by_token
    if found is None:
        return []
    sizes = np.nan_to_num(np.abs(found.values)).max(axis=1)
    order = np.argsort(-sizes, kind="stable")[: most or len(sizes)]
    rows = sorted(order.tolist())
    labels = token_labels(base_tokens(report))
    scale = NumberScale.over(found.values.ravel().tolist())
    grid = signed_grid(
        [f"{labels[found.tokens[row]]} ({found.tokens[row]})" for row in rows],
        [report.name(place) for place in found.places],
        {
            (at, column): float(value)
            for at, row in enumerate(rows)
            for column, value in enumerate(found.values[row])
            if math.isfinite(value)
        },
        scale,
    )
    title = [(token_title(report), True)]
    left = len(sizes) - len(rows)
    if left:
        rest = np.delete(sizes, rows).max()
        title.append((f"{counted(left, 'other token')}: at most {rest:.2g}", False))
    return [grid._replace(title=title, scale=None if most else _bar(report, scale))]


# The ranking ---------------------------------------------------------------------------------


def ranking_table(report: PatchReport, shown: Sequence[PatchEffect], title: str = "") -> doc.Table:
    """Return a table with a row for each patch: effect, interval, base rate, label and others.

    shown: the patches, in this order. title: of the table.
    """
    found = [report.mean(effect) for effect in shown]
    scale = NumberScale.over([report.shown(effect) for effect in report.effects])
    estimated = report.method == "gradient"
    name = "effect" if report.ratio else change_words(report)
    heads = [effect.places[0] if len(effect.places) == 1 else None for effect in shown]
    columns: list[Cells] = [
        (
            ("estimate" if estimated else name) + scale.times,
            [number(e.value, scale) for e in found],
        ),
        base_rates("control", found, scale),
        label_column(report.labels, heads, known_text),
    ]
    if report.method == "both":
        columns.append(("gradient", [number(effect.gradient, scale) for effect in shown]))
    columns.append(("q", [_small(effect.q) for effect in shown]))
    if not estimated:
        columns.append(("patched", [f"{effect.metric:+.2f}" for effect in shown]))
    return effect_table(title, [*map(report.names, shown)], found, scale, columns)


def _small(value: float) -> str:
    if math.isnan(value):
        return ""
    return "< .001" if value < 0.001 else f"{value:.3f}"[1:] if value < 1 else "1"


def together(report: PatchReport) -> list[doc.Part]:
    """Return a table with the effect of the heads patched together; an empty one without them."""
    joint = report.together
    if joint is None:
        return []
    table = ranking_table(report, [joint], "Patched together")
    return [table, doc.Facts([(joint_words(report, joint), False)])]


# The first screen ----------------------------------------------------------------------------


def first_groups(report: PatchReport, columns: int, lines: int) -> list[doc.Group]:
    """Return the first screen: metric, prompts, grid and ranking.

    columns, lines: the available width in characters and lines. The prompts or the ranking stand
        next to the grid if they fit.
    """
    grid = head_grid(report, scaled=False)
    table = ranking_table(report, report.ranking(len(report.effects)))._replace(least=_LEAST_ROWS)
    joint = together(report)[1:]
    top, ranked = doc.Group([runs(report), *base_rate(report), *joint]), doc.Group([table])
    marked = prompts(report, 2)
    if report.by_token is not None:
        followed = token_grid(report, max(lines - _AROUND_TOKENS, _LEAST_ROWS))
        below = [] if report.whole_layers else [ranked._replace(yields=2)]
        return [top, doc.Group([marked], yields=1), doc.Group(followed), *below]
    wide = full_width(grid)
    if wide + _GAP + _TABLE <= columns:
        grid = one_line(grid, columns - _TABLE - _GAP)
        both = doc.Group([table, grid], beside=doc.Beside(_TABLE, _GAP, yields=True))
        return [top, doc.Group([marked], yields=1), both]
    if wide + _GAP + _PROMPTS <= columns:
        beside = doc.Beside(_PROMPTS, _GAP, yields=True)
        grid = one_line(grid, columns - _PROMPTS - _GAP)
        return [top, doc.Group([doc.Group([marked]), grid], beside=beside), ranked]
    return [top, doc.Group([marked], yields=1), doc.Group([grid]), ranked._replace(yields=2)]
