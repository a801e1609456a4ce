"""The screen of ``attnviz sweep``: the settings, the losses, and what the heads do.

Two numbers of heads are compared by a paired t-test over the seeds that both were trained from
(Student 1908). The p-value is multiplied by the number of possible pairs (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.maps import weight_steps
from attnviz.draw.numbers import counted
from attnviz.draw.palette import series_tint
from attnviz.draw.provenance import share
from attnviz.learn.sweep.report import Spread, SweepReport

_LONGEST = 100
_LEAD = 7
_REFERENCE = doc.Tint(128, "grey")
_SIGNIFICANT = 0.05

_LEARNT = 0.95  # share of the chance loss below which a model has learnt something


def document(report: SweepReport) -> doc.Document:
    """Return the document of a sweep, in which at least one model must be trained."""
    counts = ", ".join(map(str, report.measured))
    noun = "head" if report.measured == (1,) else "heads"
    text, seeds = report.task.text, counted(len(report.seeds), "seed")
    hints = ["--explain: how to read this", "--text FILE: learn from your own text"]
    if text is not None:
        hints = ["--task induction, copy or majority: tasks whose answers are known"]
    heading = [
        ("decoder", True),
        (f"{counted(report.layers, 'layer')}, width {report.d_model}", False),
        (f"{counts.replace(', ', '/')} {noun}", False),
        (report.task.name, False),
        (counted(report.steps, "step"), False),
        (seeds, False),
    ]
    return doc.Document(
        f"sweep over heads on {report.task.name}",
        f"The same decoder with {counts} {noun}: {report.task.name}",
        [
            doc.Group(_about(report)),
            _notes(report),
            doc.Group([_curves(report)]),
            doc.Group([_results(report)]),
            doc.Group([_patterns(report)]),
        ],
        doc.Explanation(
            "sweep",
            "measured on one small model, trained with different numbers of heads from the same "
            f"weights and batches, {seeds}.",
        ),
        doc.next_steps(hints),
        heading=heading,
        quoted="" if text is None else ", ".join(text.files),
        finding=finding(report),
        first=partial(_first, report),
    )


def _notes(report: SweepReport) -> doc.Group:
    return doc.Group([doc.Note(note, _LONGEST) for note in report.notes])


def _curves(report: SweepReport, lines: int = 15) -> doc.Plot:
    """Return a plot with one line per number of heads, the mean over its seeds at each step."""
    drawn = []
    for heads in report.measured:
        rows = zip(*(model.points for model in report.of(heads)), strict=True)
        means = [(float(row[0].step), sum(p.loss for p in row) / len(row)) for row in rows]
        drawn.append(doc.Curve(counted(heads, "head"), means))
    seeds = max(len(report.of(heads)) for heads in report.measured)
    title = [("Training loss", True), ("nats per predictable position, fresh batches", False)]
    title += [(f"mean of {seeds} seeds", False)] if seeds > 1 else []
    return doc.Plot(title, drawn, "steps", rows=max(min(lines - 3, 18), 6))


def _first(report: SweepReport, columns: int, lines: int) -> doc.Ways:
    """Return the first screen: curves, losses, and the heads if they fit."""
    table, grid = _results(report, 6)._replace(title=[]), _patterns(report)
    notes = _notes(report)
    trained = [row for row in table.rows if row.tone == "plain"]
    brief = table._replace(rows=[table.rows[0], *trained])  # of the rules only chance
    lines -= 2 * len(report.notes)
    ways = [[notes, doc.beside(_curves(report, lines), [table, grid])]]
    high = len(table.rows) + 2
    stacks: list[tuple[list[doc.Part], int]] = [
        ([table, grid], high + len(grid.rows) + 6),
        ([table], high),
        ([brief], len(brief.rows) + 2),
    ]
    for below, taken in stacks:
        parts = [_curves(report, lines - taken), *below]
        ways.append([notes, *(doc.Group([part]) for part in parts)])
    return doc.Ways(ways)


def _about(report: SweepReport) -> list[doc.Part]:
    seeds, task = report.seeds, report.task
    number = f"{report.models[0].parameters:,} parameters"
    subject = f"{task.name}: {task.words}"
    if task.text is not None:
        subject += (
            f", {', '.join(task.text.files)} ({task.text.bytes:,} bytes, digest "
            f"{task.text.digest}); its last tenth is held out"
        )
    facts = {
        "": [
            "attnviz's own decoder",
            f"{counted(report.layers, 'layer')} of width {report.d_model}",
            f"MLP {report.d_model}",
            f"float32 on {report.device}",
            counted(report.threads, "thread"),
            f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}",
            f"same {number} for all" if len(report.measured) > 1 else number,
        ],
        "task": [subject],
        "run": [
            f"{report.steps:,} steps of {report.batch} × {task.length} tokens",
            "the same first weights and batches for every number of heads",
            f"AdamW, learning rate {report.learning_rate:.3g}, warm-up and cosine",
            f"measured on {report.held_out:,} held-out sequences",
            f"{report.predictions:,} predictable positions",
        ],
    }
    return [
        doc.Facts(
            [(word, not (name or at)) for at, word in enumerate(words)], name, _LEAD * bool(name)
        )
        for name, words in facts.items()
    ]


def _results(report: SweepReport, numbers: int = 8) -> doc.Table:
    """Return a table of the losses of rules and models, of at most ``numbers`` columns."""
    task, several = report.task, len(report.seeds) > 1
    rules = [task.chance, *task.between, *([] if task.best is None else [task.best])]
    limit = max(*(rule.loss for rule in rules), *(report.spread(n).mean for n in report.measured))
    titles = ("loss", "±", "accuracy", "±", "head width", "ms/step", "parameters", "seeds")
    kept = [several or title != "±" for title in titles[:numbers]]

    def row(name: str, cells: Sequence[str], loss: float, **fields: Any) -> doc.Row:
        shown = [cell for cell, keep in zip(cells, kept, strict=False) if keep]
        return doc.Row([name, *shown], bar=(loss, limit), **fields)

    def trained_row(index: int, heads: int) -> doc.Row:
        models, loss = report.of(heads), report.spread(heads)
        accuracy = report.spread(heads, "accuracy")
        cells = [
            nats(loss.mean),
            "" if loss.deviation is None else nats(loss.deviation),
            f"{accuracy.mean:.1%}",
            "" if accuracy.deviation is None else f"{accuracy.deviation:.1%}",
            str(report.d_model // heads),
            f"{1000 * report.spread(heads, 'step_seconds').mean:.1f}",
            f"{models[0].parameters:,}",
            str(len(models)),
        ]
        return row(counted(heads, "head"), cells, loss.mean, tint=series_tint(index))

    rows = []
    for rule in rules:
        cells = [nats(rule.loss), "", f"{rule.accuracy:.1%}", *[""] * 5]
        rows.append(row(rule.name, cells, rule.loss, tint=_REFERENCE, tone="faint"))
    at = 1 + len(task.between)
    rows[at:at] = [trained_row(*numbered) for numbered in enumerate(report.measured)]
    title = [
        ("On held-out sequences", True),
        ("loss in nats per predictable position", False),
        ("accuracy (top-1)", False),
        *([("mean over seeds ± standard deviation", False)] if several else []),
    ]
    shown = [doc.Column(title) for title, keep in zip(titles, kept, strict=False) if keep]
    return doc.Table([doc.Column("held-out", right=False), *shown], rows, title, ranked=True)


def _patterns(report: SweepReport) -> doc.HeadGrid:
    """Return a grid of best heads, a row per pattern and a column per number of heads."""

    def cell(score: float, head: str = "") -> doc.Cell:
        step = int(weight_steps(np.array(score)))
        return doc.Cell(min(score, 1.0) ** 0.5, doc.Tint(step), f"{share(score)} {head}".strip())

    first = report.of(report.measured[0])[0].patterns
    cells = {}
    for row, pattern in enumerate(first):
        cells[row, 0] = cell(pattern.even)
        for column, heads in enumerate(report.measured, 1):
            best = report.of(heads)[0].pattern(pattern.name)
            score = report.score(heads, pattern.name).mean
            cells[row, column] = cell(score, f"L{best.layer}H{best.head}")
    title = [
        ("Best head of each pattern", True),
        ("its attention to those keys, compared with uniform attention", False),
    ]
    if len(report.seeds) > 1:
        title.append((f"mean over seeds, head of seed {report.seeds[0]}", False))
    return doc.HeadGrid(
        [pattern.words for pattern in first],
        ["uniform", *(counted(heads, "head") for heads in report.measured)],
        cells,
        title,
        scale=doc.WEIGHTS._replace(words="attention", after="colour: square root"),
    )


def finding(report: SweepReport) -> str:
    """Return the finding: which number of heads has the lowest and the highest loss."""
    ranked = sorted(report.measured, key=lambda heads: report.spread(heads).mean)
    best, worst = ranked[0], ranked[-1]
    low, chance = report.spread(best), report.task.chance.loss
    if low.mean > _LEARNT * chance:
        return (
            f"Nothing was learnt in {report.steps:,} steps (lowest held-out loss "
            f"{_with_spread(low)} nats, chance {nats(chance)}); use more --steps."
        )
    if best == worst:
        return (
            f"{counted(best, 'head')} reached a held-out loss of {_with_spread(low)} nats (chance "
            f"{nats(chance)}); more numbers of --heads would compare."
        )
    return (
        f"{counted(best, 'head')} reached the lowest held-out loss, {_with_spread(low)} nats, and "
        f"{counted(worst, 'head')} the highest, {_with_spread(report.spread(worst))} "
        f"({_significance(report, best, worst)})."
    )


def _significance(report: SweepReport, better: int, worse: int) -> str:
    """Return whether two losses differ significantly over the seeds of both, with the p-value."""
    low = {model.seed: model.loss for model in report.of(better)}
    apart = [model.loss - low[model.seed] for model in report.of(worse) if model.seed in low]
    if len(apart) < 2:
        return "needs ≥ 2 seeds"
    p = min(paired_p(apart) * math.comb(len(report.measured), 2), 1.0)
    word = "significant" if p < _SIGNIFICANT else "not significant"
    p_words = "p<0.001" if p < 0.001 else f"p={p:.2g}"
    return f"{word}, {p_words} over {counted(len(apart), 'seed')}"


def paired_p(differences: Sequence[float]) -> float:
    """Return Student's two-sided p of a mean of 0, in [0, 1]; there are two differences or more."""
    spread = Spread.of(differences)
    if not spread.deviation:
        return float(spread.mean == 0)
    freedom = len(differences) - 1
    angle = math.atan2(abs(spread.mean) * math.sqrt((freedom + 1) / freedom), spread.deviation)
    # Behind t = √freedom · tan(angle) Student's density is a power of the angle's cosine.
    middles = (np.arange(10_000) + 0.5) / 10_000
    below, whole = (
        end * float(np.mean(np.cos(end * middles) ** (freedom - 1))) for end in (angle, math.pi / 2)
    )
    return max(1 - below / whole, 0.0)


def _with_spread(spread: Spread) -> str:
    """Return a mean loss with its deviation over seeds as a string: ``0.066 ± 0.012``."""
    return nats(spread.mean) + ("" if spread.deviation is None else f" ± {nats(spread.deviation)}")


def nats(value: float) -> str:
    """Return a loss as a string, such as ``0.066``; one that would round to zero as ``2e-05``."""
    return f"{value:.0e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"
