"""The screen of ``attnviz train``: model and texts, the learning curve, what the heads learnt."""

from __future__ import annotations

import shlex
from functools import partial
from itertools import pairwise

from attnviz.draw import document as doc
from attnviz.draw.numbers import counted, short_number, spoken_time
from attnviz.draw.provenance import model_words
from attnviz.learn.train.report import FIRST, ModelScores, TrainReport
from attnviz.learn.train.texts import KIND_WORDS

_NAMED = 2  # number of a text's files that are named; if there are more, only their number is shown
_LEAD = 12  # width of the names of facts in columns
_SHADE = doc.Tint(180)

_BEST = (
    ("induction, random tokens", "induction", "random"),
    ("induction", "induction", "text"),
    ("previous token", "previous", "text"),
    ("duplicate, random tokens", "duplicate", "random"),
    ("duplicate token", "duplicate", "text"),
    ("first token (sink)", "first", "text"),
)
"""The label of each row, its score, and what the score was measured on."""


def document(result: TrainReport) -> doc.Document:
    """Return the document of a training."""
    last, name = result.points[-1], shlex.quote(result.directory)
    hints = [
        f'attnviz heads --model {name} "One cat, two cats."',
        f"attnviz diff {shlex.quote(f'{result.directory}/{FIRST}')} {name}: before and after",
        f"attnviz patterns --model {name}",
    ]
    if not result.learnt:
        hints = ["--tokens 2000000 --out NEW: train longer"]
    return doc.Document(
        f"training of {result.model.name}",
        f"{result.model.name}: {result.parameters:,} parameters, trained",
        [
            doc.Group(_about(result)),
            doc.Group([_curve(result)]),
            doc.Group(_facts(result)),
            doc.Group(_heads(result.scores)),
        ],
        doc.Explanation("train", "measured on sequences that are not learnt from."),
        doc.next_steps(hints),
        heading=[
            (result.model.name, True),
            (f"{result.model.layers} layers × {result.model.heads} heads", False),
            (f"{short_number(result.parameters)} parameters", False),
            (f"{short_number(last.tokens)} tokens", False),
            (counted(last.step, "step"), False),
        ],
        quoted=", ".join(result.train.files),
        finding=_finding(result),
        first=partial(_first, result),
    )


def _finding(result: TrainReport) -> str:
    loss, unigram = f"{result.valid_loss:.2f} nats", f"{result.unigram_loss:.2f}"
    if not result.trained:
        return (
            f"Did not train: {counted(result.points[-1].step, 'step')} (loss {loss}, uniform "
            f"baseline {result.even_loss:.2f}); use --tokens."
        )
    if not result.learnt:
        return (
            f"Did not learn: validation loss {loss}, not clearly below token frequencies alone "
            f"(unigram baseline {unigram}); use more --tokens."
        )
    scored = result.scores.score("induction", "random")
    layer, head, best = scored.best
    return (
        f"Validation loss {loss} per token, unigram baseline {unigram}; highest induction score "
        f"{best.mean:.2f} (L{layer}H{head}, uniform {scored.even:.2f})."
    )


def _first(result: TrainReport, columns: int, lines: int) -> doc.Ways:
    """Return the first screen: curve and best heads, side by side if they fit, then the facts."""
    table, note, words = _heads(result.scores)
    facts, heads = doc.Group(_facts(result), yields=1), doc.Group([table._replace(title=())])
    rows = lines - len(table.rows) - 2
    tall = [doc.Group([_curve(result, rows - len(facts.parts) - 2)]), heads, facts]
    short = [doc.Group([_curve(result, rows)]), heads]
    wide = doc.beside(_curve(result, lines - 7), [doc.Group([table, note, words])])
    return doc.Ways([[wide, facts], tall, short])


def _about(result: TrainReport) -> list[doc.Part]:
    parts: list[doc.Part] = [
        doc.Facts([*model_words(result.model), (f"seed {result.recipe.seed}", False)])
    ]
    for name, text in (("trained", result.train), ("validated", result.valid)):
        files = f"on {' and '.join(text.files)}"
        if text.held_out:
            files = "on the last tenth of it, which was held out"
        elif len(text.files) > _NAMED:
            files = f"on {len(text.files):,} files"
        words = [f"{name} {files}", f"{text.bytes:,} bytes", f"{text.tokens:,} tokens"]
        parts.append(doc.Facts([(word, False) for word in (*words, f"digest {text.digest}")]))
    return parts


def _curve(result: TrainReport, lines: int = 15) -> doc.Plot:
    """Return a plot of both losses over the training tokens, with marks where phases begin."""
    points = result.points
    valid = [(point.tokens, point.valid_loss) for point in points if point.valid_loss is not None]
    window = f"validation on windows of {result.recipe.window:,} tokens"
    return doc.Plot(
        [("Loss", True), ("nats per token", False), (window, False)],
        [
            doc.Curve("training", [(point.tokens, point.loss) for point in points]),
            doc.Curve("validation", valid, marked=True),
        ],
        "tokens read",
        marks=[
            doc.Mark(before.tokens, f"phase {after.phase}")
            for before, after in pairwise(points)
            if before.phase != after.phase
        ],
        levels=[doc.Level(result.unigram_loss, f"unigram {result.unigram_loss:.2f}")],
        rows=max(min(lines - 3, 18), 6),  # beside title, axis and legend
    )


def _facts(result: TrainReport) -> list[doc.Part]:
    last = result.points[-1]
    shares = sorted(result.shares.items(), key=lambda item: -item[1])
    perplexity = result.valid_perplexity
    validation = [
        f"{result.valid_loss:.3f} nats per token",
        *([] if perplexity is None else [f"perplexity {perplexity:,.1f}"]),
        f"{result.valid_bits_per_byte:.3f} bits per byte",
        "whole text",
        f"windows of {result.recipe.phase[-1].length:,} tokens",
        f"uniform baseline {result.even_loss:.3f}",
        f"unigram baseline {result.unigram_loss:.3f}",
    ]
    facts = {
        "parameters": [
            f"{result.parameters:,}",
            f"{result.vocabulary:,} tokens in the vocabulary",
            f"stored in {result.recipe.stored}",
        ],
        "trained": [
            f"{last.tokens:,} tokens in {counted(last.step, 'step')}",
            spoken_time(last.seconds),
            f"{result.tokens_per_second:,.0f} tokens/s",
            f"matrix products in {result.recipe.autocast}",
        ],
        "data": [f"{share:.0%} {KIND_WORDS[kind]}" for kind, share in shares],
        "validation": validation,
        "written": [
            result.directory,
            "weights and tokenizer",
            f"{FIRST}/, the model before its first step",
            "README.md, its card",
            "log.csv, its curve",
        ],
    }
    return [doc.Facts([(word, False) for word in facts[name]], name, _LEAD) for name in facts]


def _heads(scores: ModelScores) -> tuple[doc.Table, doc.Note, doc.Say]:
    """Return a table of the best heads beside uniform attention, a note on it, and a sentence."""
    rows = [(words, scores.score(name, probe)) for words, name, probe in _BEST]
    table = doc.table(
        rows,
        doc.ColumnOf("best head", lambda row: row[0], right=False),
        doc.ColumnOf("score", lambda row: f"{row[1].best[2].mean:.2f}"),
        doc.ColumnOf(
            "±", lambda row: "" if (error := row[1].best[2].error) is None else f"{error:.3f}"
        ),
        doc.ColumnOf("uniform", lambda row: f"{row[1].even:.2f}"),
        doc.ColumnOf("head", lambda row: "L{}H{}".format(*row[1].best)),
        row=lambda row: {"bar": (row[1].best[2].mean, 1.0), "tint": _SHADE},
        title=[("Best heads", True)],
        ranked=True,
    )
    measured = (
        f"over {scores.windows} validation windows of {scores.window_tokens} tokens and "
        f"{scores.copies} × {scores.copy_tokens} random tokens, repeated twice"
    )
    copies = (
        f"Random tokens: {scores.first_copy.mean:.2f} nats per token on the first copy, "
        f"{scores.second_copy} on the second, from its second token on"
    )
    return table, doc.Note(measured), doc.Say(copies)
