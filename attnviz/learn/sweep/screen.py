"""The screen of ``attnviz sweep``: the settings, the losses, and what the heads do.

Two numbers of heads are compared by a paired t-test over the seeds that both were trained from
(Student 1908). The p-value is multiplied by the number of possible pairs (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted
from attnviz.draw.palette import series_tint
from attnviz.draw.provenance import share
from attnviz.draw.scale import weight_steps
from attnviz.learn.sweep.progress import curves_plot, nats
from attnviz.learn.sweep.report import PatternScore, Spread, SweepReport
from attnviz.learn.train.progress import FRAME, LEAST_ROWS, curve_rows

_LONGEST = 100
_LEAD = 7
_REFERENCE = doc.Tint(128, "grey")

_FEW_LINES = 20
_BESIDE = 78
"""Columns that the curves and the table each need to be placed side by side."""

_SIGNIFICANT = 0.05

_LEARNT = 0.95
"""Share of the chance loss below which a model has learnt something."""

_REACHED = 0.99
"""Accuracy from which a task whose answers are all known counts as learnt."""


def document(report: SweepReport) -> doc.Document:
    """Return the document of a sweep, in which at least one model must be trained."""
    counts = ", ".join(map(str, report.measured))
    noun = "head" if report.measured == (1,) else "heads"
    text = report.task.text
    hints = ["--explain: how to read this", "--text FILE: learn from your own text"]
    if text is not None:
        hints = ["--task induction, copy or majority: tasks whose answers are known"]
    heading = [
        ("decoder", True),
        (f"{counted(report.layers, 'layer')}, width {report.d_model}", False),
        (f"{counts.replace(', ', '/')} {noun}", False),
        (report.task.name, False),
        (counted(report.steps, "step"), False),
        (counted(len(report.seeds), "seed"), False),
    ]
    return doc.Document(
        f"sweep over heads on {report.task.name}",
        f"The same decoder with {counts} {noun}: {report.task.name}",
        [
            doc.Group(_about(report)),
            _notes(report),
            doc.Group([_curves(report, 12)]),
            doc.Group([_results(report)]),
            doc.Group([_patterns(report)]),
            doc.Group([doc.Say(text, _LONGEST) for text in details(report)]),
        ],
        doc.Explanation(
            "sweep",
            "measured on one small model, trained with different numbers of heads from the same "
            f"weights and batches, {counted(len(report.seeds), 'seed')}.",
        ),
        doc.next_steps(hints),
        heading=heading,
        quoted="" if text is None else ", ".join(text.files),
        finding=finding(report),
        first=lambda columns, lines: _first(report, columns, lines),
    )


def _notes(report: SweepReport) -> doc.Group:
    return doc.Group([doc.Note(note, _LONGEST) for note in report.notes])


def _curves(report: SweepReport, rows: int) -> doc.Plot:
    curves = {heads: [model.points for model in report.of(heads)] for heads in report.measured}
    return curves_plot(curves, rows)


def _first(report: SweepReport, max_width: int, lines: int) -> list[doc.Group]:
    """Return the first screen: curves and losses, then the heads and sentences if they fit."""
    table = _results(report)._replace(title=[])
    if lines < _FEW_LINES:  # of the rules only chance is kept
        first = 1 + len(report.task.between)
        trained = table.rows[first : first + len(report.measured)]
        table = table._replace(rows=[table.rows[0], *trained])
    said = details(report)
    grid: list[doc.Part] = [_patterns(report)]
    tall = len(table.rows) + 2, len(report.models[0].patterns) + 6
    lines -= 2 * len(report.notes)
    if max_width >= 2 * _BESIDE:
        plot = _curves(report, curve_rows(lines - len(said) - 4))
        right = doc.Group([table, *grid * (lines > sum(tall))], spaced=True)
        shown = [doc.Group([plot, right], beside=doc.Beside(_BESIDE, gap=4))]
    else:
        both = lines - FRAME - sum(tall) >= LEAST_ROWS
        plot = _curves(report, curve_rows(lines - tall[0] - tall[1] * both))
        shown = [doc.Group([part]) for part in (plot, table, *grid * both)]
    sentences = doc.Group([doc.Say(text, _LONGEST) for text in said], yields=1)
    return [_notes(report), *shown, sentences]


def _about(report: SweepReport) -> list[doc.Part]:
    """Return the facts of the model, the task and the training."""
    seeds, task = report.seeds, report.task
    counts = {model.heads: model.parameters for model in report.models}
    number = f"{report.models[0].parameters:,} parameters"
    parameters = f"same {number} for all" if len(counts) > 1 else number
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count:,} with {heads}" for heads, count in sorted(counts.items()))
        parameters = f"parameters: {listed} heads"
    text = f"{task.name}: {task.words}"
    if task.text is not None:
        text += (
            f", {', '.join(task.text.files)} ({task.text.bytes:,} bytes, digest "
            f"{task.text.digest}); its last tenth is held out"
        )
    model = [
        f"{counted(report.layers, 'layer')} of width {report.d_model}",
        f"MLP {report.d_ff}",
        f"float32 on {report.device}",
        counted(report.threads, "thread"),
        f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}",
        parameters,
    ]
    training = [
        f"{report.steps:,} steps of {report.batch} × {task.length} tokens",
        "the same first weights and batches for every number of heads",
        f"AdamW, learning rate {report.learning_rate:.3g}, warm-up and cosine",
        f"measured on {report.held_out:,} held-out sequences",
        f"{report.predictions:,} predictable positions",
    ]
    return [
        doc.Facts([("attnviz's own decoder", True), *((words, False) for words in model)]),
        doc.Facts([(text, False)], "task", _LEAD),
        doc.Facts([(words, False) for words in training], "run", _LEAD),
    ]


# The tables ----------------------------------------------------------------------------------


class _Line(NamedTuple):
    """A row of the results: a simple rule, or a number of heads."""

    name: str
    loss: Spread
    accuracy: Spread
    tint: doc.Tint = _REFERENCE
    width: str = ""
    milliseconds: str = ""
    parameters: str = ""
    seeds: str = ""


def _results(report: SweepReport) -> doc.Table:
    """Return a table of losses, with bars, of each simple rule and each number of heads."""
    task, several = report.task, len(report.seeds) > 1
    rules = [task.chance, *task.between, *([] if task.best is None else [task.best])]
    lines = [
        _Line(rule.name, Spread(rule.loss, None), Spread(rule.accuracy, None)) for rule in rules
    ]
    at = 1 + len(task.between)
    lines[at:at] = [_trained(report, heads) for heads in report.measured]
    limit = max(line.loss.mean for line in lines)
    error = doc.ColumnOf[_Line]("±", lambda line: _deviation(line.loss, nats))
    spread = doc.ColumnOf[_Line]("±", lambda line: _deviation(line.accuracy, "{:.1%}".format))
    facts = [
        doc.ColumnOf[_Line]("head width", lambda line: line.width),
        doc.ColumnOf[_Line]("ms/step", lambda line: line.milliseconds),
        doc.ColumnOf[_Line]("parameters", lambda line: line.parameters),
        doc.ColumnOf[_Line]("seeds", lambda line: line.seeds),
    ]
    title = [
        ("On held-out sequences", True),
        ("loss in nats per predictable position", False),
        ("accuracy (top-1)", False),
    ]
    title += [("mean over seeds ± standard deviation", False)] if several else []
    return doc.table(
        lines,
        doc.ColumnOf("held-out", lambda line: line.name, right=False),
        doc.ColumnOf("loss", lambda line: nats(line.loss.mean)),
        *([error] if several else []),
        doc.ColumnOf("accuracy", lambda line: f"{line.accuracy.mean:.1%}"),
        *([spread] if several else []),
        *facts,
        row=lambda line: {
            "bar": (line.loss.mean, limit),
            "tint": line.tint,
            "tone": "plain" if line.seeds else "faint",
        },
        title=title,
        ranked=True,
    )


def _trained(report: SweepReport, heads: int) -> _Line:
    """Return the row of one number of heads, with means over its seeds."""
    models = report.of(heads)
    seconds = report.spread(heads, lambda model: model.step_seconds).mean
    return _Line(
        name=counted(heads, "head"),
        loss=report.loss(heads),
        accuracy=report.spread(heads, lambda model: model.accuracy),
        tint=series_tint(report.measured.index(heads)),
        width=str(report.d_model // heads),
        milliseconds=f"{1000 * seconds:.1f}",
        parameters=f"{models[0].parameters:,}",
        seeds=str(len(models)),
    )


def _deviation(spread: Spread, write: Callable[[float], str]) -> str:
    return "" if spread.deviation is None else write(spread.deviation)


def _patterns(report: SweepReport) -> doc.HeadGrid:
    """Return a grid of best heads, a row per pattern and a column per number of heads."""
    first = report.of(report.measured[0])[0].patterns
    cells = {}
    for row, pattern in enumerate(first):
        cells[row, 0] = _cell(pattern.even, "")
        for column, heads in enumerate(report.measured, 1):
            best = report.of(heads)[0].pattern(pattern.name)
            score = report.score(heads, pattern.name).mean
            cells[row, column] = _cell(score, f"L{best.layer}H{best.head}")
    title = [
        ("Best head of each pattern", True),
        ("its attention to those keys, beside uniform attention's", False),
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


def _cell(score: float, head: str) -> doc.Cell:
    step = int(weight_steps(np.array(score)))
    return doc.Cell(min(score, 1.0) ** 0.5, doc.Tint(step), f"{share(score)} {head}".strip())


# What it has shown ---------------------------------------------------------------------------


def finding(report: SweepReport) -> str:
    """Return the finding: which number of heads has the lowest and the highest loss."""
    ranked = _ranked(report)
    best, worst = ranked[0], ranked[-1]
    low, chance = report.loss(best), report.task.chance.loss
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
        f"{counted(worst, 'head')} the highest, {_with_spread(report.loss(worst))} "
        f"({_significance(report, best, worst)})."
    )


def details(report: SweepReport) -> list[str]:
    """Return sentences with further results, each of which begins with a label and a colon."""
    ranked = _ranked(report)
    best, worst = ranked[0], ranked[-1]
    lines = []
    if len(ranked) > 2:
        second = ranked[1]
        apart = _differences(report, best, second)
        above = f" {_with_spread(Spread.of(apart))} nats above {counted(best, 'head')}"
        significance = _significance(report, best, second)
        lines.append(f"Runner-up: {counted(second, 'head')}{above * bool(apart)} ({significance}).")
    if report.task.best is not None:
        done = {
            heads: sum(model.accuracy >= _REACHED for model in report.of(heads))
            for heads in report.measured
        }
        reached = _of_seeds(report, {heads: count for heads, count in done.items() if count}, ", ")
        none = f"none within {report.steps:,} steps"
        lines.append(f"Reached {_REACHED:.0%} accuracy: {reached or none}.")
    return lines if best == worst else [*lines, *_compared_heads(report, best, worst)]


def _ranked(report: SweepReport) -> list[int]:
    return sorted(report.measured, key=lambda heads: report.loss(heads).mean)


def _differences(report: SweepReport, better: int, worse: int) -> list[float]:
    """Return the differences of the losses of two numbers of heads, for the seeds of both."""
    low = {model.seed: model.loss for model in report.of(better)}
    high = {model.seed: model.loss for model in report.of(worse)}
    return [high[seed] - low[seed] for seed in high if seed in low]


def _significance(report: SweepReport, better: int, worse: int) -> str:
    """Return whether two losses differ significantly, with the p-value."""
    apart = _differences(report, better, worse)
    if len(apart) < 2:
        return "needs ≥ 2 seeds"
    p = min(paired_p(apart) * math.comb(len(report.measured), 2), 1.0)
    word = "significant" if p < _SIGNIFICANT else "not significant"
    p_words = "p<0.001" if p < 0.001 else f"p={p:.2g}"
    return f"{word}, {p_words} over {counted(len(apart), 'seed')}"


def paired_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value, by Student's t, of a mean difference of 0; in [0, 1].

    differences: at least two.
    """
    spread = Spread.of(differences)
    if not spread.deviation:
        return float(spread.mean == 0)
    freedom = len(differences) - 1
    angle = math.atan2(abs(spread.mean) * math.sqrt((freedom + 1) / freedom), spread.deviation)
    # The distribution for whole degrees of freedom: Abramowitz & Stegun 1964, 26.7.3 and 26.7.4.
    sine, cosine, odd = math.sin(angle), math.cos(angle), freedom % 2
    term = total = cosine if odd else 1.0
    for step in range(2 + odd, freedom, 2):
        term *= (step - 1) / step * cosine**2
        total += term
    if not odd:
        return max(1 - sine * total, 0.0)
    return max(1 - 2 / math.pi * (angle + sine * total * (freedom > 1)), 0.0)


def _compared_heads(report: SweepReport, best: int, worst: int) -> list[str]:
    """Return sentences on the pattern that differs most, and on patterns that share a head.

    best, worst: the numbers of heads with the lowest and the highest loss.
    """
    patterns = {pattern.name: pattern for pattern in report.of(best)[0].patterns}
    scores = {
        name: [report.score(heads, name).mean for heads in (best, worst)] for name in patterns
    }
    most = max(scores, key=lambda name: abs(scores[name][0] - scores[name][1]))
    high, low = map(share, scores[most])
    lines = [
        f"Heads: the two differ most in {patterns[most].words!r}, the best head's attention to it "
        f"being {high} with {counted(best, 'head')} and {low} with {counted(worst, 'head')}."
    ]
    backs = [pattern for name, pattern in patterns.items() if name.startswith("back_")]
    for one, other in combinations(backs, 2):
        shared = {
            heads: sum(
                _place(model.pattern(one.name)) == _place(model.pattern(other.name))
                for model in report.of(heads)
            )
            for heads in (worst, best)
        }
        if any(shared.values()):
            lines.append(
                f"Shared: one head scores highest both for {one.words} and for "
                f"{other.words} with {_of_seeds(report, shared, ' and with ')}."
            )
    return lines


def _place(best: PatternScore) -> tuple[int, int]:
    return best.layer, best.head


def _of_seeds(report: SweepReport, counts: dict[int, int], between: str) -> str:
    """Return in how many seeds each number of heads did something: ``2 heads in 1 of 3 seeds``."""
    return between.join(
        f"{counted(heads, 'head')} in {count} of {counted(len(report.of(heads)), 'seed')}"
        for heads, count in counts.items()
    )


def _with_spread(spread: Spread) -> str:
    """Return a mean loss with its deviation over seeds as a string: ``0.066 ± 0.012``."""
    if spread.deviation is None:
        return nats(spread.mean)
    return f"{nats(spread.mean)} ± {nats(spread.deviation)}"
