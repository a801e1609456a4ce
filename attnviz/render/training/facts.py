"""What is said of a training run in words: the model, its texts, what came out."""

from __future__ import annotations

from attnviz.learning import CorpusFacts, TrainedModel
from attnviz.render.blocks import Block
from attnviz.render.facts import model_parts
from attnviz.render.labels import visible
from attnviz.render.prose import wrapped
from attnviz.render.theme import Theme
from attnviz.render.training.kinds import KIND_WORDS

__all__ = ["provenance", "result_rows"]

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
