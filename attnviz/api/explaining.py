"""The functions that explain what a model predicts and attends to; each has its command's name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from attnviz.api.opening import given_prompt, in_own_modes, open_given
from attnviz.options import spelled_heads
from attnviz.texts import texts_of

__all__ = ["lens", "link", "why"]

if TYPE_CHECKING:
    from attnviz.api.opening import AnyChat, AnyHeads, AnyModel
    from attnviz.inspect.lens.report import LensReport
    from attnviz.inspect.link.report import LinkReport
    from attnviz.inspect.why.report import WhyReport
    from attnviz.records import Kind


@in_own_modes
def lens(
    model: AnyModel,
    text: str | None = None,
    *,
    tokenizer: Any = None,
    chat: AnyChat = None,
    answer: str | None = None,
    position: str | int | None = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: Literal["decoder", "cross"] | None = None,
    target: str | None = None,
    second: str | None = None,
    truncate: bool = False,
    no_known_labels: bool = False,
    index_base: int = 0,
) -> LensReport:
    """Measure what a model would predict after each block, and what each head writes there.

    model, tokenizer: see ``capture``. text: one prompt. chat: a chat in its place, see ``heads``.
    answer: the token that is followed, by default the model's top prediction. position: where it is
        predicted, a word or an index; by default the last. layer, head: the heads that are listed.
    second: a text that is joined to the prompt, for models that compare two.
    The other options are those of ``attnviz lens``; see ``LensRequest``.

    Raises what ``capture`` raises, UnsupportedError if its blocks do not add to one residual
    stream.
    """
    from attnviz.inspect.lens import lens as question
    from attnviz.inspect.lens.request import LensRequest

    request = LensRequest.of(locals())
    read = given_prompt(request, text, 'attnviz.lens("tiny", "The cat sat.")')
    opened = open_given(model, tokenizer, question.work(read, request))
    return question.lens(opened, read, request)


@in_own_modes
def link(
    model: AnyModel,
    prompts: str | Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    chat: AnyChat = None,
    head: str | int | tuple[int, int] | None = None,
    query: str | int | None = None,
    key: str | int | None = None,
    than: str | int | None = None,
    controls: int | None = None,
    kind: Kind | None = None,
    target: str | None = None,
    truncate: bool = False,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> LinkReport:
    """Split a head's attention to one key exactly, by the parts that wrote the query and the key.

    model, tokenizer: see ``capture``. prompts: one, or several for means with intervals. chat: a
        chat in their place, see ``heads``.
    head: such as ``"L1H2"`` or ``(1, 2)``. query, key, than: the token that attends, the one that
        is attended to, and a key to compare it with, each a word or an index. controls: the number
        of changed prompts, with other words around query and key.
    The other options are those of ``attnviz link``; see ``LinkRequest``, which has the defaults.

    Raises what ``capture`` raises, UnsupportedError if the parts do not give its own weights.
    """
    given = locals() | {"head": None if head is None else spelled_heads(head)[0]}
    from attnviz.inspect.link import link as question
    from attnviz.inspect.link.request import LinkRequest
    from attnviz.prompts.study import read_prompts

    request = LinkRequest.of(given)
    read, source = read_prompts("link", request, texts=texts_of(prompts))
    opened = open_given(model, tokenizer, question.work(read, request))
    report = question.link(opened, read, request, source=source)
    report.require_tally()
    return report


@in_own_modes
def why(
    model: AnyModel,
    prompts: str | Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    chat: AnyChat = None,
    answer: str | None = None,
    foil: str | None = None,
    position: str | int | None = None,
    controls: int | None = None,
    inputs: bool = False,
    draws: int = 20,
    ffn: str | None = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: Literal["decoder", "cross"] | None = None,
    target: str | None = None,
    second: str | None = None,
    truncate: bool = False,
    top: int = 8,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> WhyReport:
    """Split the predicted token's logit exactly into what each head adds to it.

    model, tokenizer: see ``capture``. prompts: one, or several for means with intervals. chat: a
        chat in their place, see ``heads``.
    answer: the token whose logit is explained, by default the model's top prediction. foil: explain
        logit(answer) − logit(foil) instead. position: where it is predicted, a word or an index; by
        default the last. controls: the number of changed prompts, with another token wherever the
        answer occurs.
    inputs: also measure what the prediction loses with ``draws`` other words in the place of each
        word, and with each word hidden; see ``InputEffects``. ffn: a layer, ``"L2"``, whose
        feed-forward block is split into its neurons; see ``NeuronReading``.
    layer, head: the heads whose maps are in the report.
    second: a text that is joined to the prompt, for models that compare two.
    The other options are those of ``attnviz why``; see ``WhyRequest``.

    Raises what ``capture`` raises, UnsupportedError if the parts do not sum to its logit.
    """
    from attnviz.inspect.why import why as question
    from attnviz.inspect.why.request import WhyRequest
    from attnviz.prompts.study import read_prompts

    request = WhyRequest.of(locals())
    read, source = read_prompts("why", request, texts=texts_of(prompts))
    opened = open_given(model, tokenizer, question.work(read, request))
    report = question.why(opened, read, request, source=source)
    report.require_tally()
    return report
