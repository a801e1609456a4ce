"""Run any model over a text for the record of its attention, or open it to measure its heads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnviz.engine.backend import backend_of
from attnviz.engine.head_run import KeepLayers, ReadLayer, Run
from attnviz.engine.known_labels import by_label
from attnviz.engine.observer import BLOCK_CELLS, Held, KeepWeights, Observer, SumsReader, no_numbers
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.measures.reduced import ReducedLayer
from attnviz.models.memory import require_room
from attnviz.models.model import Model, TwoStackModel, random_copies
from attnviz.models.own import OwnAttention
from attnviz.models.resolve import random_twin
from attnviz.models.stack_model import StackModel
from attnviz.progress import UNWATCHED, Advance, share_read
from attnviz.records import AttentionRecord, Input, Kind, LayerWeights, Tokens


@contextmanager
def reading_segments(model: Model, tokens: Tokens) -> Iterator[None]:
    """Let BERT tell the two texts of ``tokens`` apart inside this context, or their beginning."""
    if not tokens.segments:
        yield
    elif isinstance(model, StackModel):
        stack, before = model.stack, model.stack.segments
        stack.segments = np.asarray(tokens.ids), np.asarray(tokens.segments)
        try:
            yield
        finally:
            stack.segments = before
    else:
        with _in_torch(model, tokens):
            yield


@contextmanager
def _in_torch(model: Any, tokens: Tokens) -> Iterator[None]:
    import torch

    from attnviz.engine.hook_points import hooked

    trunk = model.model.base_model
    ids, segments = torch.tensor(tokens.ids), torch.tensor(tokens.segments)

    def told(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        read = options.get("input_ids", args[0] if args else None)
        known = 0 if read is None else read.shape[-1]
        if read is None or known > len(ids) or not (read.cpu() == ids[:known]).all():
            return None
        types = segments[:known].to(read.device).expand_as(read)
        return args, options | {"token_type_ids": types}

    if "token_type_ids" not in inspect.signature(trunk.forward).parameters:
        yield
        return
    with hooked(trunk.register_forward_pre_hook(told, with_kwargs=True)):
        yield


_ROUNDING = 0.02
"""How far the sum of a row of 16-bit weights may be from one by rounding alone."""

Encode = Callable[[str, int | None], Tokens]
"""Returns the tokens of a text, at most so many."""

_DECODER_KINDS = ("decoder", "cross")
_TARGET_TOKENS = 64
"""The largest number of tokens of a decoder text that the model writes for itself."""


@dataclass(frozen=True)
class Choice:
    """A choice of heads of a model's attention over a text, as typed by a person.

    layers, heads: as after ``--layer`` and ``--head``, from ``index_base`` on. kind, target: the
    kind of attention and the second text; None takes the model's default. truncate: False refuses a
    text beyond the context. encode: returns tokens with regions; None is the model's own.
    """

    layers: str | None = None
    heads: tuple[str, ...] = ()
    index_base: int = 0
    kind: Kind | None = None
    target: str | None = None
    truncate: bool = False
    no_known_labels: bool = False
    encode: Encode | None = None


@dataclass(frozen=True)
class Asked:
    """A checked request for a model's attention over one text.

    given: the tokens that the model runs on. For the cross attention of ``mha`` its target is the
        text of the queries. kind: the wanted kind of attention.
    heads: the chosen heads by layer, both from 0; None means all.
    """

    given: Input
    kind: Kind
    heads: Mapping[int, Container[int]] | None


def asked(model: Model, text: str, choice: Choice) -> Asked:
    """Return the checked request for the attention over ``text``, as ``choice`` describes it.

    Raises UsageError if the choice or the text does not fit the model, or the memory is too small.
    """
    kind = attention_kind(model, choice, across=True)
    info = model.info
    typed = by_label(model, kind, choice.heads, choice.index_base)
    heads = choose_heads(choice.layers, typed, info.layers, info.heads, choice.index_base)
    tokens = encoded(model, text, choice.truncate, choice.encode)
    target = None
    check_regions(kind, tokens)
    if isinstance(model, OwnAttention) and kind == "cross":
        target = _looking_tokens(model, tokens, choice)
    elif isinstance(model, TwoStackModel) and kind in _DECODER_KINDS:
        target = target_tokens(model, tokens, choice)
    given = Input(tokens, target)
    kept = info.layers * info.heads if heads is None else sum(map(len, heads.values()))
    choose = "fewer heads" if heads else "some with --layer or --head"
    advice = f"choose {choose}, or shorten the text"
    require_maps(kept, len(given.queries(kind)), len(given.keys(kind)), advice)
    return Asked(given, kind, heads)


def check_regions(kind: Kind, tokens: Tokens) -> None:
    """Raise UsageError for a text with regions if this kind of attention does not use that text."""
    if kind == "decoder" and tokens.regions:
        raise UsageError("regions are those of the text, not of the decoder's: add --kind cross")


def capture_text(
    model: Model, text: str, choice: Choice, advance: Advance = UNWATCHED
) -> tuple[AttentionRecord, bool]:
    """Return the attention over ``text``, and whether heads were left out; see ``asked``."""
    wanted = asked(model, text, choice)
    tokens, target, heads = wanted.given.text, wanted.given.target, wanted.heads
    record = capture(model, tokens, kind=wanted.kind, target=target, heads=heads, advance=advance)
    return record, heads is not None


def attention_kind(model: Model, choice: Choice, *, across: bool = False) -> Kind:
    """Return the chosen kind of attention, or the model's first.

    across: True also accepts the cross attention of an ``OwnAttention``.
    Raises UsageError for a kind that the model does not have.
    """
    if not isinstance(model, OwnAttention):
        kind = kind_of(model, choice.kind)
    elif (kind := kind_of(model, choice.kind, "cross")) == "cross" and not across:
        raise UsageError(
            f"the cross attention of {model.info.name!r} is shown by attnviz heads alone"
        )
    if choice.target is not None and kind not in _DECODER_KINDS:
        if isinstance(model, OwnAttention):
            raise UsageError("--target is the text that looks at the other: add --kind cross")
        raise UsageError("--target is the decoder's text: add --kind decoder or --kind cross")
    return kind


def kind_of(model: Model, kind: Kind | None, *more: Kind) -> Kind:
    """Return a kind of a model's attention, by default its first; UsageError if it lacks it."""
    kind, kinds = kind or model.kinds[0], (*model.kinds, *more)
    if kind not in kinds:
        raise UsageError(
            f"{model.info.name!r} has no {kind} attention: expected --kind {' or '.join(kinds)}"
        )
    return kind


def encoded(model: Model, text: str, truncate: bool | None, encode: Encode | None = None) -> Tokens:
    """Return the tokens of ``text``, by ``encode`` or the model's own.

    truncate: True cuts the text at the model's context; None leaves ``--truncate`` out of the
    error. Raises UsageError if there are no tokens or too many.
    """
    read = encode or model.encode
    tokens = read(text, None)
    if not len(tokens):
        raise UsageError("the text has no tokens: expected at least one word")
    if model.context is None or len(tokens) <= model.context:
        return tokens
    if truncate:
        return read(text, model.context)
    raise UsageError(
        f"the text has {len(tokens):,} tokens, {model.info.name!r} takes at most "
        f"{model.context:,}: shorten it"
        + ("" if truncate is None else ", or add --truncate to cut it there")
    )


def target_tokens(model: TwoStackModel, tokens: Tokens, choice: Choice) -> Tokens:
    """Return the decoder's tokens, the user's or the model's own; UsageError if too long."""
    limit = model.target_context
    if choice.target is None:
        return model.greedy_target(tokens, min(limit or _TARGET_TOKENS, _TARGET_TOKENS))
    target = model.encode_target(choice.target)
    if limit is None or len(target) <= limit:
        return target
    if choice.truncate:
        return model.encode_target(choice.target, limit)
    raise UsageError(
        f"the target has {len(target):,} tokens, the decoder of {model.info.name!r} takes at most "
        f"{limit:,}: shorten it, or add --truncate to cut it there"
    )


def written_targets(
    model: Model, texts: Sequence[Tokens], choice: Choice | None = None
) -> tuple[Tokens, ...]:
    """Return the decoder's tokens for each text, or an empty tuple for models without a decoder.

    texts: those that the encoder runs on. choice: its ``target`` is the user's text for the
        decoder.
    """
    if not isinstance(model, TwoStackModel) or "decoder" not in model.kinds:
        return ()
    return tuple(target_tokens(model, text, choice or Choice()) for text in texts)


def _looking_tokens(model: OwnAttention, tokens: Tokens, choice: Choice) -> Tokens:
    """Return the tokens that are the queries of cross attention; UsageError if they cannot be."""
    if choice.target is None:
        raise UsageError(
            "cross attention needs two texts: add --target TEXT, whose words look (queries) at "
            "those of the other (keys and values)"
        )
    if model.causal:
        raise UsageError(
            "a causal mask hides the later words of one text, cross attention has two: "
            "leave out --causal"
        )
    return model.encode_queries(choice.target, tokens)


def require_maps(heads: int, queries: int, keys: int, advice: str) -> None:
    """Raise UsageError if the free memory is too small for attention maps of this size.

    heads, queries, keys: the size of the maps. advice: the end of the message, what to do instead.
    """
    maps = f"the maps of {heads:,} heads over {queries:,} x {keys:,} tokens take"
    require_room(maps, 4 * heads * queries * keys, advice)


def capture(
    model: Model,
    tokens: Tokens,
    *,
    kind: Kind,
    target: Tokens | None = None,
    heads: Mapping[int, Container[int]] | None = None,
    advance: Advance = UNWATCHED,
) -> AttentionRecord:
    """Return the record of the attention of ``model`` over ``tokens``.

    kind: one of ``model.kinds``, or ``cross``. target: of the decoder or the queries. heads: by
    layer; None for all. advance: gets the share that is read. Raises UnsupportedError if attention
    cannot be observed, UsageError if no layer has a chosen head.
    """
    wanted = range(model.info.layers) if heads is None else sorted(heads)
    keep = KeepWeights(kind, heads, lambda layer: advance(share_read(layer, wanted)))
    with reading_segments(model, tokens):
        backend_of(model).observe(keep, [Input(tokens, target)], cells=None)
    if not keep.layers:
        raise no_such_head()
    return record_of(model, Input(tokens, target), kind, keep.layers)


def no_such_head() -> UsageError:
    """Return the error for a chosen head that no layer has, in a model whose layers differ."""
    return UsageError(
        "none of the chosen layers has such a head: choose others with --layer or --head"
    )


def record_of(
    model: Model, given: Input, kind: Kind, layers: tuple[LayerWeights, ...]
) -> AttentionRecord:
    """Return the record of one run of ``model``, with notes on numbers that mislead a reader."""
    tokens = given.text
    if kind not in _DECODER_KINDS:
        given = Input(tokens)
    weights = [layer.weights for layer in layers]
    if isinstance(model, OwnAttention):
        causal = kind != "cross" and model.causal and len(tokens) > 1
    else:
        causal = kind != "cross" and all(
            own.shape[-1] > 1 and not (np.triu(own, 1) > 0).any() for own in weights
        )
    notes = model.info.notes + model.notes_for(tokens)  # only the run may have found overflow
    notes += no_numbers(model.info, weights) + _lost_weight(layers)
    info = replace(model.info, notes=notes)
    return AttentionRecord(info, kind, causal, given.queries(kind), given.keys(kind), layers)


def _lost_weight(layers: tuple[LayerWeights, ...]) -> tuple[str, ...]:
    """Return a note if weights do not sum to one, as with the learned sinks of gpt_oss."""
    sums = np.concatenate([layer.weights.sum(-1).ravel() for layer in layers])
    least = float(np.min(sums[~np.isnan(sums)], initial=1.0))
    if least > 1 - _ROUNDING:
        return ()
    return (f"rows sum to as little as {least:.2f}: the rest goes to no token (a learned sink)",)


# Measuring heads ----------------------------------------------------------------------------------

_TRIAL = "The cat sat on the mat."

_FEWEST = 8
"""The least number of tokens of a decoder text that a model wrote; a shorter one is not used."""


@dataclass(frozen=True)
class Probing:
    """A model opened for measuring pattern scores of its heads, with one kind of attention.

    causal: True if no query sees a later key, as found on a short text.
    """

    model: Model
    kind: Kind
    causal: bool

    @property
    def ranked(self) -> bool:
        """Return True if the tokens' order in the vocabulary is that of their frequency."""
        return self.model.vocabulary().ranked

    def input_of(self, text: str, tokens: Tokens | None = None, *, truncate: bool = True) -> Input:
        """Return the model's input for ``text``, cut to the model's context.

        A decoder gets the same text, or for cross attention the text that the model itself
        generates. tokens: of the text, if they are known.
        truncate: False refuses a text that is too long for the decoder, by UsageError.
        """
        tokens = tokens or self.model.encode(text, self.model.context)
        if self.kind not in ("decoder", "cross"):
            return Input(tokens)
        return Input(tokens, self._target(text, tokens, truncate))

    def inputs_of(
        self, texts: Sequence[str], encoded: Sequence[Tokens], truncate: bool
    ) -> list[Input]:
        """Return the model's input for each text. encoded: their tokens; see ``input_of``."""
        pairs = zip(texts, encoded, strict=True)
        return [self.input_of(text, tokens, truncate=truncate) for text, tokens in pairs]

    def _target(self, text: str, tokens: Tokens, truncate: bool) -> Tokens | None:
        model = self.model
        if not isinstance(model, TwoStackModel):
            return None
        if self.kind == "cross":
            try:
                written = target_tokens(model, tokens, Choice())
            except UsageError:  # a model without a language-model head cannot write
                written = Tokens.bare(())
            if len(written) >= _FEWEST:
                return written
        same, most = model.encode_target(text), model.target_context
        if not truncate and most is not None and len(same) > most:
            raise UsageError(
                f"a text has {len(same):,} tokens, the decoder of {model.info.name!r} takes at "
                f"most {most:,}: shorten it, or add --truncate to cut it there"
            )
        return same.cut(most)

    def copies(self, length: int, copies: int, seed: int) -> Input | None:
        """Return ``length`` random tokens ``copies`` times; None if they do not fit the context."""
        vocabulary = self.model.vocabulary()
        if len(vocabulary.plain) < length or self.kind == "cross":
            return None
        tokens = random_copies(vocabulary, length, copies, seed)
        if self.kind == "decoder" and isinstance(self.model, TwoStackModel):
            context = self.model.target_context
            source = self.model.encode(_TRIAL)
            start = self.model.encode_target(_TRIAL, 1)
            plain = random_copies(vocabulary.bare(), length, copies, seed)
            target = Tokens(
                start.ids + plain.ids, start.texts + plain.texts, start.special + plain.special
            )
            given = Input(source, target)
        else:
            context, given = self.model.context, Input(tokens)
        return given if context is None or len(given.predicted) <= context else None

    def notes_for(self, inputs: Sequence[Input]) -> tuple[str, ...]:
        """Return notes about these inputs, in addition to the model's own notes."""
        if not inputs:
            return ()
        return self.model.notes_for(max((given.text for given in inputs), key=len))

    def open_heads(self, given: Input) -> tuple[Run, tuple[str, ...]]:
        """Return a function that runs inputs and observes heads; see ``Backend.open_heads``."""
        predicts = self.causal if self.kind == "self" else self.kind != "encoder"
        return backend_of(self.model).open_heads(self.kind, given, predicts)

    def run(
        self,
        observer: Observer,
        inputs: Sequence[Input],
        *,
        cells: int | None = BLOCK_CELLS,
        held: Held = "auto",
    ) -> None:
        """Run inputs of one length, and hand attention to ``observer``; see ``Backend.observe``."""
        with reading_segments(self.model, inputs[0].text):
            backend_of(self.model).observe(observer, inputs, cells=cells, held=held)

    def read_sums(self, reader: SumsReader, inputs: Sequence[Input]) -> None:
        """Run the model over inputs of one length; see ``Backend.read_sums``."""
        with reading_segments(self.model, inputs[0].text):
            backend_of(self.model).read_sums(reader, inputs)

    def read_layers(
        self, given: Input, read: Callable[[ReducedLayer], ReadLayer]
    ) -> dict[int, ReadLayer]:
        """Return what ``read`` computes from each layer's sums, see ``Backend.read_sums``."""
        reader = KeepLayers(self.kind, read)
        self.read_sums(reader, [given])
        return reader.layers

    def twin(self, seed: int) -> Probing:
        """Return the architecture with random parameters, opened for the same kind of attention."""
        return Probing(random_twin(self.model, seed), self.kind, self.causal)


def open_probing(model: Model, kind: Kind | None = None) -> Probing:
    """Return a model opened for one kind of attention; UsageError if it lacks it."""
    kind = kind_of(model, kind)
    if kind == "cross":
        return Probing(model, kind, causal=False)
    target = None
    if kind == "decoder" and isinstance(model, TwoStackModel):
        target = model.encode_target(_TRIAL)
    trial = getattr(model, "trial", None) or model.encode(_TRIAL)  # of pictures, one of its own
    record = capture(model, trial, kind=kind, target=target)
    return Probing(model, kind, record.causal)
