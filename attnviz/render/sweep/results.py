"""Loss and accuracy of each number of heads, between chance and the best that is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attnviz.render.ablation.table import Column, table
from attnviz.render.blocks import Block
from attnviz.render.prose import wrapped
from attnviz.render.sweep.numbers import heads_name, milliseconds, nats, percent
from attnviz.render.theme import Theme
from attnviz.sweeping import Reference, Spread, SweepModel, SweepReport

__all__ = ["results"]


def results(report: SweepReport, theme: Theme, room: int) -> Block:
    """A row a rule and a number of heads; a bar is as long as the loss."""
    task, trained = report.task, report.measured
    above = [task.chance, *task.between]
    below = [task.best] if task.best is not None else []
    losses = [report.spread(heads, lambda model: model.loss) for heads in trained]
    right = [report.spread(heads, lambda model: model.accuracy) for heads in trained]

    def column(title: str, rule: Callable[[Reference], str], cells: Sequence[str]) -> Column:
        return Column(title, [*map(rule, above), *cells, *map(rule, below)])

    sign = "+-" if theme.ascii else "±"

    def spreads(values: Sequence[Spread], show: Callable[[float], str]) -> list[str]:
        return ["" if one.deviation is None else show(one.deviation) for one in values]

    columns = [
        column("loss", lambda rule: nats(rule.loss), [nats(one.mean) for one in losses]),
        column(sign, _nothing, spreads(losses, nats)),
        column("right", lambda rule: percent(rule.accuracy), [percent(one.mean) for one in right]),
        column(sign, _nothing, spreads(right, percent)),
        column("head width", _nothing, [str(report.d_model // heads) for heads in trained]),
        column("ms/step", _nothing, [milliseconds(_step(report, heads)) for heads in trained]),
        column(
            "parameters", _nothing, [f"{report.of(heads)[0].parameters:,}" for heads in trained]
        ),
        column("seeds", _nothing, [str(len(report.of(heads))) for heads in trained]),
    ]
    if len(report.seeds) == 1:
        columns = [each for each in columns if each.title != sign]
    names = [rule.name for rule in above] + [*map(heads_name, trained)]
    names += [rule.name for rule in below]
    values = [rule.loss for rule in above] + [one.mean for one in losses]
    values += [rule.loss for rule in below]
    drawn = table(names, values, max(values), columns, theme, room)
    return Block((*wrapped(_title(report, sign), room, theme), *drawn.lines), room)


def _title(report: SweepReport, sign: str) -> list[tuple[str, bool]]:
    parts = [
        ("On held-out sequences", True),
        ("loss in nats per prediction", False),
        ("right: the likeliest answer is", False),
    ]
    if len(report.seeds) > 1:
        parts.append((f"mean over seeds {sign} standard deviation", False))
    return parts


def _nothing(rule: Reference) -> str:
    return ""


def _step(report: SweepReport, heads: int) -> float:
    def seconds(model: SweepModel) -> float:
        return model.step_seconds

    return report.spread(heads, seconds).mean
