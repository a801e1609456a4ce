"""The heads that do most of what the literature describes, of a model that was just trained."""

from __future__ import annotations

from rich.color import Color
from rich.style import Style

from attnviz.learning import ModelScores, TrainedModel
from attnviz.render.ablation.table import Column, table
from attnviz.render.blocks import Block
from attnviz.render.palette import colour_table
from attnviz.render.prose import paragraph, wrapped
from attnviz.render.theme import Theme

__all__ = ["best_heads"]

_SHADE = 180
"""The step of the palette that the bars have."""

_ROWS = (
    ("previous token", "previous", "text"),
    ("first token", "first", "text"),
    ("duplicate token", "duplicate", "text"),
    ("duplicate, random tokens", "duplicate", "random"),
    ("induction", "induction", "text"),
    ("induction, random tokens", "induction", "random"),
)
"""What a row is called, its score, what that was measured on."""


def best_heads(result: TrainedModel, theme: Theme, room: int) -> Block:
    """A row a score: the best head, its score beside that of even attention."""
    scores = result.scores
    found = [(words, scores.score(name, probe)) for words, name, probe in _ROWS]
    best = [scored.best for _, scored in found]
    sign = "+-" if theme.ascii else "±"
    columns = [
        Column("score", [f"{estimate.mean:.2f}" for _, _, estimate in best]),
        Column("best head", [f"L{layer}H{head}" for layer, head, _ in best]),
        Column("even", [f"{scored.even:.2f}" for _, scored in found]),
        Column(
            f"{sign} error",
            ["" if one.error is None else f"{one.error:.3f}" for _, _, one in best],
        ),
    ]
    names = [words for words, _ in found]
    values = [estimate.mean for _, _, estimate in best]
    shade = Style(color=Color.from_rgb(*colour_table(theme.palette)[_SHADE]))
    drawn = table(names, values, 1.0, columns, theme, room, shade)
    title = wrapped([("What its heads do", True), (_measured(scores, theme), False)], room, theme)
    copies = paragraph(_copies(scores, sign), room, theme)
    return Block((*title, *drawn.lines, *copies.lines), room)


def _measured(scores: ModelScores, theme: Theme) -> str:
    times = "x" if theme.ascii else "×"
    return (
        f"the best of each kind, over {scores.windows} validation windows of "
        f"{scores.window_tokens} tokens and {scores.copies} {times} {scores.copy_tokens} random "
        "tokens that stand there twice"
    )


def _copies(scores: ModelScores, sign: str) -> str:
    first, second = scores.first_copy, scores.second_copy
    error = "" if second.error is None else f" {sign} {second.error:.3f}"
    return (
        f"Random tokens: {first.mean:.2f} nats per token on the first copy, {second.mean:.3f}"
        f"{error} on the second, from its second token on"
    )
