"""Run any model over a text, and return the record of its attention."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnviz.engine.backend import backend_of
from attnviz.engine.known_labels import by_label
from attnviz.engine.observer import KeepWeights, no_numbers
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.models.memory import require_room
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.own import OwnAttention
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
    ids, segments = (torch.tensor(each) for each in (tokens.ids, tokens.segments))

    def told(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        read = options.get("input_ids", args[0] if args else None)
        if (
            read is None
            or read.shape[-1] > len(ids)
            or not (read.cpu() == ids[: read.shape[-1]]).all()
        ):
            return None
        types = segments[: read.shape[-1]].to(read.device).expand_as(read)
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
    given, kind, heads = (wanted := asked(model, text, choice)).given, wanted.kind, wanted.heads
    record = capture(
        model, given.text, kind=kind, target=given.target, heads=heads, advance=advance
    )
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
    require_room(
        f"the maps of {heads:,} heads over {queries:,} x {keys:,} tokens take",
        4 * heads * queries * keys,
        advice,
    )


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
    if isinstance(model, OwnAttention):
        causal = kind != "cross" and model.causal and len(tokens) > 1
    else:
        causal = kind != "cross" and all(
            layer.weights.shape[-1] > 1 and not (np.triu(layer.weights, 1) > 0).any()
            for layer in layers
        )
    weights = [layer.weights for layer in layers]
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
