"""The document of ``attnviz sweep``: the settings, the losses, and what the heads do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted
from attnviz.draw.palette import series_tint
from attnviz.draw.provenance import share
from attnviz.draw.scale import weight_steps
from attnviz.learn.sweep.findings import details, finding, nats
from attnviz.learn.sweep.records import PatternScore, Reference, SweepModel, SweepReport, SweepTask
from attnviz.learn.train.document import FRAME, LEAST_ROWS, curve_rows
from attnviz.learn.train.records import CurvePoint

_LONGEST = 100
_LEAD = 7
_REFERENCE = doc.Tint(128, "grey")

CurvesByHeads = Mapping[int, Sequence[Sequence[CurvePoint]]]
"""The curve of each seed, by the number of heads."""


def sweep_document(report: SweepReport, explained: bool = False) -> doc.Document:
    """Return the document of a sweep, in which at least one model must be trained."""
    counts = ", ".join(map(str, report.measured))
    one = "head" if report.measured == (1,) else "heads"
    text = report.task.text
    heading = [
        ("decoder", True),
        (f"{counted(report.layers, 'layer')}, width {report.d_model}", False),
        (f"{counts.replace(', ', '/')} {one}", False),
        (report.task.name, False),
        (counted(report.steps, "step"), False),
        (counted(len(report.seeds), "seed"), False),
    ]
    return doc.Document(
        f"sweep over heads on {report.task.name}",
        f"The same decoder with {counts} {one}: {report.task.name}",
        [
            doc.Group(_about(report)),
            _notes(report),
            doc.Group([curves_plot(_curves(report))]),
            doc.Group([_results(report)]),
            doc.Group([_patterns(report)]),
            _details(report),
        ],
        _explanation(report),
        doc.next_steps(_hints(report, explained)),
        heading=heading,
        quoted="" if text is None else ", ".join(text.files),
        finding=finding(report),
        first=lambda columns, lines: _first(report, columns, lines),
    )


def _hints(report: SweepReport, explained: bool) -> tuple[str, ...]:
    if report.task.text is not None:
        return ("--task induction, copy or majority: tasks whose answers are known",)
    more = "--steps 1500: train longer" if explained else "--explain: how to read this"
    return (more, "--text FILE: learn from your own text")


def _notes(report: SweepReport) -> doc.Group:
    return doc.Group([doc.Note(note, _LONGEST) for note in report.notes])


def _details(report: SweepReport, yields: int = 0) -> doc.Group:
    return doc.Group([doc.Say(text, _LONGEST) for text in details(report)], yields=yields)


# The first screen ----------------------------------------------------------------------------

_FEW_LINES = 20
_BESIDE = 78
"""Columns that the curves and the table each need to be placed side by side."""


def _first(report: SweepReport, max_width: int, lines: int) -> list[doc.Group]:
    """Return the first screen: curves and losses, then the heads and sentences if they fit."""
    table = _results(report)._replace(title=[])
    if lines < _FEW_LINES:  # of the rules only chance is kept
        first = 1 + len(report.task.between)
        trained = table.rows[first : first + len(report.measured)]
        table = table._replace(rows=[table.rows[0], *trained])
    grid: list[doc.Part] = [_patterns(report)]
    tall = len(table.rows) + 2, len(report.models[0].patterns) + 6
    lines -= sum(2 for _ in report.notes)
    if max_width >= 2 * _BESIDE:
        plot = curves_plot(_curves(report), curve_rows(lines - len(details(report)) - 4))
        right = doc.Group([table, *grid * (lines > sum(tall))], spaced=True)
        shown = [doc.Group([plot, right], beside=doc.Beside(_BESIDE, gap=4))]
    else:
        both = lines - FRAME - sum(tall) >= LEAST_ROWS
        plot = curves_plot(_curves(report), curve_rows(lines - tall[0] - tall[1] * both))
        shown = [doc.Group([part]) for part in (plot, table, *grid * both)]
    return [_notes(report), *shown, _details(report, yields=1)]


# Provenance ----------------------------------------------------------------------------------


def _about(report: SweepReport) -> list[doc.Part]:
    """Return the facts of the model, the task and the training."""
    seeds = report.seeds
    model = [
        "attnviz's own decoder",
        f"{counted(report.layers, 'layer')} of width {report.d_model}",
        f"MLP {report.d_ff}",
        f"float32 on {report.device}",
        counted(report.threads, "thread"),
        f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}",
        _parameter_words(report),
    ]
    training = [
        f"{report.steps:,} steps of {report.batch} × {report.task.length} tokens",
        "the same first weights and batches for every number of heads",
        f"AdamW, learning rate {report.learning_rate:.3g}, warm-up and cosine",
        f"measured on {report.held_out:,} held-out sequences",
        f"{report.predictions:,} predictable positions",
    ]
    return [
        doc.Facts([(words, not place) for place, words in enumerate(model)]),
        doc.Facts([(_task_words(report.task), False)], "task", _LEAD),
        doc.Facts([(words, False) for words in training], "run", _LEAD),
    ]


def _task_words(task: SweepTask) -> str:
    """Return the task's name and description as a string."""
    if task.text is None:
        return f"{task.name}: {task.words}"
    names = ", ".join(task.text.files)
    return (
        f"{task.name}: {task.words}, {names} ({task.text.bytes:,} bytes, digest "
        f"{task.text.digest}); its last tenth is held out"
    )


def _parameter_words(report: SweepReport) -> str:
    """Return the number of trained parameters, and whether it depends on the heads, as a string."""
    counts = {model.heads: model.parameters for model in report.models}
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{count:,} with {heads}" for heads, count in sorted(counts.items()))
        return f"parameters: {each} heads"
    number = f"{next(iter(counts.values())):,} parameters"
    return f"same {number} for all" if len(counts) > 1 else number


# Curves and results --------------------------------------------------------------------------


def _curves(report: SweepReport) -> CurvesByHeads:
    return {heads: [model.points for model in report.of(heads)] for heads in report.measured}


def curves_plot(curves: CurvesByHeads, rows: int = 12) -> doc.Plot:
    """Return a plot with one line per number of heads, the mean over the seeds at each step.

    curves: by the number of heads, the points of each seed. rows: the height of the plot in lines.
    """
    drawn = [
        doc.Curve(counted(heads, "head"), _mean(seeds))
        for heads, seeds in sorted(curves.items())
        if any(seeds)
    ]
    most = max(map(len, curves.values()), default=1)
    title = [("Training loss", True), ("nats per predictable position, fresh batches", False)]
    title += [(f"mean of {most} seeds", False)] if most > 1 else []
    return doc.Plot(title, drawn, "steps", rows=rows)


def _mean(seeds: Sequence[Sequence[CurvePoint]]) -> list[tuple[float, float]]:
    losses: dict[int, list[float]] = {}
    for points in seeds:
        for point in points:
            losses.setdefault(point.step, []).append(point.loss)
    return [(float(step), sum(losses[step]) / len(losses[step])) for step in sorted(losses)]


def _results(report: SweepReport) -> doc.Table:
    """Return a table of losses, with bars, of each simple rule and each number of heads."""
    task = report.task
    rules = [_rule(rule) for rule in (task.chance, *task.between)]
    trained = [_trained(report, heads) for heads in report.measured]
    best = [_rule(task.best)] if task.best is not None else []
    limit = max(loss for _, loss in (*rules, *trained))
    several = len(report.seeds) > 1
    columns = [
        doc.Column("held-out", right=False),
        doc.Column("loss"),
        *([doc.Column("±")] if several else []),
        doc.Column("accuracy"),
        *([doc.Column("±")] if several else []),
        *map(doc.Column, ("head width", "ms/step", "parameters", "seeds")),
    ]
    spreads = () if several else (2, 4)

    def row(cells: Sequence[str], loss: float, number: int | None = None) -> doc.Row:
        kept = [cell for place, cell in enumerate(cells) if place not in spreads]
        if number is None:
            return doc.Row(kept, (loss, limit), _REFERENCE, "faint")
        return doc.Row(kept, (loss, limit), series_tint(number))

    rows = [row(*rule) for rule in rules]
    rows += [row(*one, number) for number, one in enumerate(trained)]
    rows += [row(*rule) for rule in best]
    title = [
        ("On held-out sequences", True),
        ("loss in nats per predictable position", False),
        ("accuracy (top-1)", False),
    ]
    title += [("mean over seeds ± standard deviation", False)] if several else []
    return doc.Table(columns, rows, title, ranked=True)


def _rule(rule: Reference) -> tuple[list[str], float]:
    """Return the table cells of a simple rule, which needs no training, and its loss."""
    cells = [rule.name, nats(rule.loss), "", f"{rule.accuracy:.1%}", "", "", "", "", ""]
    return cells, rule.loss


def _trained(report: SweepReport, heads: int) -> tuple[list[str], float]:
    """Return the table cells of one number of heads, and the mean loss over its seeds."""

    def both(measure: Callable[[SweepModel], float], show: Callable[[float], str]) -> Iterator[str]:
        spread = report.spread(heads, measure)
        yield show(spread.mean)
        yield "" if spread.deviation is None else show(spread.deviation)

    models = report.of(heads)
    seconds = report.spread(heads, lambda model: model.step_seconds).mean
    cells = [
        counted(heads, "head"),
        *both(lambda model: model.loss, nats),
        *both(lambda model: model.accuracy, "{:.1%}".format),
        str(report.d_model // heads),
        f"{1000 * seconds:.1f}",
        f"{models[0].parameters:,}",
        str(len(models)),
    ]
    return cells, report.spread(heads, lambda model: model.loss).mean


def _patterns(report: SweepReport) -> doc.HeadGrid:
    """Return a grid of best heads, a row per pattern and a column per number of heads."""
    first = report.of(report.measured[0])[0].patterns
    cells = {
        (row, column): cell
        for row, pattern in enumerate(first)
        for column, cell in enumerate(
            [_cell(pattern.even, ""), *(_best(report, heads, pattern) for heads in report.measured)]
        )
    }
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


def _best(report: SweepReport, heads: int, pattern: PatternScore) -> doc.Cell:
    """Return a grid cell for a pattern: the mean score of the best heads, and one head's name.

    It is the name of the first seed's best head. heads: the number of heads of the models. pattern:
    by which heads are scored.
    """
    best = [model.pattern(pattern.name) for model in report.of(heads)]
    score = sum(one.score for one in best) / len(best)
    return _cell(score, f"L{best[0].layer}H{best[0].head}")


def _cell(score: float, head: str) -> doc.Cell:
    step = int(weight_steps(np.array(score)))
    return doc.Cell(min(score, 1.0) ** 0.5, doc.Tint(step), f"{share(score)} {head}".strip())


def _explanation(report: SweepReport) -> doc.Explanation:
    return doc.Explanation(
        "sweep",
        "measured on one small model, trained with different numbers of heads from the same "
        f"weights and batches, {counted(len(report.seeds), 'seed')}.",
    )
