"""From a request to a report: reads a text and follows its attention through the layers."""

from __future__ import annotations

from dataclasses import replace

from attnviz.engine.capture import Choice, attention_kind, encoded, target_tokens
from attnviz.engine.observer import reads_sums
from attnviz.errors import UnsupportedError
from attnviz.inspect.rollout.flow import follow
from attnviz.inspect.rollout.report import RolloutReport
from attnviz.inspect.rollout.request import RolloutRequest
from attnviz.measures.words import joined
from attnviz.models.memory import require_room
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.work import Work, about_tokens
from attnviz.regions import finished

_MATRICES = 4
"""How many float64 matrices of the text a rollout holds at once."""

_SAMPLED = 16
"""How many tokens of a long text are followed."""


def work(text: str, request: RolloutRequest) -> Work:
    """Return what is planned with a model for a text, by which NumPy or torch is chosen."""
    return Work(None if request.reduce == "fused" else about_tokens(text))


def rollout(model: Model, text: str, request: RolloutRequest) -> RolloutReport:
    """Return the report of the attention rollout of a model over a text.

    Raises UsageError if a text or a kind of attention does not fit the model or the memory;
    UnsupportedError if the attention cannot be observed.
    """
    text = finished(model, text, answering=False)
    choice = Choice(kind=request.kind, target=request.target, truncate=request.truncate)
    kind = attention_kind(model, choice)
    tokens, target = encoded(model, text, choice.truncate), None
    if isinstance(model, TwoStackModel) and kind == "decoder":
        target = target_tokens(model, tokens, choice)
    length = len(target or tokens)
    found = None
    if reads_sums(model.info, length, request.reduce):
        info = model.info
        kept = info.layers * (info.heads + info.kv_heads) * info.head_dim + 4 * _SAMPLED
        require_room(
            f"the queries and keys of {length:,} tokens in every layer take",
            4 * length * kept,
            "shorten the text, or add --truncate",
        )
        try:
            found = follow(model, tokens, kind=kind, target=target, sampled=_SAMPLED)
        except UnsupportedError:
            if request.reduce == "fused":
                raise
    if found is None:
        require_room(
            f"following {length:,} tokens through the layers takes",
            _MATRICES * 8 * length**2,
            "shorten the text, or add --truncate",
        )
        found = follow(model, tokens, kind=kind, target=target)
    written = None if target is None else joined(target)
    said = choice.target if target is not None and choice.target is not None else written
    return replace(found, text=text, target=said, values=request.values, keep_sink=request.sink)
