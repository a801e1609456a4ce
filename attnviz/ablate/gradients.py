"""The heads in the order of their gradient importance."""

from __future__ import annotations

from attnviz.ablate.numbers import NumberScale
from attnviz.ablate.order import traits_of
from attnviz.ablate.view import AblationView
from attnviz.draw.blocks import Block
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import trait_text
from attnviz.draw.table import Column, table
from attnviz.draw.theme import Theme
from attnviz.engine.effects import AblationReport

__all__ = ["gradient_order", "gradient_ranking"]

_TRAIT_ROOM = 14


def gradient_order(report: AblationReport) -> list[tuple[int, int]]:
    """Every head with a gradient, the most important first."""
    return sorted(report.gradients, key=lambda head: -report.gradients[head])


def gradient_ranking(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    """A row a head: bar, estimate, pattern."""
    heads = gradient_order(report)[: view.top]
    scale = NumberScale(max(report.gradients.values(), default=0.0), signed=False)
    names = [f"L{layer + view.index_base}H{head + view.index_base}" for layer, head in heads]
    values = [report.gradients[head] for head in heads]
    power = f" x 1e{scale.power}" if scale.power else ""
    columns = [Column(f"gradient{power}", [scale.text(value) for value in values])]
    traits = traits_of(view)
    if any(head in traits for head in heads):
        cells = [trait_text(traits[h], _TRAIT_ROOM) if h in traits else "" for h in heads]
        columns.append(Column("pattern", cells, left=True))
    title = wrapped([("The heads that the gradient ranks highest", True)], room, theme)
    return Block((*title, *table(names, values, scale.limit, columns, theme, room).lines), room)
