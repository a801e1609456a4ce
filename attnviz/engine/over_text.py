"""From a text and a choice of heads to a record of their attention."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.engine.run import capture
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.models.memory import require_room
from attnviz.models.model import Model, PairModel, TwoStackModel
from attnviz.records import AttentionRecord, Kind, Tokens

__all__ = ["Choice", "attention_kind", "encoded", "observe", "require_maps", "target_tokens"]

_DECODER_KINDS = ("decoder", "cross")
_TARGET_TOKENS = 64
"""The longest decoder text that a model writes for itself."""


@dataclass(frozen=True)
class Choice:
    """Which part of a model's attention over a text is wanted.

    layers, heads: as typed after ``--layer`` and ``--head``, numbered from ``index_base``.
    kind, target: of an encoder–decoder, or of one text that looks at another; None for the
        model's own default.
    truncate: cut a text that is longer than the model's context rather than refuse it.
    """

    layers: str | None = None
    heads: tuple[str, ...] = ()
    index_base: int = 0
    kind: Kind | None = None
    target: str | None = None
    truncate: bool = False


def observe(model: Model, text: str, choice: Choice) -> tuple[AttentionRecord, bool]:
    """Run ``model`` over ``text``; the record, and whether the choice left out any head.

    Raises UsageError where the choice, the text or the memory does not fit the model.
    """
    kind = attention_kind(model, choice, across=True)
    info = model.info
    heads = choose_heads(choice.layers, choice.heads, info.layers, info.heads, choice.index_base)
    tokens = encoded(model, text, choice.truncate)
    target = None
    if isinstance(model, PairModel) and kind == "cross":
        target = _looking_tokens(model, tokens, choice)
    elif isinstance(model, TwoStackModel) and kind in _DECODER_KINDS:
        target = target_tokens(model, tokens, choice)
    queries = target if target is not None else tokens
    keys = tokens if kind == "cross" else queries
    kept = info.layers * info.heads if heads is None else sum(map(len, heads.values()))
    choose = "fewer heads" if heads else "some with --layer or --head"
    require_maps(kept, len(queries), len(keys), f"choose {choose}, or shorten the text")
    record = capture(model, tokens, kind=kind, target=target, heads=heads)
    return record, heads is not None


def attention_kind(model: Model, choice: Choice, *, across: bool = False) -> Kind:
    """The chosen kind, or the model's first; UsageError for one that it does not have.

    across: take the cross attention of a ``PairModel`` too.
    """
    kind, kinds = choice.kind or model.kinds[0], model.kinds
    if isinstance(model, PairModel):
        kinds = (*kinds, "cross")
        if kind == "cross" and not across:
            raise UsageError(
                f"the cross attention of {model.info.name!r} is shown by attnviz heads alone"
            )
    if kind not in kinds:
        raise UsageError(
            f"{model.info.name!r} has no {kind} attention: expected --kind {' or '.join(kinds)}"
        )
    if choice.target is not None and kind not in _DECODER_KINDS:
        if isinstance(model, PairModel):
            raise UsageError("--target is the text that looks at the other: add --kind cross")
        raise UsageError("--target is the decoder's text: add --kind decoder or --kind cross")
    return kind


def encoded(model: Model, text: str, truncate: bool) -> Tokens:
    """The text's tokens; UsageError where there are none, or more than the context holds."""
    tokens = model.encode(text)
    if not len(tokens):
        raise UsageError("the text has no tokens: expected at least one word")
    if model.context is None or len(tokens) <= model.context:
        return tokens
    if truncate:
        return model.encode(text, model.context)
    raise UsageError(
        f"the text has {len(tokens):,} tokens, {model.info.name!r} takes at most "
        f"{model.context:,}: shorten it, or add --truncate to cut it there"
    )


def target_tokens(model: TwoStackModel, tokens: Tokens, choice: Choice) -> Tokens:
    """The decoder's tokens: the user's text, or what the model itself writes.

    Raises UsageError for a text that the decoder has no room for.
    """
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


def _looking_tokens(model: PairModel, tokens: Tokens, choice: Choice) -> Tokens:
    """The queries of cross attention; UsageError where they are missing or a mask makes no sense.

    tokens: of the text that gives the keys and the values.
    """
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
    """Refuse maps that the memory cannot hold before the model runs."""
    require_room(
        f"the maps of {heads:,} heads over {queries:,} x {keys:,} tokens take",
        4 * heads * queries * keys,
        advice,
    )
