"""``mha``: the library's own attention with random weights, over the words of a sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Score
from attnviz.attention.numpy_attention import NarrowAttention, NumpyAttention, to_bfloat16
from attnviz.errors import UsageError
from attnviz.models.memory import require_room
from attnviz.models.model import (
    ChatTemplate,
    ObserveBlock,
    ObserveOutputs,
    ObserveQueriesKeys,
    Placed,
    Texts,
    Vocabulary,
    Wants,
    model_repr,
    placed_words,
    split_words,
    word_tokens,
)
from attnviz.records import Bools, Kind, ModelInfo, Tokens

PADDING = "PAD"  # the word that fills the shorter text of a batch up to the length of the longest
_WORDS = 256  # the number of distinct words in random texts


class OwnAttention:
    """One layer of self- or cross-attention over words of any language, split at white space.

    As in textbooks, each distinct word has an embedding drawn from N(0, 1), in order of first
    appearance, so that equal words have equal embeddings; the projections are Xavier-uniform.

    d_model: width of an embedding.
    heads, kv_heads: query heads, and the key/value heads that they share (each its own if None).
    head_dim: width of a head, ``d_model / heads`` if None.
    causal: whether a word sees no later word; for self-attention only.
    score: how a query and a key are matched; the other weights do not depend on it.
    seed: of all weights and embeddings; the same seed gives the same picture on every machine.
    attention: the attention itself, for callers that compute it in another way.
    Raises UsageError if these do not fit together.
    """

    kinds: tuple[Kind, ...] = ("self",)
    context: int | None = None
    chat_template: ChatTemplate | None = None
    scaled = True  # all other scores are described by ``info.score``
    hidden = 0  # how many tokens at the end of each text are padding that no query sees

    def __init__(
        self,
        d_model: int = 64,
        heads: int = 8,
        kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        causal: bool = False,
        score: Score = "scaled-dot",
        seed: int = 0,
    ) -> None:
        check_sizes(d_model, heads, kv_heads, head_dim)
        if seed < 0:
            raise UsageError(f"the seed must be 0 or more, got {seed}")
        self.causal = causal
        self._seed = seed
        sizes = {"d_model": d_model, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        self._options: dict[str, Any] = {**sizes, "causal": causal, "score": score}
        self.attention = NumpyAttention.random(**self._options, seed=seed)
        shape = self.attention.shape
        self._across = replace(self.attention, causal=False)
        self.info = ModelInfo(
            name="mha",
            revision=None,
            architecture="MultiHeadAttention",
            dtype="float32",
            layers=1,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            weights="random",
            backend="numpy",
            seed=seed,
            score=score,
            notes=("untrained random weights: patterns are arbitrary",),
        )

    def __repr__(self) -> str:
        return model_repr(self.info)

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """Return the words of ``text``, at most ``limit``; equal ones have equal ids."""
        return _numbered(split_words(text, limit), {})

    def placed(self, text: str, second: str | None = None, *, bare: bool = False) -> Placed:
        return placed_words(self.info, self.encode(text), text, second)

    def encode_queries(self, text: str, keys: Tokens) -> Tokens:
        return _numbered(split_words(text), dict(zip(keys.texts, keys.ids, strict=True)))

    def redrawn(self, seed: int) -> OwnAttention:
        """Return a model of the same sizes with other random parameters and embeddings."""
        return OwnAttention(**self._options, seed=seed)

    def vocabulary(self) -> Vocabulary:
        """Return made-up words for random texts, without special tokens."""
        none = Tokens((), (), ())
        return Vocabulary(
            np.arange(_WORDS), none, none, False, lambda ids: tuple(f"w{number}" for number in ids)
        )

    def notes_for(self, tokens: Tokens) -> tuple[str, ...]:
        return ()

    def mask(self, layer: int, start: int, rows: int, keys: int) -> Bools | None:
        """Return a mask (rows, keys) that hides the padding, without the causal one; or None."""
        return np.tile(np.arange(keys) < keys - self.hidden, (rows, 1)) if self.hidden else None

    def hiding(self, padding: int) -> OwnAttention:
        """Return the same attention with the last ``padding`` tokens of every text hidden."""
        masked = copy(self)
        masked.hidden = padding
        return masked

    def run_queries_keys(self, tokens: Tokens, wants: Wants, observe: ObserveQueriesKeys) -> None:
        if wants(0):
            words = self.embed(tokens.ids)
            query, key, _ = self.attention.heads_of(words, words, words)
            hidden = self.mask(0, 0, len(tokens), len(tokens))
            observe(0, query, key, self.attention.seen(words) if hidden is None else hidden)

    def cross_weights(self, queries: Tokens, keys: Tokens) -> NDArray[np.floating]:
        self._require_room(len(queries), len(keys))
        return self._across(self.embed(queries.ids), self.embed(keys.ids))[1]

    def run_rows(
        self, ids: Texts, rows: int, wants: Wants, observe: ObserveBlock, *, norms: bool = False
    ) -> None:
        if wants(0):
            self._require_room(min(rows, len(ids[0])), len(ids[0]))
            words = np.stack([self.embed(tuple(text)) for text in ids])
            moved = self.attention.moved_norms(words) if norms else None
            if self.hidden:
                mask = self.mask(0, 0, len(ids[0]), len(ids[0]))
                observe(0, 0, self.attention.head_outputs(words, mask=mask)[1], moved)
                return
            self.attention.in_rows(
                words, rows, lambda start, weights: observe(0, start, weights, moved)
            )

    def head_outputs(self, tokens: Tokens) -> NDArray[np.floating]:
        """Return each head's output over one text: (head, token, head_dim)."""
        outputs_of_layers: list[NDArray[np.floating]] = []
        self.run_outputs(tokens, lambda layer, weights, outputs: outputs_of_layers.append(outputs))
        return outputs_of_layers[0]

    def run_outputs(self, tokens: Tokens, observe: ObserveOutputs) -> None:
        """Pass weights and heads' outputs over a text to ``observe``; nothing is predicted."""
        self._require_room(len(tokens), len(tokens))
        mask = self.mask(0, 0, len(tokens), len(tokens))
        outputs, weights = self.attention.head_outputs(self.embed(tokens.ids), mask=mask)
        observe(0, weights, outputs)

    def narrowed(self) -> OwnAttention:
        names = (f"{part}_weight" for part in ("query", "key", "value", "output"))
        narrow = copy(self)
        narrow.attention = NarrowAttention.of(self.attention)
        return narrow._changed(
            **{name: to_bfloat16(getattr(self.attention, name)) for name in names}
        )

    def without(self, heads: Collection[tuple[int, int]]) -> OwnAttention:
        return self._changed(removed=tuple(sorted(head for _, head in heads)))

    def _changed(self, **parts: Any) -> OwnAttention:
        changed = copy(self)
        changed.attention = replace(self.attention, **parts)
        changed._across = replace(changed.attention, causal=False)
        return changed

    def _require_room(self, queries: int, keys: int) -> None:
        require_room(
            f"all {self.info.heads} heads over {queries:,} x {keys:,} words take",
            2 * 4 * self.info.heads * queries * keys,
            "shorten the text",
        )

    def embed(self, ids: tuple[int, ...]) -> NDArray[np.float32]:
        """Return the embeddings (token, d_model) of words given by id."""
        # A separate random stream: in the weights' stream the words would repeat their numbers.
        generator = np.random.default_rng((self._seed, 1))
        words = generator.standard_normal((max(ids) + 1, self.attention.shape.d_model))
        return words.astype(np.float32)[list(ids)]


def _numbered(words: Sequence[str], known: dict[str, int]) -> Tokens:
    """Return the words as tokens, with the ids of ``known`` and further ids for new words."""
    numbers = dict(known)
    for word in words:
        numbers.setdefault(word, len(numbers))
    return word_tokens(words, numbers)


def check_sizes(d_model: int, heads: int, kv_heads: int | None, head_dim: int | None) -> None:
    """Raise UsageError, with valid sizes, for sizes out of range or that do not divide evenly."""
    sizes = {"d_model": d_model, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise UsageError(f"{name} must be at least 1, got {size}")
    across = heads * head_dim if head_dim is not None else d_model
    advice = "choose a smaller --d-model"
    require_room(f"the weights of a d_model of {d_model} take", 4 * 4 * d_model * across, advice)
    if head_dim is None and d_model % heads:
        raise UsageError(
            f"a d_model of {d_model} does not divide into {heads} heads; "
            f"heads that divide it: {_divisors(d_model)}"
        )
    if kv_heads is not None and heads % kv_heads:
        raise UsageError(
            f"{heads} heads cannot share {kv_heads} key/value heads evenly; "
            f"kv_heads that divide {heads}: {_divisors(heads)}"
        )


def _divisors(number: int) -> str:
    return ", ".join(str(part) for part in range(1, number + 1) if number % part == 0)
