"""The interfaces of every loaded model, and what is the same for all of them."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Floats
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models.stored_tensors import computed_from
from attnviz.records import UNKNOWN_NOTE, Kind, ModelInfo, Tokens

Texts = Sequence[Sequence[int]]  # the token ids of texts of one length
Wants = Callable[[int], bool]  # returns whether the layer of an index is wanted

ObserveQueriesKeys = Callable[[int, Floats, Floats, NDArray[np.bool_] | None], None]
"""Called with the layer, its queries and its keys (heads, token, head_dim), and whether each query
sees each key (query, key), None if all are seen."""

ObserveBlock = Callable[[int, int, Floats, Floats | None], None]
"""Called with the layer, the first query's index, the weights (text, head, rows, keys) of a block
of queries, and the norms (text, head, key) of ``moved_norms``, or None."""


ObserveOutputs = Callable[[int, Floats, Floats], None]
"""Called with the layer, its weights (head, query, key) and its heads' outputs (head, token, dim),
before the output projection."""


class MaskToken(int):
    """The id of the token that hides a word from a masked model, with its ``text`` as typed."""

    text: str

    def __new__(cls, number: int, text: str) -> Self:
        mask = super().__new__(cls, number)
        mask.text = text
        return mask


@runtime_checkable
class Model(Protocol):
    """The interface of every loaded model: it tokenizes texts, and the engine can observe it.

    info: its name, sizes and origin. kinds: the attention kinds it has, the default one first.
    context: the longest token sequence it takes, or None if there is no limit.
    """

    @property
    def info(self) -> ModelInfo: ...
    @property
    def kinds(self) -> tuple[Kind, ...]: ...
    @property
    def context(self) -> int | None: ...

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """Tokenise ``text`` with the model's special tokens; keep at most ``limit`` tokens.

        None is added to a FinishedText, nor next to an equal one that the text itself spells; a cut
        text keeps them. Raises LoadError if the tokenizer gives ids that the model has no
        embedding for, UsageError if not even the special tokens fit into ``limit``.
        """

    def notes_for(self, tokens: Tokens) -> tuple[str, ...]:
        """Return notes for the reader about a run over these tokens, besides ``info.notes``."""

    def vocabulary(self) -> Vocabulary:
        """Return the model's plain tokens, and the special ones that begin and end every text."""


class Placed(NamedTuple):
    """The tokens of a text or of two joined texts, with their character offsets.

    places: for each token the range (start, end) of its characters; empty without any. sides: the
    text of each token, 0 or 1; None for tokens that the tokenizer added.
    """

    tokens: Tokens
    places: Sequence[tuple[int, int]]
    sides: Sequence[int | None]


class ChatTemplate(NamedTuple):
    """A model's template of chats in Jinja, and the special tokens that it may name, by name."""

    source: str
    special: Mapping[str, str]


class FinishedText(str):
    """A text that a chat template wrote, with all its special tokens: the tokenizer adds none."""

    __slots__ = ()


@runtime_checkable
class PlacingModel(Model, Protocol):
    """A model whose tokenizer gives tokens' character offsets, and perhaps a chat template."""

    @property
    def chat_template(self) -> ChatTemplate | None: ...

    def placed(self, text: str, second: str | None = None, *, bare: bool = False) -> Placed:
        """Return the tokens of a text, or of two that the tokenizer joins, with their places.

        bare: True leaves out the special tokens that are added to every text. Raises
        UnsupportedError if the tokenizer gives no character offsets or joins no texts.
        """
        ...


@runtime_checkable
class NumpyModel(Model, Protocol):
    """A model with one stack of self-attention that runs in NumPy, without torch.

    scaled: whether the model itself divides the attention scores by √head_dim. If not, its queries
        are multiplied by that, so that the formula of ``run_queries_keys`` holds.
    """

    @property
    def scaled(self) -> bool: ...

    def mask(self, layer: int, start: int, rows: int, keys: int) -> NDArray[np.bool_] | None:
        """Return a layer's mask (rows, keys) from query ``start`` on; None for the plain one."""

    def run_rows(
        self, ids: Texts, rows: int, wants: Wants, observe: ObserveBlock, *, norms: bool = False
    ) -> None:
        """Run the model over texts of one length; pass attention weights in blocks to ``observe``.

        rows: the number of queries of a block. norms: True passes on the norms of the values too.
        Blocks of a causal model may lack the keys after their last query. Layers after the last
        wanted one need not run.
        """

    def run_queries_keys(self, tokens: Tokens, wants: Wants, observe: ObserveQueriesKeys) -> None:
        """Run the model over one text; pass each wanted layer's queries and keys to ``observe``.

        Each query head has its own copy of its key. The attention weights are the softmax of their
        products times 1/√head_dim over the keys that the query sees.
        """

    def run_outputs(self, tokens: Tokens, observe: ObserveOutputs) -> Floats | None:
        """Run a text; ``observe`` gets weights and outputs. Return its logits or None."""

    def narrowed(self) -> Self:
        """Return the model with its parameters and intermediate results rounded to bfloat16."""

    def without(self, heads: Collection[tuple[int, int]]) -> Self:
        """Return the model with these (layer, head) ablated: their outputs are set to zero."""


class Reader(Protocol):
    """The interface to run a model on a text that grows by tokens, and to predict the next one."""

    def read(self, ids: Sequence[int]) -> tuple[Floats, Mapping[int, Floats]]:
        """Return logits (vocab,) after a text, and its last weights (head, key) by layer."""


def known_ids(stated: Iterable[object], vocabulary: int) -> frozenset[int]:
    """Return the ids below ``vocabulary`` in ``stated``, whose entries may be lists or no ids."""
    ids = chain.from_iterable(i if isinstance(i, list | tuple) else [i] for i in stated)
    return frozenset(i for i in ids if type(i) is int and 0 <= i < vocabulary)


@runtime_checkable
class TwoStackModel(Model, Protocol):
    """An encoder–decoder, whose decoder text, of some length at most, is given or generated."""

    @property
    def target_context(self) -> int | None: ...

    def encode_target(self, text: str, limit: int | None = None) -> Tokens:
        """Return at most ``limit`` tokens of a decoder text, its start token in front."""

    def greedy_target(self, tokens: Tokens, limit: int) -> Tokens:
        """Return the decoder text that the model generates, always taking the likeliest token.

        tokens: the encoder's text. The result has at most ``limit`` tokens, from the decoder's
        start token to before the end token. Raises UsageError for a model without a language head.
        """


# What its file says of its training ----------------------------------------------------------


def stated_revision(metadata: Mapping[str, str]) -> str | None:
    """Return the digest that a checkpoint's metadata state, if of the form of ``attnviz train``."""
    stated = metadata.get("revision", "")
    return stated if re.fullmatch(r"[0-9a-f]{12,64}", stated) else None


def trained_tokens(metadata: Mapping[str, str]) -> int | None:
    """Return the length in tokens of the longest training sequence that metadata state, or None."""
    stated = metadata.get("trained_tokens", "")
    return int(stated) if re.fullmatch(r"[0-9]{1,9}", stated) else None


def text_notes(trained: int | None, tokens: Tokens) -> tuple[str, ...]:
    """Return notes if a text is longer than the longest in training, or has unknown tokens."""
    notes = []
    if trained is not None and len(tokens) > trained:
        notes.append(f"trained on sequences of up to {trained:,} tokens, not {len(tokens):,}")
    if tokens.unknown:
        notes.append(f"{tokens.unknown:,} of {len(tokens):,} tokens {UNKNOWN_NOTE}")
    return tuple(notes)


_NAMED = 3  # the most tensors that are named in a note; further ones are only counted


def broken_words(broken: Sequence[str]) -> tuple[str, ...]:
    """Return a note that names the tensors with numbers that are not finite; empty if none."""
    if not broken:
        return ()
    more = f" and {len(broken) - _NAMED} more" if len(broken) > _NAMED else ""
    names = ", ".join(broken[:_NAMED])
    return (f"weights that are not finite: {names}{more}; what they reach has no numbers",)


def model_repr(info: ModelInfo) -> str:
    """Return the string that Python shows for a loaded model."""
    layers = f"{info.layers} layer{'s' * (info.layers > 1)}"
    return f"<attnviz.Model {info.name}: {layers} × {info.heads} head{'s' * (info.heads > 1)}>"


def require_number(quantity: str, value: float, info: ModelInfo) -> None:
    """Raise LoadError for a value that broken weights made infinite, UsageError for another."""
    if math.isfinite(value):
        return
    message = f"the {quantity} of {info.name!r} is {value} in {info.dtype}, nothing can be ranked"
    if info.not_finite:
        raise LoadError(f"{message}: {broken_words(info.not_finite)[0]}")
    raise UsageError(f"{message}{info.overflow_advice}")


def no_logits(name: str) -> UsageError:
    """Return the error for a model without a head, which has no logit to explain."""
    return UsageError(
        f"{name!r} predicts no tokens and no label of a text: there is no logit to decompose, "
        "choose a model with a language-model head or a classifier"
    )


def cannot_write(info: ModelInfo) -> UnsupportedError:
    """Return the error for a model that does not predict tokens and so cannot generate text."""
    return UnsupportedError(
        f"{info.name!r} does not tell the next token, so that it cannot write: choose a causal "
        "language model"
    )


def split_words(text: str, limit: int | None = None) -> list[str]:
    """Return the words of a text, at most ``limit``; raise UsageError if there is none."""
    words = text.split()[:limit]
    if not words:
        raise UsageError("expected a text of at least one word, got none")
    return words


def word_tokens(words: Sequence[str], numbers: Mapping[str, int]) -> Tokens:
    """Return the words as tokens, with their ids in ``numbers``."""
    return replace(Tokens.bare([numbers[word] for word in words]), texts=tuple(words))


def placed_words(info: ModelInfo, tokens: Tokens, text: str, second: str | None) -> Placed:
    """Return words with their offsets in ``text``; UnsupportedError if there is a ``second``."""
    if second is not None:
        raise UnsupportedError(f"{info.name!r} has no tokenizer that joins two texts: give one")
    places = [word.span() for word in re.finditer(r"\S+", text)]
    return Placed(tokens, places, [0] * len(tokens))


# Random texts --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model.

    plain: ids that are not special. before, after: the special tokens around every text.
    ranked: whether a larger id is a rarer token, as in vocabularies learnt by frequency.
    texts: returns the texts of ids.
    """

    plain: NDArray[np.int64]
    before: Tokens
    after: Tokens
    ranked: bool
    texts: Callable[[Sequence[int]], tuple[str, ...]]

    def bare(self) -> Vocabulary:
        """Return the same vocabulary without special tokens around a text."""
        nothing = Tokens((), (), ())
        return replace(self, before=nothing, after=nothing)


def frame_of(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Return the special tokens at the beginning of an encoded text, and those at its end."""
    begin, end = 0, len(tokens)
    while begin < end and tokens.special[begin]:
        begin += 1
    while end > begin and tokens.special[end - 1]:
        end -= 1
    return tokens.cut(begin), tokens.taken(range(end, len(tokens)))


def random_copies(vocabulary: Vocabulary, length: int, copies: int, seed: int) -> Tokens:
    """Return ``length`` distinct random tokens ``copies`` times; ValueError if too few."""
    if length > len(vocabulary.plain):
        raise ValueError(f"{length} distinct tokens of {len(vocabulary.plain)}")
    generator = np.random.default_rng((seed, length, copies))
    drawn = generator.choice(vocabulary.plain, length, replace=False).tolist() * copies
    before, after = vocabulary.before, vocabulary.after
    return Tokens(
        (*before.ids, *drawn, *after.ids),
        (*before.texts, *vocabulary.texts(drawn), *after.texts),
        (*before.special, *(False for _ in drawn), *after.special),
    )


# Fingerprint ---------------------------------------------------------------------------------

_DIGITS = 12


def weights_fingerprint(model: Model) -> str:
    """Return a digest of the config, and of the name, shape and CRC-32 of every tensor.

    It is not proof against forgery. For the built-in models it is that of their info alone. For
    safetensors it is that of the files, whether NumPy or torch runs them.
    """
    import hashlib  # loads OpenSSL, and few commands ask for a digest

    info = model.info
    hashed = hashlib.sha256(repr((info.architecture, info.revision, info.seed)).encode())
    stored = getattr(model, "stored", None)
    module = getattr(model, "model", None)
    if stored is not None:
        hashed.update(stored.digest().encode())
    elif module is not None:
        from torch.nn import Module

        usual = vars(Module()).keys()
        config = getattr(module, "config", None)
        hashed.update(computed_from({} if config is None else config.to_dict()))
        for name, value in module.state_dict().items():
            for part in value if isinstance(value, tuple) else (value,):
                if not hasattr(part, "shape"):  # a quantised layer stores its type too
                    hashed.update(f"{name} {part}".encode())
                    continue
                hashed.update(f"{name} {tuple(part.shape)} {part.dtype}".encode())
                hashed.update(_checksum(part))
        for part in module.modules():  # other libraries keep more than tensors: adapters' scales
            if not type(part).__module__.startswith(("torch.", "transformers.")):
                held = (f"{key} {value!r}" for key, value in vars(part).items() if key not in usual)
                hashed.update(repr(sorted(fact for fact in held if " at 0x" not in fact)).encode())
    return hashed.hexdigest()[:_DIGITS]


def model_identity(model: Model) -> dict[str, str]:
    """Return the facts that every result depends on, to compare with those of an earlier run."""
    info = model.info
    return {"model": info.name, "weights": weights_fingerprint(model), "dtype": info.dtype}


def _checksum(tensor: Any) -> bytes:
    if tensor.is_meta:  # its numbers are elsewhere, such as on disk
        return b""
    from torch import Tensor, uint8

    if hasattr(tensor, "full_tensor"):  # split over processes
        tensor = tensor.full_tensor()
    packed = tensor.is_quantized or type(tensor.detach()) is not Tensor
    tensor = tensor.dequantize() if packed else tensor
    content = tensor.detach().flatten().cpu().view(uint8).numpy()
    return zlib.crc32(content).to_bytes(4, "big")
