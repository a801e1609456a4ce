"""The functions that explain a prediction by what heads write; each has the name of its command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from attnviz.api.opening import in_own_modes, one_text, open_given
from attnviz.texts import texts_of

__all__ = ["lens", "why"]

if TYPE_CHECKING:
    from attnviz.api.opening import AnyHeads, AnyModel
    from attnviz.inspect.lens.records import LensReport
    from attnviz.inspect.why.records import WhyReport


@in_own_modes
def lens(
    model: AnyModel,
    text: str,
    *,
    tokenizer: Any = None,
    answer: str | None = None,
    position: str | int | None = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: Literal["decoder", "cross"] | None = None,
    target: str | None = None,
    truncate: bool = False,
    no_known_labels: bool = False,
    index_base: int = 0,
) -> LensReport:
    """Return what a model would predict after each block, and what each head writes there.

    model, tokenizer: see ``capture``. text: one prompt.
    answer: the token that is followed, by default the model's top prediction. position: where it is
        predicted, a word or an index; by default the last. layer, head: the heads that are listed.
    The other options are those of ``attnviz lens``; see ``LensRequest``.

    Raises UsageError (also a ValueError) for options, heads or a text that do not fit, LoadError
    for a model that cannot be read, UnsupportedError if its blocks do not add to one residual
    stream.
    """
    given = locals()
    from attnviz.inspect.lens import lens as question
    from attnviz.inspect.lens.request import LensRequest
    from attnviz.models.resolve import LoadOptions

    request = LensRequest.of(given)
    read = one_text(text, 'attnviz.lens("tiny", "The cat sat.")')
    loaded = open_given(
        model, tokenizer, lambda name: question.open_model(name, LoadOptions(), read)
    )
    return question.lens(loaded, read, request)


@in_own_modes
def why(
    model: AnyModel,
    prompts: str | Iterable[str],
    *,
    tokenizer: Any = None,
    answer: str | None = None,
    foil: str | None = None,
    position: str | int | None = None,
    controls: int | None = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: Literal["decoder", "cross"] | None = None,
    target: str | None = None,
    truncate: bool = False,
    top: int = 8,
    copying: bool = False,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> WhyReport:
    """Split the predicted token's logit exactly into what each head adds to it.

    model, tokenizer: see ``capture``. prompts: one, or several for means with intervals.
    answer: the token whose logit is explained, by default the model's top prediction. foil: explain
        logit(answer) − logit(foil) instead. position: where it is predicted, a word or an index; by
        default the last. controls: the number of changed prompts, with another token wherever the
        answer occurs.
    layer, head: the heads whose maps are in the report. copying: also measure how often heads copy.
    The other options are those of ``attnviz why``; see ``WhyRequest``.

    Raises UsageError (also a ValueError) for options, heads or prompts that do not fit, LoadError
    for a model that cannot be read, UnsupportedError if the parts do not sum to its logit.
    """
    given = locals()
    from attnviz.inspect.why import why as question
    from attnviz.inspect.why.request import WhyRequest
    from attnviz.models.resolve import LoadOptions

    request = WhyRequest.of(given)
    read, source = question.read_prompts(request, texts=texts_of(prompts))
    loaded = open_given(
        model, tokenizer, lambda name: question.open_model(name, LoadOptions(), read, request)
    )
    report = question.why(loaded, read, request, source=source)
    report.require_tally()
    return report
