"""Makes the report of ``attnviz scaling``, from random queries and keys or from a model."""

from __future__ import annotations

from dataclasses import replace

from attnviz.engine.capture import encoded
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.learn.scaling.measure import (
    model_scaling,
    needed_bytes,
    needed_text_bytes,
    random_scaling,
)
from attnviz.learn.scaling.records import ScalingReport
from attnviz.learn.scaling.request import ScalingRequest
from attnviz.models.memory import require_room
from attnviz.models.model import Model
from attnviz.progress import Advance
from attnviz.texts import BUILT_IN_TEXT, Texts

_NEEDED = "the scores and weights take"

BUILT_IN = Texts((BUILT_IN_TEXT,), "a built-in text")
"""The text that a model reads if none is given."""


def scaling(
    model: Model | None,
    text: Texts,
    request: ScalingRequest,
    *,
    advance: Advance = lambda share: None,
) -> ScalingReport:
    """Compare the softmax of the scores with and without the scale 1/√d_k.

    model: the model whose queries and keys over the text are measured; None for random ones, for
        which the text is ignored. advance: is called with the share that is done.
    Raises UsageError if options do not fit, the text has one token or the memory is too small,
    UnsupportedError if the model does not expose its queries and keys.
    """
    request.check_source(model is not None)
    if model is None:
        return _of_random_vectors(request, advance)
    return _of_model(model, text, request)


def _of_random_vectors(request: ScalingRequest, advance: Advance) -> ScalingReport:
    seq = 64 if request.seq is None else request.seq
    samples = 100 if request.samples is None else request.samples
    needed = needed_bytes(request.sizes, seq, samples)
    require_room(_NEEDED, needed, "choose a smaller --d-k, --seq or --samples")
    return random_scaling(request.sizes, seq, samples, request.seed, advance)


def _of_model(model: Model, text: Texts, request: ScalingRequest) -> ScalingReport:
    info = model.info
    chosen = choose_heads(request.layer, request.head, info.layers, info.heads, request.index_base)
    tokens = encoded(model, text.texts[0], request.truncate)
    if len(tokens) < 2:
        raise UsageError(
            "the text has one token: expected at least two, or there is nothing to choose"
        )
    require_room(_NEEDED, needed_text_bytes(len(tokens)), "shorten the text, or add --truncate")
    report = model_scaling(
        model,
        tokens,
        chosen,
        seed=request.seed,
        by_head=bool(request.head),
        index_base=request.index_base,
    )
    return replace(report, text=text.texts[0], source=text.source)
