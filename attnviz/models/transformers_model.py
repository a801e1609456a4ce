"""A loaded Hugging Face model that encodes texts and can write its own decoder text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from typing import Any

import numpy as np
import torch

from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.model import (
    ChatTemplate,
    FinishedText,
    Placed,
    Vocabulary,
    frame_of,
    known_ids,
    model_repr,
    placed_words,
    split_words,
    text_notes,
    word_tokens,
)
from attnviz.models.pieces import (
    GrowthStep,
    ReadPiece,
    as_spelled,
    check_growth,
    check_ids,
    check_limit,
    normalizer_steps,
    placed_tokens,
    reader_by,
    special_ids,
    token_texts,
)
from attnviz.models.split import device_of
from attnviz.models.stored_tensors import StoredTensors
from attnviz.models.third_party import third_party, tokenizing
from attnviz.models.whole import embedding_rows
from attnviz.models.work import ModelSizes
from attnviz.records import Kind, ModelInfo, Tokens

_NUMBERED = re.compile(r"\.\d+\.")  # in the names of parameters that stand in a list of layers


@dataclass(frozen=True, eq=False, repr=False)
class TransformersModel:
    """A model of the transformers library, in the form that the engine observes.

    info: its name, sizes and origin.
    model: the ``PreTrainedModel``, in eval mode, its parameters without gradients. tokenizer: the
        checkpoint's own; None for a built-in configuration, whose texts are split into words.
    kinds: ``("self",)``, or the three kinds of an encoder–decoder, the encoder first.
    context: the longest text in tokens, or None.
    target_context: the longest decoder text of an encoder–decoder, or None.
    trained_tokens: the length in tokens of its longest training sequence, if its files state it.
    stored: the tensors in its files, if these are safetensors.
    """

    info: ModelInfo
    model: Any
    tokenizer: Any
    kinds: tuple[Kind, ...]
    context: int | None
    target_context: int | None = None
    trained_tokens: int | None = None
    stored: StoredTensors | None = None

    reads_text = True
    """False for a model that reads pictures alone."""

    continues = False
    """True for a model whose prompt sees itself both ways, and which writes on all the same."""

    def __repr__(self) -> str:
        return model_repr(self.info)

    @cached_property
    def sizes(self) -> ModelSizes:
        """Return the sizes that the model's operations are counted from."""
        info, whole = self.info, self.model
        mixed = info.heads * info.head_dim
        words = getattr(whole.config, "vocab_size", 0)
        matrices = {name: part for name, part in whole.named_parameters() if part.ndim > 1}
        inside = sum(matrices[name].numel() for name in matrices if _NUMBERED.search(name))
        widths = (matrix.shape[-1] for matrix in matrices.values() if len(matrix) == words)
        width = next(widths, mixed)
        head = getattr(whole, "get_output_embeddings", lambda: None)()
        return ModelSizes.of(info, inside / info.layers, width, 0 if head is None else words)

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        if self.tokenizer is None:
            return self._words(text).cut(limit)
        with tokenizing(self.info.name):
            check_limit(self.info.name, self.tokenizer.num_special_tokens_to_add(), limit)
            check_growth(self.info.name, self._steps, text)
            encoding = self.tokenizer(
                text,
                add_special_tokens=not isinstance(text, FinishedText),
                truncation=limit is not None,
                max_length=limit,
                return_special_tokens_mask=True,
                verbose=False,
            )
            known = getattr(encoding, "encodings", None)  # none if it is written in Python
            spans = tuple(known[0].offsets) if known else ()
            tokens = replace(self._tokens(encoding["input_ids"]), spans=spans)
            added = encoding["special_tokens_mask"]
            return replace(as_spelled(tokens, added, self._marks[0]), kept=())

    @property
    def chat_template(self) -> ChatTemplate | None:
        """Return the tokenizer's chat template; of several the one named ``default``."""
        source = getattr(self.tokenizer, "chat_template", None)
        source = source.get("default") if isinstance(source, dict) else source
        if not isinstance(source, str):
            return None
        return ChatTemplate(source, self._special_texts)

    @property
    def _special_texts(self) -> dict[str, str]:
        named = self.tokenizer.special_tokens_map.items()
        return {name: text for name, text in named if isinstance(text, str)}

    def placed(self, text: str, second: str | None = None, *, bare: bool = False) -> Placed:
        if self.tokenizer is None:
            return placed_words(self.info, self._words(text), text, second)
        with tokenizing(self.info.name):
            check_growth(self.info.name, self._steps, text + (second or ""))
            read = self.tokenizer(text, second, add_special_tokens=not bare, verbose=False)
            (encoding,) = read.encodings or (None,)
            if encoding is None:
                raise UnsupportedError(
                    f"the tokenizer of {self.info.name!r} is written in Python and does not know "
                    "where its tokens stand"
                )
            tokens = replace(
                self._tokens(encoding.ids),
                spans=tuple(encoding.offsets),
                segments=tuple(types) if any(types := read.get("token_type_ids", ())) else (),
            )
            tokens = as_spelled(tokens, encoding.special_tokens_mask, self._marks[0])
            return placed_tokens(tokens, encoding.sequence_ids)

    def notes_for(self, tokens: Tokens) -> tuple[str, ...]:
        return text_notes(self.trained_tokens, tokens)

    def encode_target(self, text: str, limit: int | None = None) -> Tokens:
        if self.tokenizer is None:
            words = self._words(text)
            start = self._tokens([self._start_id])
            joined = (start.ids + words.ids, start.texts + words.texts, (True, *words.special))
            return Tokens(*joined).cut(limit)
        with tokenizing(self.info.name):
            check_growth(self.info.name, self._steps, text)
            labels = self.tokenizer(text_target=text, verbose=False)["input_ids"]
            if not labels or labels[-1] not in self.tokenizer.all_special_ids:
                # Shifting drops the last label, which must be an end token.
                labels = [*labels, self._start_id]
            shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
            if shift is None:
                return self._tokens([self._start_id, *labels[:-1]]).cut(limit)
            shifted = shift(labels=torch.tensor([labels], device=device_of(self.model)))
            return self._tokens(shifted[0].tolist()).cut(limit)

    def greedy_target(self, tokens: Tokens, limit: int) -> Tokens:
        if not hasattr(self.model, "generate") or not self.model.can_generate():
            raise UsageError(
                f"{self.info.name!r} has no language-model head to write a decoder text with: "
                f"give one with --target"
            )
        if limit <= 1:
            return self._tokens([self._start_id])
        inputs = torch.tensor([tokens.ids], device=device_of(self.model))
        with (
            third_party(f"{self.info.name!r} cannot write a text"),
            self._plainly_greedy(self.model, self._start_id),
        ):
            output = self.model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=limit - 1,
                # transformers sizes the cache by the encoder's layers, not by the decoder's.
                use_cache=False,
            )
        ids = output[0].tolist()
        return self._tokens(ids[:-1] if len(ids) > 1 and ids[-1] in self.end_ids else ids)

    @contextmanager
    def _plainly_greedy(self, model: Any, start: int, **settings: Any) -> Iterator[Any]:
        """Let ``settings`` replace a model's own (beams, penalties, …) but its special tokens."""
        before = model.generation_config
        model.generation_config = type(before)(
            decoder_start_token_id=start,
            eos_token_id=sorted(self.end_ids) or None,
            pad_token_id=self._padding,
            **settings,
        )
        try:
            with torch.inference_mode():
                yield model.generation_config
        finally:
            model.generation_config = before

    def vocabulary(self) -> Vocabulary:
        def texts(ids: Sequence[int]) -> tuple[str, ...]:
            with tokenizing(self.info.name):
                return self._tokens(ids).texts

        owner = self.model.config if self.tokenizer is None else self.tokenizer
        with tokenizing(self.info.name):
            start, size = self._known(getattr(owner, "bos_token_id", None)), self._vocabulary
            if self.tokenizer is None:
                special, framed = {self._padding, start}, Tokens((), (), ())
            else:
                special = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
                size = min(size, len(self.tokenizer))
                framed = self.encode("a")  # a word separates beginning and end
            before, after = frame_of(framed)
            if not len(before) and start is not None and "self" in self.kinds:
                before = replace(self._tokens([start]), special=(True,))
        plain = np.asarray([number for number in range(size) if number not in special])
        return Vocabulary(plain, before, after, self.tokenizer is not None, texts)

    @property
    def _padding(self) -> int | None:
        return self._known(getattr(self.model.config, "pad_token_id", None))

    def _known(self, number: object) -> int | None:
        """Return ``number`` if it is the id of one of the model's tokens, else None."""
        if not isinstance(number, int) or isinstance(number, bool):
            return None
        return number if 0 <= number < self._vocabulary else None

    def _words(self, text: str) -> Tokens:
        """Return words split at white space; equal ones share an id, none has the padding's."""
        words, padding = split_words(text), self._padding
        free = [
            number for number in range(min(self._vocabulary, len(words) + 1)) if number != padding
        ]
        return word_tokens(words, dict(zip(dict.fromkeys(words), cycle(free), strict=False)))

    def _tokens(self, ids: Sequence[int]) -> Tokens:
        check_ids(self.info.name, ids, self._vocabulary)
        # An embedding table may be padded beyond the vocabulary; such an id has no piece.
        texts, special = tuple(f"<{number}>" for number in ids), frozenset[int]()
        if self.tokenizer is None:
            special = frozenset({self._start_id})
        else:
            special, read = self._marks
            known = zip(self.tokenizer.convert_ids_to_tokens(list(ids)), texts, strict=True)
            pieces = [number if piece is None else piece for piece, number in known]
            backend = getattr(self.tokenizer, "backend_tokenizer", None)
            texts = tuple(map(read, pieces)) if backend is None else token_texts(backend, pieces)
        return Tokens(tuple(ids), texts, tuple(number in special for number in ids))

    @cached_property
    def _marks(self) -> tuple[frozenset[int], ReadPiece]:
        """Return the ids of special tokens, and what reads a piece of a tokenizer in Python."""
        added = self.tokenizer.added_tokens_decoder
        names = ("unk", "mask", "bos", "eos", "cls", "sep")
        named = {name: getattr(self.tokenizer, f"{name}_token_id", None) for name in names}
        python = getattr(self.tokenizer, "backend_tokenizer", None) is None
        vocabulary = self.tokenizer.get_vocab() if python else ()
        read = reader_by(vocabulary, {token.content for token in added.values()})
        return special_ids(added, named), read

    @cached_property
    def _steps(self) -> list[GrowthStep]:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return normalizer_steps(getattr(backend, "normalizer", None))

    @property
    def _vocabulary(self) -> int:
        return embedding_rows(self.model)

    @property
    def _start_id(self) -> int:
        """Return the decoder's start token, else BOS or padding; UsageError for none."""
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            for config in self._configs:
                number = self._known(getattr(config, name, None))
                if number is not None:
                    return number
        raise UsageError(f"{self.info.name!r} names no token for its decoder to start with")

    @property
    def end_ids(self) -> frozenset[int]:
        """Return the ids of the tokens that end a text."""
        stated = (getattr(config, "eos_token_id", None) for config in self._configs)
        return known_ids(stated, self._vocabulary)

    @property
    def _configs(self) -> tuple[Any, Any]:
        return self.model.config, getattr(self.model, "generation_config", None)
