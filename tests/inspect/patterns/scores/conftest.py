"""Models whose heads are known: scripted matrices, and two layers with weights set by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from attnviz.models.model import Vocabulary
from attnviz.records import Kind, ModelInfo, Tokens

from ....small_models import ShowsWeights

Head = Callable[[Tokens], np.ndarray]

WORDS = 128
"""Vocabulary and context of the models below; token 0 begins every text."""


class WordModel(ShowsWeights):
    """Words become tokens in order of their first appearance, behind a first special token."""

    kinds: tuple[Kind, ...] = ("self",)
    context = WORDS

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        words = text.split()
        numbers = {word: 1 + n for n, word in enumerate(dict.fromkeys(words))}
        ids = (0, *(numbers[word] for word in words))[:limit]
        texts = ("<s>", *(f" {word}" for word in words))[:limit]
        return Tokens(ids, texts, tuple(number == 0 for number in ids))

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(
            np.arange(1, WORDS),
            Tokens((0,), ("<s>",), (True,)),
            Tokens((), (), ()),
            ranked=False,
            texts=lambda ids: tuple(f" w{number}" for number in ids),
        )

    def notes_for(self, tokens: Tokens) -> tuple[str, ...]:
        return ()


class ScriptedModel(WordModel):
    """Each head is a function from the tokens to its (query, key) matrix."""

    def __init__(self, layers: Sequence[Sequence[Head]]) -> None:
        self._layers = layers
        self._numbers = {"<s>": 0}
        heads = len(layers[0])
        self.info = ModelInfo("made", None, "None", "float64", len(layers), heads, heads, 2)

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """Words have one number in all texts, so that ids tell them."""
        tokens = super().encode(text, limit)
        ids = tuple(self._numbers.setdefault(word, len(self._numbers)) for word in tokens.texts)
        return replace(tokens, ids=ids)

    def run_rows(
        self,
        ids: Sequence[Sequence[int]],
        rows: int,
        wants: Callable,
        observe: Callable,
        *,
        norms: bool = False,
    ) -> None:
        words = {number: word for word, number in self._numbers.items()}
        texts = [Tokens.bare(text) for text in ids]
        texts = [replace(one, texts=tuple(words.get(n, "") for n in one.ids)) for one in texts]
        for layer, heads in enumerate(self._layers):
            if wants(layer):
                whole = np.stack([[head(text) for head in heads] for text in texts])
                for start in range(0, len(ids[0]), rows):
                    observe(layer, start, whole[:, :, start : start + rows], None)


def at(offset: int) -> Head:
    """All weight on the key ``offset`` away, at the edges on the nearest there is."""

    def head(tokens: Tokens) -> np.ndarray:
        n = len(tokens)
        weights = np.zeros((n, n))
        weights[np.arange(n), np.clip(np.arange(n) + offset, 0, n - 1)] = 1
        return weights

    return head


def first(tokens: Tokens) -> np.ndarray:
    weights = np.zeros((len(tokens),) * 2)
    weights[:, 0] = 1
    return weights


def even(tokens: Tokens) -> np.ndarray:
    weights = np.tril(np.ones((len(tokens),) * 2))
    return weights / weights.sum(1, keepdims=True)


def latest_equal(behind: int) -> Head:
    """All weight ``behind`` tokens after the latest equal earlier token; else all on the first."""

    def head(tokens: Tokens) -> np.ndarray:
        weights = np.zeros((len(tokens),) * 2)
        for i, token in enumerate(tokens.ids):
            found = [j for j in range(i) if tokens.ids[j] == token and j + behind < i]
            weights[i, found[-1] + behind if found else 0] = 1
        return weights

    return head


def marks(tokens: Tokens) -> np.ndarray:
    """Evenly on the words that end a phrase, on itself before the first one."""
    ends = [place for place, text in enumerate(tokens.texts) if text.strip() in (".", ",")]
    weights = np.zeros((len(tokens),) * 2)
    for i in range(len(tokens)):
        seen = [j for j in ends if j <= i] or [i]
        weights[i, seen] = 1 / len(seen)
    return weights


HEADS: Mapping[str, Head] = {
    "previous": at(-1),
    "first": first,
    "self": at(0),
    "duplicate": latest_equal(0),
    "induction": latest_equal(1),
    "delimiter": marks,
}


@pytest.fixture
def known_heads() -> Mapping[str, Head]:
    """Of each label a causal head that does nothing else."""
    return HEADS


@pytest.fixture
def scripted() -> Callable[..., ScriptedModel]:
    """Makes a model of given heads: ``scripted([[head, head], [head, head]])``."""
    return ScriptedModel


@pytest.fixture
def even_head() -> Head:
    return even


@pytest.fixture
def next_head() -> Head:
    return at(1)
