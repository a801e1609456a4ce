"""The card of a trained model: its recipe, its results, the scores of its heads."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from attnviz import __version__
from attnviz.draw.document import Column, Row, Say, Table, Tone
from attnviz.draw.markdown import part_markdown
from attnviz.draw.numbers import counted
from attnviz.learn.train.recipe import Card, Recipe
from attnviz.learn.train.report import ScoredHeads, TrainReport
from attnviz.learn.train.scores import SCORED
from attnviz.learn.train.tables import table_text
from attnviz.learn.train.texts import KIND_WORDS, Corpus
from attnviz.measures.registry import MEASURES

_LOOK = """```sh
attnviz heads --model THIS_DIRECTORY "The cat sat on the mat because the cat was tired."
attnviz patterns --model THIS_DIRECTORY
```

transformers reads the same files: `LlamaForCausalLM.from_pretrained("THIS_DIRECTORY")`."""


def card_text(result: TrainReport, recipe: Recipe, train: Corpus, valid: Corpus) -> str:
    """Return the whole model card of a trained model, Markdown with YAML in front.

    result, recipe: of the training. train, valid: the texts for training and for validation.
    """
    name = recipe.card.name or Path(result.directory).resolve().name
    parts = [
        _front(result, recipe, name),
        f"# {_plain(name)}",
        _what(result),
        "## Look at it",
        _LOOK,
        "## Data",
        *_data(recipe, result, train, valid),
        "## Recipe",
        *_recipe(result, recipe),
        "## Results",
        *_results(result),
        "## Limits",
        *_limits(result, recipe),
    ]
    return "\n\n".join(parts) + "\n"


def _front(result: TrainReport, recipe: Recipe, name: str) -> str:
    """Return the YAML front matter of a model card; strings are quoted as in JSON."""
    card, scores = recipe.card, result.scores
    on_text = [
        ("loss", result.valid_loss, "validation loss, nats per token"),
        ("bits_per_byte", result.valid_bits_per_byte, "validation loss, bits per byte"),
    ]
    if (perplexity := result.valid_perplexity) is not None:
        on_text.append(("perplexity", perplexity, "validation perplexity per token"))
    on_random = [("loss", scores.second_copy.mean, "second copy, nats per token")]
    text = "held-out tenth of the text" if result.valid.held_out else "validation text"
    lines = ["---"]
    lines += [f"license: {json.dumps(card.license)}"] if card.license else []
    lines += [f"language: {json.dumps(card.language)}"] if card.language else []
    lines += [
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [attnviz, attention, interpretability, llama]",
        "model-index:",
        f"- name: {json.dumps(name)}",
        "  results:",
        *_measured(text, "text", on_text),
        *_measured("random tokens that repeat", "synthetic", on_random),
    ]
    return "\n".join([*lines, "---"])


def _measured(dataset: str, kind: str, metrics: Sequence[tuple[str, float, str]]) -> Iterator[str]:
    yield "  - task: {type: text-generation}"
    yield f"    dataset: {{name: {json.dumps(dataset)}, type: {kind}}}"
    yield "    metrics:"
    for metric, value, words in metrics:
        yield f"    - {{type: {metric}, value: {value:.4f}, name: {json.dumps(words)}}}"


def _what(result: TrainReport) -> str:
    model = result.model
    return (
        f"A decoder language model of Llama's architecture with {result.parameters:,} parameters: "
        f"{model.layers} layers of {model.heads} heads of {model.head_dim}, width "
        f"{result.d_model:,}, a byte-level BPE vocabulary of {result.vocabulary:,} tokens, tied "
        f"embeddings, stored in {result.stored}. Trained from scratch with `attnviz train` "
        f"(attnviz {__version__}), whose own attention it is made of. Revision `{model.revision}` "
        "is a digest of its tensors."
    )


def _data(recipe: Recipe, result: TrainReport, train: Corpus, valid: Corpus) -> Iterator[str]:
    yield from _paragraphs(recipe.card.data)
    whole = "" if not valid.held_out else ", without the last tenth of the text"
    yield (
        f"Trained on {counted(len(train.names), 'file')}{whole}: {train.bytes:,} bytes, "
        f"{result.train.tokens:,} tokens (digest `{train.digest}`)."
    )
    yield _file_table(train)
    if valid.held_out:
        yield (
            f"Validated on the last tenth of the same text, {valid.bytes:,} bytes, "
            f"{result.valid.tokens:,} tokens, which it did not learn from."
        )
        return
    yield (
        f"Validated on {counted(len(valid.names), 'file')} that it never saw: {valid.bytes:,} "
        f"bytes, {result.valid.tokens:,} tokens (digest `{valid.digest}`)."
    )
    yield _file_table(valid)


def _file_table(corpus: Corpus) -> str:
    titles = {"file": False, "bytes": True, "SHA-256 begins": False}
    rows = [Row([name, f"{size:,}", digest]) for name, size, digest in corpus.files]
    return part_markdown(Table([Column(*title) for title in titles.items()], rows))


def _recipe(result: TrainReport, recipe: Recipe) -> Iterator[str]:
    last = result.points[-1]
    shares = ", ".join(f"{share:.1%} {KIND_WORDS[kind]}" for kind, share in result.shares.items())
    yield (
        f"{last.tokens:,} tokens in {last.step:,} steps and {_time(last.seconds)} on "
        f"{result.model.device}, matrix products in {result.dtype}, weights and AdamW in float32, "
        f"seed {result.seed}. Of the tokens read: {shares}. The vocabulary was made from the "
        "training text. `log.csv` holds the curve."
    )
    if not result.finished:
        yield "The budget was not used up: these are the weights at the point of the last save."
    bare = replace(recipe, card=Card())  # its words are in other sections
    yield f"The recipe, to be given with `--config`:\n\n```toml\n{table_text(bare)}```"
    yield (
        "To train it again: `attnviz train FILES --valid FILES --config recipe.toml --out DIR` "
        "with the files above"
        + (", without `--valid`." if result.valid.held_out else ".")
        + (
            ""
            if recipe.budget.tokens
            else " A budget in minutes reads as many tokens as the machine manages in them: "
            f"`--tokens {last.tokens}` reads as many as were read here."
        )
    )


def _results(result: TrainReport) -> Iterator[str]:
    scores = result.scores
    known = result.valid_perplexity
    perplexity = "" if known is None else f" (perplexity {known:.1f})"
    read = "the whole" if result.whole else f"the first {result.valid_tokens:,} tokens of the"
    yield (
        f"On {read} validation text, in windows of {result.valid_windows:,} tokens: "
        f"**{result.valid_loss:.3f} nats per token**{perplexity}, "
        f"**{result.valid_bits_per_byte:.3f} bits per byte**."
    )
    yield (
        f"On {scores.copies} sequences of {scores.copy_tokens} random tokens and one copy of them "
        f"(seed {scores.seed}, not drawn in training): first copy "
        f"{scores.first_copy} nats per token, second copy **{scores.second_copy}**, from "
        "its second token on: its first is not predictable."
    )
    yield (
        "What its heads do, measured in float32 from the stored weights, mean over sequences ± "
        "standard error; *uniform* is the same measure of uniform attention over what each "
        f"token sees; the highest of a column is bold. On {scores.windows} windows of "
        f"{scores.window_tokens} tokens of validation text:"
    )
    yield part_markdown(scores_table(scores.of("text")))
    yield f"On the {scores.copies} sequences of random tokens:"
    yield part_markdown(scores_table(scores.of("random")))
    yield "\n".join(f"- *{name}*: {MEASURES[name].text}" for name in SCORED) + (
        "; on random tokens over the second copy's tokens only"
    )


def scores_table(scored: Sequence[ScoredHeads]) -> Table:
    """Return a table with a row per head and a column per score, the highest of each in bold."""
    best: dict[str, dict[int, Tone]] = defaultdict(dict)
    for column, score in enumerate(scored, start=1):
        layer, head, _ = score.best
        best[f"L{layer}H{head}"][column] = "strong"
    rows = [
        Row([name, *(str(score.heads[layer][head]) for score in scored)], tones=best[name])
        for layer, heads in enumerate(scored[0].heads)
        for head, name in enumerate(f"L{layer}H{head}" for head in range(len(heads)))
    ]
    rows.append(Row(["uniform", *(f"{score.even:.3f}" for score in scored)], ruled=True))
    return Table([Column("head", right=False), *(Column(score.name) for score in scored)], rows)


def _limits(result: TrainReport, recipe: Recipe) -> Iterator[str]:
    yield from _paragraphs(recipe.card.limits)
    longest = max(phase.length for phase in recipe.phases)
    yield (
        f"A toy: {result.parameters:,} parameters and {result.points[-1].tokens:,} tokens make "
        "heads worth looking at, not answers worth trusting. Of the world it knows nothing but its "
        "training text, in that text's language and age, and repeats its prejudices. In training "
        f"no sequence was longer than {longest:,} tokens; it accepts up to "
        f"{recipe.model.context:,}."
    )


def _time(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.1f} minutes"


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text that the user wrote, with Markdown and HTML escaped."""
    return [_plain(part) for part in re.split(r"\n\s*\n", text) if part.strip()]


def _plain(text: str) -> str:
    return part_markdown(Say(text))
