"""The common part of models with one stack that NumPy runs: ``tiny`` and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from attnviz.attention.family_reading import StoredParameters
from attnviz.attention.functional import causal_mask
from attnviz.attention.growing import StackReader
from attnviz.attention.numpy_stack import NarrowStack, NumpyStack
from attnviz.models.memory import free_memory
from attnviz.models.model import (
    ChatTemplate,
    FinishedText,
    MaskToken,
    ObserveBlock,
    ObserveOutputs,
    ObserveQueriesKeys,
    Placed,
    Texts,
    Vocabulary,
    Wants,
    frame_of,
    known_ids,
    model_repr,
    text_notes,
)
from attnviz.models.pieces import (
    GrowthStep,
    check_growth,
    check_limit,
    normalizer_steps,
    placed_tokens,
    special_ids,
    token_texts,
    tokens_of,
)
from attnviz.models.third_party import tokenizing
from attnviz.models.work import ModelSizes, sizes_of_stack
from attnviz.records import NO_PREDICTIONS, Kind, ModelInfo, Tokens


class StackModel:
    """A decoder-only or encoder-only model in NumPy with its tokenizer; a base class.

    info: its name, sizes and origin. stack: the layers and their parameters.
    open_tokenizer: opens its tokenizer when a text is first encoded.
    start: the id of the beginning-of-text token, even if the tokenizer does not add it.
    ends: returns the end tokens in its files, for ``known_ids``; called when a text is generated.
    sizes: those for counting its operations; None takes them from the tensors, which reads these.
    trained: tokens of the longest sequence of its training, if its files state it.
    mask_id: the token that hides a word from a masked model, None if there is none.
    parameters: how many the whole model has; None if only transformers knows.
    """

    def __init__(
        self,
        info: ModelInfo,
        stack: NumpyStack,
        open_tokenizer: Callable[[], Tokenizer],
        *,
        start: int | None = None,
        ends: Callable[[], Iterable[object]] = tuple,
        sizes: ModelSizes | None = None,
        trained: int | None = None,
        mask_id: MaskToken | None = None,
        parameters: StoredParameters | None = None,
    ) -> None:
        self._info, self.stack, shape = info, stack, stack.shape
        self.causal, self.scaled, self.context = shape.causal, shape.scaled, shape.context
        self.parameters, self.mask_id, self._sizes = parameters, mask_id, sizes
        self._open_tokenizer, self._start, self._ends = open_tokenizer, start, ends
        self._trained_tokens = trained

    def __repr__(self) -> str:
        return model_repr(self.info)

    @property
    def info(self) -> ModelInfo:
        return self._info

    @cached_property
    def sizes(self) -> ModelSizes:
        """Return the sizes that the model's operations are counted from."""
        if self._sizes is not None:
            return self._sizes
        return sizes_of_stack(self.stack.shape, self.stack.tensors.shapes, self.has_head)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._open_tokenizer()

    @cached_property
    def _steps(self) -> list[GrowthStep]:
        return normalizer_steps(self.tokenizer.normalizer)

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        name, tokenizer = self.info.name, self.tokenizer
        with tokenizing(name):
            check_limit(name, tokenizer.num_special_tokens_to_add(False), limit)
            check_growth(name, self._steps, text)
            tokenizer.no_truncation()
            if limit is not None:
                tokenizer.enable_truncation(limit)
            encoding = tokenizer.encode(text, add_special_tokens=not isinstance(text, FinishedText))
            return replace(self._tokens_of(encoding), kept=())

    def _tokens_of(self, encoding: Encoding) -> Tokens:
        known, name = self.stack.shape.vocabulary, self.info.name
        return tokens_of(name, self.tokenizer, encoding, known, self._special_ids)

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return special_ids(self.tokenizer.get_added_tokens_decoder(), self.named)

    kinds: tuple[Kind, ...] = ("self",)
    chat_template: ChatTemplate | None = None
    named: Mapping[str, int | None] = MappingProxyType({})
    """The ids of special tokens by their names, such as ``unk``."""
    paired = True
    """Whether the tokenizer says which of two texts a token is of, if the model can be told."""

    def placed(self, text: str, second: str | None = None, *, bare: bool = False) -> Placed:
        name, tokenizer = self.info.name, self.tokenizer
        with tokenizing(name):
            check_growth(name, self._steps, text + (second or ""))
            tokenizer.no_truncation()
            encoding = tokenizer.encode(text, second, add_special_tokens=not bare)
            tokens, types = self._tokens_of(encoding), encoding.type_ids
            if any(types) and self.paired and self.stack.has_segments:
                tokens = replace(tokens, segments=tuple(types[at] for at in tokens.places))
            return placed_tokens(tokens, encoding.sequence_ids)

    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        tokenizer, known = self.tokenizer, self.stack.shape.vocabulary

        def texts(ids: Sequence[int]) -> tuple[str, ...]:  # does not keep the model in memory
            pieces = [tokenizer.id_to_token(number) or f"<{number}>" for number in ids]
            return token_texts(tokenizer, pieces)

        added = tokenizer.get_added_tokens_decoder()
        size = min(known, tokenizer.get_vocab_size())
        plain = [number for number in range(size) if number not in added]
        before, after = frame_of(self.encode("a"))
        start = self._start
        if not len(before) and start is not None and start < known:
            before = Tokens((start,), texts([start]), (True,))
        # tokenizers are learnt from frequencies: BPE numbers its tokens in the order of its merges
        return Vocabulary(np.asarray(plain), before, after, ranked=True, texts=texts)

    def notes_for(self, tokens: Tokens) -> tuple[str, ...]:
        return text_notes(self._trained_tokens, tokens)

    def mask(self, layer: int, start: int, rows: int, keys: int) -> NDArray[np.bool_] | None:
        windows = self.stack.shape.windows
        if not windows or windows[layer] is None:
            return None
        near: NDArray[np.bool_] = causal_mask(start + rows, keys, np.empty(0), windows[layer])
        return near[start:]

    def run_queries_keys(self, tokens: Tokens, wants: Wants, observe: ObserveQueriesKeys) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            self.stack.run_queries_keys(tokens.ids, wants, observe)

    def run_rows(
        self, ids: Texts, rows: int, wants: Wants, observe: ObserveBlock, *, norms: bool = False
    ) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            self.stack.run_rows(ids, rows, wants, observe, norms=norms)

    def run_outputs(self, tokens: Tokens, observe: ObserveOutputs) -> NDArray[np.floating] | None:
        with np.errstate(over="ignore", invalid="ignore"):
            residual = self.stack.run_outputs(tokens.ids, observe)
            return self.stack.unembed(residual) if self.predicts else None

    @property
    def end_ids(self) -> frozenset[int]:
        """Return the ids of the tokens that end a text; LoadError for an unreadable file."""
        return known_ids(self._ends(), self.stack.shape.vocabulary)

    @property
    def has_head(self) -> bool:
        """Return whether the model has a language-model head."""
        return not any(note.endswith(NO_PREDICTIONS) for note in self.info.notes)

    @property
    def predicts(self) -> bool:
        return self.causal and self.has_head

    def reader(self) -> StackReader:
        free = free_memory()
        if free is not None:  # each token needs every tensor again
            self.stack.tensors.keep(free // 2)
        return StackReader(self.stack)

    def narrowed(self) -> Self:
        return self._over(NarrowStack.of(self.stack))

    def without(self, heads: Collection[tuple[int, int]]) -> Self:
        return self._over(self.stack.without(heads))

    def _over(self, stack: NumpyStack) -> Self:
        changed = copy(self)
        changed.stack = stack
        return changed
