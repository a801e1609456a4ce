"""What a command plans to do with a model, by which NumPy or torch is chosen to run it.

Each question that runs a model says it in its function ``work``, before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # these import NumPy, which options do without
    from attnviz.models.operations import ModelSizes
    from attnviz.models.stack_model import StackModel


Reads = Literal["text", "picture", "picture and text", "sound"]


@dataclass(frozen=True)
class Work:
    """The work that a command plans to do with a model; without arguments, work for torch alone.

    tokens: about how many the model runs on in all; None if torch must run it. texts: in how many
        texts or runs, of about one length. changed: whether they are run again with each head
        changed. joined: whether a second text is joined to each.
    logits: whether a logit is explained, so that a checkpoint without a head is refused before its
        weights are read.
    reads: what the model reads; all but a text alone only torch does.
    built_in: whether NumPy can do it with a built-in model only, and torch does with checkpoints.
    fits: returns whether NumPy can do it with this checkpoint.
    """

    tokens: int | None = None
    texts: int = 1
    changed: bool = False
    joined: bool = False
    logits: bool = False
    reads: Reads = "text"
    built_in: bool = False
    fits: Callable[[StackModel], bool] = lambda model: True

    @property
    def length(self) -> int:
        """Return about how many tokens one of the texts has."""
        return (self.tokens or 0) // self.texts

    def operations(self, sizes: ModelSizes) -> float:
        """Return how many operations the planned work takes. sizes: of the model."""
        length = max(1, self.length)
        if not self.changed:
            return self.texts * sizes.forward(length)
        return self.texts * sizes.changed(length, sizes.every_head())


ON_TORCH = Work()
"""Work that only torch does, whatever its amount."""

CORPUS_WORK = Work(10**6, texts=10**4)
"""The work over a corpus: the same for all shards, which must use one backend."""


def about_tokens(*texts: str) -> int:
    """Return a rough number of tokens of texts without a tokenizer: a quarter of their bytes."""
    return sum(len(text.encode(errors="replace")) // 4 + 3 for text in texts)
