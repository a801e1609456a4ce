"""What ``attnviz sweep`` has to say: provenance, losses by number of heads, what the heads do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from rich.segment import Segment

from attnviz.draw import document as doc
from attnviz.draw.blocks import BOLD, DIM, Block, Line
from attnviz.draw.labels import fit, width
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import counted, share
from attnviz.draw.scale import weight_steps
from attnviz.draw.theme import Theme
from attnviz.sweep.findings import findings, nats
from attnviz.sweep.records import PatternScore, Reference, SweepModel, SweepReport, SweepTask
from attnviz.train.records import CurvePoint

_LONGEST = 100
_LEAD = 7
_PLACES = 200

CurvesByHeads = Mapping[int, Sequence[Sequence[CurvePoint]]]
"""By the number of heads the curve of each seed."""


def sweep_document(
    report: SweepReport, hints: Sequence[str] = (), explain: bool = False
) -> doc.Document:
    """All that one sweep shows; at least one model is trained."""
    curves = {heads: [model.points for model in report.of(heads)] for heads in report.measured}
    counts = ", ".join(map(str, report.measured))
    one = "head" if report.measured == (1,) else "heads"
    return doc.Document(
        f"sweep over heads on {report.task.name}",
        f"The same decoder with {counts} {one}: {report.task.name}",
        [
            doc.Group(_about(report)),
            doc.Group([doc.Note(note, _LONGEST) for note in report.notes]),
            doc.Group([curves_plot(curves)]),
            doc.Group([_results(report)]),
            doc.Group([_patterns(report)]),
            doc.Group([doc.Say(text, _LONGEST) for text in findings(report)]),
        ],
        [doc.Say(text, _LONGEST) for text in _explanation(report)] if explain else (),
        [doc.Facts([(hint, False) for hint in hints])] if hints else (),
    )


def _about(report: SweepReport) -> list[doc.Part]:
    """The model, the task and the training."""
    model = [
        "attnviz's own decoder",
        f"{counted(report.layers, 'layer')} of width {report.d_model}",
        f"feed-forward {report.d_ff}",
        f"float32 on {report.device}",
        counted(report.threads, "thread"),
        _seeds(report.seeds),
        _parameter_words(report),
    ]
    known = "" if report.task.text is not None else " that can be known"
    training = [
        f"{report.steps:,} steps of {report.batch} × {report.task.length} tokens",
        "the same first weights and batches for every number of heads",
        f"AdamW, learning rate {report.learning_rate:.3g}, warm-up and cosine",
        f"measured on {report.held_out:,} other sequences",
        f"{report.predictions:,} predictions{known}",
    ]
    return [
        doc.Facts([(words, not place) for place, words in enumerate(model)]),
        doc.Facts([(_task_words(report.task), False)], "task", _LEAD),
        doc.Facts([(words, False) for words in training], "run", _LEAD),
    ]


def _task_words(task: SweepTask) -> str:
    """The task's name and what it asks for, in one sentence."""
    if task.text is None:
        return f"{task.name}: {task.words}"
    names = ", ".join(task.text.files)
    return (
        f"{task.name}: {task.words}, {names} ({task.text.bytes:,} bytes, digest "
        f"{task.text.digest}); its last tenth is held out"
    )


def _parameter_words(report: SweepReport) -> str:
    """How many numbers are trained, and whether that depends on the heads."""
    counts = {model.heads: model.parameters for model in report.models}
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{count:,} with {heads}" for heads, count in sorted(counts.items()))
        return f"parameters: {each} heads"
    same = " whatever the heads" if len(counts) > 1 else ""
    return f"{next(iter(counts.values())):,} parameters{same}"


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"seeds {seeds[0]} to {seeds[-1]}"


# Curves and results --------------------------------------------------------------------------


def curves_plot(curves: CurvesByHeads, rows: int = 12) -> doc.Plot:
    """A line a number of heads; each point is the mean over the seeds that have got there."""
    drawn = [
        doc.Curve(f"{counted(heads, 'head')}, mean of {counted(len(seeds), 'seed')}", _mean(seeds))
        for heads, seeds in sorted(curves.items())
        if any(seeds)
    ]
    title = [
        ("Loss while training", True),
        ("nats per counted prediction, of batches that were never seen before", False),
    ]
    return doc.Plot(title, drawn, "steps", rows=rows)


def _mean(seeds: Sequence[Sequence[CurvePoint]]) -> list[tuple[float, float]]:
    """The mean of the seeds at each of their points, and on the straight lines between.

    The plot puts the signs that tell curves apart without colour at points, and needs enough.
    """
    losses: dict[int, list[float]] = {}
    for points in seeds:
        for point in points:
            losses.setdefault(point.step, []).append(point.loss)
    steps = sorted(losses)
    means = [sum(losses[step]) / len(losses[step]) for step in steps]
    places = sorted({*steps, *np.linspace(steps[0], steps[-1], _PLACES)})
    return list(zip(map(float, places), np.interp(places, steps, means).tolist(), strict=True))


def _results(report: SweepReport) -> doc.Table:
    """A row a rule and a number of heads; a bar is as long as the loss."""
    task = report.task
    rows = [*map(_rule, (task.chance, *task.between))]
    rows += [_trained(report, heads) for heads in report.measured]
    rows += [_rule(task.best)] if task.best is not None else []
    limit = max(loss for _, loss in rows)
    several = len(report.seeds) > 1
    columns = [
        doc.Column("", right=False),
        doc.Column("loss"),
        *[doc.Column("±")] * several,
        doc.Column("right"),
        *[doc.Column("±")] * several,
        *map(doc.Column, ("head width", "ms/step", "parameters", "seeds")),
    ]
    spreads = () if several else (2, 4)
    shown = [
        doc.Row([cell for place, cell in enumerate(cells) if place not in spreads], (loss, limit))
        for cells, loss in rows
    ]
    title = [
        ("On held-out sequences", True),
        ("loss in nats per prediction", False),
        ("right: the likeliest answer is", False),
    ]
    title += [("mean over seeds ± standard deviation", False)] if several else []
    return doc.Table(columns, shown, title, ranked=True)


def _rule(rule: Reference) -> tuple[list[str], float]:
    """The cells of what needs no training, and its loss."""
    cells = [rule.name, nats(rule.loss), "", f"{rule.accuracy:.1%}", "", "", "", "", ""]
    return cells, rule.loss


def _trained(report: SweepReport, heads: int) -> tuple[list[str], float]:
    """The cells of a number of heads, and its mean loss."""

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


# Patterns ------------------------------------------------------------------------------------

_CELL = 12
_GAP = 1
_EVEN = 6
_LONGEST_NAME, _SHORTEST_NAME = 24, 6


def _patterns(report: SweepReport) -> doc.HeadGrid:
    """A row a pattern, a column a number of heads: the best head, coloured by its score."""
    first = report.of(report.measured[0])[0].patterns
    cells = {
        (row, column): _best(report, heads, pattern)
        for row, pattern in enumerate(first)
        for column, heads in enumerate(report.measured)
    }
    grid = doc.HeadGrid(
        [pattern.words for pattern in first],
        [counted(heads, "head") for heads in report.measured],
        cells,
        _pattern_title(report),
        scale=doc.WEIGHTS._replace(words="share", after="colour: square root of the share"),
        aside=("even", [share(pattern.even) for pattern in first]),
    )
    return grid._replace(screen=lambda theme, room: _patterns_block(grid, theme, room))


def _best(report: SweepReport, heads: int, pattern: PatternScore) -> doc.Cell:
    """The mean score of the best heads, and the name of the first seed's."""
    best = [model.pattern(pattern.name) for model in report.of(heads)]
    score = sum(one.score for one in best) / len(best)
    step = int(weight_steps(np.array(min(score, 1.0))))
    text = f"{share(score)} L{best[0].layer}H{best[0].head}"
    return doc.Cell(min(score, 1.0), doc.Tint(step), text)


def _pattern_title(report: SweepReport) -> doc.Words:
    parts = [
        ("What the heads look at", True),
        ("share of its attention that the best head has there", False),
        ("even: attention spread evenly", False),
    ]
    if len(report.seeds) > 1:
        parts.append((f"mean over seeds, the head is seed {report.seeds[0]}'s", False))
    return parts


def _patterns_block(grid: doc.HeadGrid, theme: Theme, room: int) -> Block:
    """Wide cells, as many columns as there is room for."""
    named = max(min(max(map(width, grid.rows)), _LONGEST_NAME), 1)
    named = max(min(named, room - _EVEN - _GAP - _CELL), _SHORTEST_NAME)
    shown = grid.columns[: max((room - named - _EVEN) // (_CELL + _GAP), 1)]
    even = _EVEN if room >= named + _EVEN + _GAP + _CELL else 0
    assert grid.aside is not None
    title, aside = grid.aside
    head = " " * named + title.rjust(even)[:even]
    head += "".join(" " * _GAP + name.center(_CELL) for name in shown)
    lines: list[Line] = [[Segment(head.rstrip(), DIM)]]
    for row, (name, beside) in enumerate(zip(grid.rows, aside, strict=True)):
        line = [
            Segment(fit(name, named, theme.ellipsis), BOLD),
            Segment(beside.rjust(even)[:even], DIM),
        ]
        for column in range(len(shown)):
            cell = grid.cells[row, column]
            assert cell.tint is not None
            line += [Segment(" " * _GAP), theme.cells(cell.tint.step, _CELL, cell.text)]
        lines.append(line)
    left_out = len(grid.columns) - len(shown)
    more = [(f"{left_out} more are in --json", False)] if left_out else []
    return Block((*wrapped([*grid.title, *more], room, theme), *lines), room)


def _explanation(report: SweepReport) -> list[str]:
    """Paragraphs, each of which begins with words and a colon."""
    widths = ", ".join(str(report.d_model // heads) for heads in report.measured)
    lines = [
        "How to read this: the same small model is trained again and again; only the number of "
        f"heads that its width of {report.d_model} is cut into changes (heads as wide as "
        f"{widths}). The parameters are as many and begin with the same values, and the batches "
        "are the same, so that nothing but the heads can make the difference.",
        "Loss: how surprised the model is by the right answer, in nats; 0 is certainty. Chance is "
        "an answer drawn evenly from all, and a loss far below it was learned.",
        "Seeds: every training is repeated from other first weights and other batches. What "
        "differs by less than the seeds do is no finding.",
        "Heads: a head spreads its attention, which sums to one, over the tokens before. With two "
        "tokens to find one head must share it, two heads need not. But more heads are narrower "
        "ones; what that costs, or does not, is in the table.",
    ]
    if report.task.name == "induction":
        lines.append(
            "Induction: to say what followed this letter before, one layer finds for each token "
            "the letter before it, and the next layer looks for the place where that letter "
            "stood. Where strands take turns, letters at two distances must be found."
        )
    return lines
