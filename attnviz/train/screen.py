"""The screen of ``attnviz train``: provenance, the curve, what the heads learnt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.color import Color
from rich.style import Style

from attnviz.draw.blocks import DIM, Block, stack, text_line
from attnviz.draw.curve import Curve, Mark, curve_plot
from attnviz.draw.labels import visible, width
from attnviz.draw.palette import colour_table
from attnviz.draw.prose import paragraph, wrapped
from attnviz.draw.provenance import model_parts
from attnviz.draw.table import Column, table
from attnviz.draw.theme import Theme
from attnviz.train.records import CorpusFacts, CurvePoint, ModelScores, TrainedModel
from attnviz.train.sequences import KIND_WORDS

__all__ = ["EXPLANATION", "best_heads", "provenance", "result_rows", "train_screen"]

_NAMED = 2
"""Files of a text that are named; more are counted."""


def provenance(result: TrainedModel, theme: Theme, room: int) -> Block:
    """Which model, trained on which text, how: what a reader needs to repeat the run."""
    parts = [*model_parts(result.model, theme), (f"seed {result.seed}", False)]
    lines = wrapped(parts, room, theme)
    for name, text in (("trained", result.train), ("validated", result.valid)):
        words = [(f"{name} {_files(text, theme)}", False), *_size(text)]
        lines += wrapped(words, room, theme)
    return Block(tuple(lines), room)


def result_rows(result: TrainedModel, theme: Theme) -> list[tuple[str, list[str]]]:
    """(name, words) of each fact; a line may end between two of the words."""
    last = result.points[-1]
    rows = [
        (
            "parameters",
            [
                f"{result.parameters:,}",
                f"{result.vocabulary:,} tokens in the vocabulary",
                f"stored in {result.stored}",
            ],
        ),
        (
            "trained",
            [
                f"{last.tokens:,} tokens in {last.step:,} steps",
                _time(last.seconds),
                f"{result.tokens_per_second:,.0f} tokens/s",
                f"matrix products in {result.dtype}",
            ],
        ),
        ("read", [f"{share:.0%} {KIND_WORDS[kind]}" for kind, share in _shares(result)]),
        ("validation", _validation(result)),
        (
            "written",
            [
                result.directory,
                "weights and tokenizer",
                "README.md, its card",
                "log.csv, its curve",
            ],
        ),
    ]
    return [(name, [visible(part, theme.encoding) for part in parts]) for name, parts in rows]


def _validation(result: TrainedModel) -> list[str]:
    words = [f"{result.valid_loss:.3f} nats per token"]
    if result.valid_perplexity is not None:
        words.append(f"perplexity {result.valid_perplexity:,.1f}")
    words += [
        f"{result.valid_bits_per_byte:.3f} bits per byte",
        f"whole text, windows of {result.valid_windows:,} tokens",
        f"an even guess has {result.even_loss:.3f} nats",
    ]
    if result.valid_loss > result.even_loss:
        words.append("worse than that: a smaller learning_rate, or more tokens, may help")
    return words


def _shares(result: TrainedModel) -> list[tuple[str, float]]:
    return sorted(result.shares.items(), key=lambda item: -item[1])


def _files(text: CorpusFacts, theme: Theme) -> str:
    if text.held_out:
        return "on the last tenth of it, which was held out"
    if len(text.files) > _NAMED:
        return f"on {len(text.files):,} files"
    return "on " + visible(" and ".join(text.files), theme.encoding)


def _size(text: CorpusFacts) -> list[tuple[str, bool]]:
    return [
        (f"{text.bytes:,} bytes", False),
        (f"{text.tokens:,} tokens", False),
        (f"digest {text.digest}", False),
    ]


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


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


EXPLANATION = (
    "How to read this: the loss is how badly the next token is predicted, in nats; e to the power "
    "of it, the perplexity, is the number of equally likely tokens that would be as hard to guess "
    "among. It falls as the model learns.",
    "Two losses: training loss is on what is learned from, validation loss on text that is never "
    "learned from. Where the first falls on and the second rises while text is read, the model "
    "learns by heart; where nothing but random tokens is read at first, the second rises too.",
    "Bits per byte: the same loss counted by bytes of text; it compares models that cut text into "
    "other tokens.",
    "Repeated tokens: part of what is read are random tokens that stand there twice. Only looking "
    "back helps to predict the second copy, and heads that do it form: induction heads.",
    "Heads: a score is the share of a head's attention that goes where the name says, of 1; even "
    "is what a head gets that looks everywhere alike. The error is that of a mean over sequences.",
)


def train_screen(
    result: TrainedModel, theme: Theme, room: int, hints: Sequence[str] = (), explain: bool = False
) -> Block:
    """Everything that one run shows, in ``room`` columns."""
    parts = [
        provenance(result, theme, room),
        _curve(result, theme, room),
        _rows(result_rows(result, theme), theme, room),
        best_heads(result, theme, room),
    ]
    if explain:
        parts.append(stack([paragraph(line, room, theme) for line in EXPLANATION], gap=0))
    if hints:
        safe = [visible(hint, theme.encoding) for hint in hints]
        parts.append(stack([paragraph(hint, room, theme, DIM) for hint in safe], gap=0))
    return stack(parts)


def _curve(result: TrainedModel, theme: Theme, room: int) -> Block:
    points = result.points
    measured = [(one.tokens, one.valid_loss) for one in points if one.valid_loss is not None]
    curves = [
        Curve("training loss, mean of the batches", [(one.tokens, one.loss) for one in points]),
        Curve(
            f"validation loss, part of the text in windows of {result.curve_windows:,} tokens",
            measured,
            marked=True,
        ),
    ]
    return curve_plot(curves, theme, room, across="tokens read", marks=_phases(points))


def _phases(points: Sequence[CurvePoint]) -> list[Mark]:
    """Where each phase but the first begins."""
    return [
        Mark(before.tokens, f"phase {after.phase}")
        for before, after in pairwise(points)
        if before.phase != after.phase
    ]


def _rows(rows: Sequence[tuple[str, Sequence[str]]], theme: Theme, room: int) -> Block:
    """Names at the left, what they stand for beside them, broken where a line is full."""
    lead = max(width(name) for name, _ in rows) + 2
    lines = []
    for name, words in rows:
        parts = [(part, False) for part in words]
        found = wrapped(parts, max(room - lead, 1), theme)
        for number, line in enumerate(found):
            lines.append([*text_line((("" if number else name).ljust(lead), DIM)), *line])
    return Block(tuple(lines), room)
