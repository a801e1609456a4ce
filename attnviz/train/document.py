"""What ``attnviz train`` has to say: provenance, the curve, what the heads learnt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from attnviz.draw import document as doc
from attnviz.draw.provenance import model_words
from attnviz.train.records import CorpusFacts, ModelScores, ScoredHeads, TrainedModel
from attnviz.train.texts import KIND_WORDS

_NAMED = 2
"""Files of a text that are named; more are counted."""

_LEAD = 12
"""Columns of the names of facts."""

_SHADE = doc.Tint(180)

_BEST = (
    ("previous token", "previous", "text"),
    ("first token", "first", "text"),
    ("duplicate token", "duplicate", "text"),
    ("duplicate, random tokens", "duplicate", "random"),
    ("induction", "induction", "text"),
    ("induction, random tokens", "induction", "random"),
)
"""What a row is called, its score, what that was measured on."""

_EXPLANATION = (
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


def train_document(
    result: TrainedModel, hints: Sequence[str] = (), explain: bool = False
) -> doc.Document:
    """All that one run shows; pages have the scores of every head as well."""
    scores = result.scores
    return doc.Document(
        f"training of {result.model.name}",
        f"{result.model.name}: {result.parameters:,} parameters, trained",
        [
            doc.Group(_about(result)),
            doc.Group([_curve(result)]),
            doc.Group(_facts(result)),
            doc.Group([_best_heads(scores), doc.Say(_copies(scores))]),
            doc.Group([_every_head(scores, "text"), _every_head(scores, "random")], full=True),
        ],
        [doc.Say(text) for text in _EXPLANATION] if explain else (),
        [doc.Note(hint) for hint in hints],
    )


def _about(result: TrainedModel) -> list[doc.Part]:
    """Which model, trained on which text, how: what a reader needs to repeat the run."""
    parts: list[doc.Part] = [
        doc.Facts([*model_words(result.model), (f"seed {result.seed}", False)])
    ]
    for name, text in (("trained", result.train), ("validated", result.valid)):
        words = [f"{name} {_files(text)}", f"{text.bytes:,} bytes", f"{text.tokens:,} tokens"]
        parts.append(doc.Facts([(word, False) for word in (*words, f"digest {text.digest}")]))
    return parts


def _files(text: CorpusFacts) -> str:
    if text.held_out:
        return "on the last tenth of it, which was held out"
    if len(text.files) > _NAMED:
        return f"on {len(text.files):,} files"
    return f"on {' and '.join(text.files)}"


def _curve(result: TrainedModel) -> doc.Plot:
    points = result.points
    windows = f"part of the text in windows of {result.curve_windows:,} tokens"
    measured = [(one.tokens, one.valid_loss) for one in points if one.valid_loss is not None]
    return doc.Plot(
        [("Loss", True), ("nats per token", False)],
        [
            doc.Curve(
                "training loss, mean of the batches", [(one.tokens, one.loss) for one in points]
            ),
            doc.Curve(f"validation loss, {windows}", measured, marked=True),
        ],
        "tokens read",
        marks=[
            doc.Mark(before.tokens, f"phase {after.phase}")
            for before, after in pairwise(points)
            if before.phase != after.phase
        ],
    )


def _facts(result: TrainedModel) -> list[doc.Part]:
    last = result.points[-1]
    shares = sorted(result.shares.items(), key=lambda item: -item[1])
    facts = {
        "parameters": [
            f"{result.parameters:,}",
            f"{result.vocabulary:,} tokens in the vocabulary",
            f"stored in {result.stored}",
        ],
        "trained": [
            f"{last.tokens:,} tokens in {last.step:,} steps",
            _time(last.seconds),
            f"{result.tokens_per_second:,.0f} tokens/s",
            f"matrix products in {result.dtype}",
        ],
        "read": [f"{share:.0%} {KIND_WORDS[kind]}" for kind, share in shares],
        "validation": _validation(result),
        "written": [
            result.directory,
            "weights and tokenizer",
            "README.md, its card",
            "log.csv, its curve",
        ],
    }
    return [doc.Facts([(word, False) for word in facts[name]], name, _LEAD) for name in facts]


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


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _best_heads(scores: ModelScores) -> doc.Table:
    """A row a score: the best head, its score beside that of uniform attention."""
    rows = []
    for words, name, probe in _BEST:
        scored = scores.score(name, probe)
        layer, head, best = scored.best
        error = "" if best.error is None else f"{best.error:.3f}"
        cells = [words, f"{best.mean:.2f}", f"L{layer}H{head}", f"{scored.even:.2f}", error]
        rows.append(doc.Row(cells, (best.mean, 1.0), _SHADE))
    measured = (
        f"the best of each kind, over {scores.windows} validation windows of "
        f"{scores.window_tokens} tokens and {scores.copies} × {scores.copy_tokens} random "
        "tokens that stand there twice"
    )
    columns = [
        doc.Column("", right=False),
        *map(doc.Column, ("score", "best head", "even", "± error")),
    ]
    title = [("What its heads do", True), (measured, False)]
    return doc.Table(columns, rows, title, ranked=True)


def _copies(scores: ModelScores) -> str:
    return (
        f"Random tokens: {scores.first_copy.mean:.2f} nats per token on the first copy, "
        f"{scores.second_copy} on the second, from its second token on"
    )


def _every_head(scores: ModelScores, probe: str) -> doc.Table:
    found = scores_table(scores.of(probe))
    measured = "validation text" if probe == "text" else "random tokens that stand there twice"
    return found._replace(title=[("Every head", True), (f"on {measured}", False)])


def scores_table(scored: Sequence[ScoredHeads]) -> doc.Table:
    """A row a head, a column a score with its standard error, the highest of each strong."""
    best: dict[str, dict[int, doc.Tone]] = defaultdict(dict)
    for place, one in enumerate(scored, start=1):
        layer, head, _ = one.best
        best[f"L{layer}H{head}"][place] = "strong"
    rows = [
        doc.Row([name, *(str(one.heads[layer][head]) for one in scored)], tones=best[name])
        for layer, heads in enumerate(scored[0].heads)
        for head, name in enumerate(f"L{layer}H{head}" for head in range(len(heads)))
    ]
    rows.append(doc.Row(["even", *(f"{one.even:.3f}" for one in scored)], ruled=True))
    return doc.Table(
        [doc.Column("head", right=False), *(doc.Column(one.name) for one in scored)], rows
    )
