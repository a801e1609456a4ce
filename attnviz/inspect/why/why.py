"""Makes the report of ``why``: decomposes the logit of each prompt, runs controls.

A prompt that contains the answer has a base rate: each head's contribution to the same answer with
other tokens of the vocabulary in the answer's earlier places. Heads that repeat what they have read
write less then; heads that always write this token write as much.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.attribution.parts import AskedLogit, Attributor
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import require_maps
from attnviz.errors import UsageError
from attnviz.inspect.why.inputs import LONG, input_effects
from attnviz.inspect.why.report import ExplainedPrompt, WhyReport
from attnviz.inspect.why.request import WhyRequest
from attnviz.models.model import Model, Vocabulary, require_number
from attnviz.models.work import Work, about_tokens
from attnviz.progress import Advance
from attnviz.prompts.study import (
    Prompt,
    StudiedPrompt,
    control_count,
    encode_asked,
    place_in,
    rest_of_word,
    shown_heads,
    splits_logits,
    study_of,
)
from attnviz.records import HeadKey, Input, Tokens
from attnviz.texts import answer_and_foil, words_of

_TRIED = 8
"""How many tokens are tried for each control."""


def why(
    model: Model,
    prompts: Sequence[Prompt],
    request: WhyRequest,
    *,
    source: str = "",
    advance: Advance = lambda share: None,
) -> WhyReport:
    """Split the logit of each prompt into the contributions of heads and other parts.

    prompts: with the question about each. source: a description of where they come from, or "" if
        they were typed. advance: is called with the share that is done.
    If the parts do not sum to the model's own logit, ``tallies`` of the report is False and nothing
    in it is ranked; see its ``require_tally``. Raises UsageError if prompts, positions, tokens or
    heads do not fit the model, UnsupportedError if its logits cannot be split.
    """
    study = study_of(model, prompts, request, encode_asked, advance=advance)
    first, *others = study.prompts
    if request.second is not None and others:
        raise UsageError("--and joins a text to one prompt: leave out --texts, or --and")
    if request.inputs and others:
        raise UsageError("--inputs explains one prompt: leave out --texts, or --inputs")
    if request.ffn is not None and others:
        raise UsageError("--ffn explains one prompt: leave out --texts, or --ffn")
    wanted = control_count(request.controls, len(study.prompts))
    attributor = backend_of(model).open_attributor(first.given)
    plain = _explained(attributor, model, first)
    heads = shown_heads(model, plain.attribution.heads, request)
    if heads.chosen:
        kinds = {kind for kind, _, _ in heads.chosen}
        queries, keys = (
            max(len(tokens(kind)) for kind in kinds)
            for tokens in (first.given.queries, first.given.keys)
        )
        require_maps(len(heads.chosen), queries, keys, "choose fewer heads")
        plain = _explained(attributor, model, first, heads.chosen)
    explained: list[ExplainedPrompt] = []
    for number, prompt in enumerate(study.prompts):
        plain = plain if prompt is first else _explained(attributor, model, prompt)
        controls = list(_controls(model, plain, wanted, (request.seed, number)))
        own, base = plain.attribution, list[list[float]]()
        for control in study.watched(number, controls):
            same = attributor.attribute(
                control, position=own.position, answer=own.answer, foil=own.foil
            )
            base.append(list(same.heads.values()))
        shape = len(base), len(own.heads)
        explained.append(replace(plain, base=np.array(base).reshape(shape)))
    if not others and first.question.position is None:
        own = plain.attribution
        rest = rest_of_word(model, attributor, first.given, own.position, own.top[0][0])
        explained = [replace(explained[0], rest=rest)]
    plain, inputs = explained[0], None
    if request.inputs and plain.attribution.tallies:
        words = _other_tokens(model.vocabulary(), plain, request.draws, (request.seed, 0))
        inputs = input_effects(model, plain.given, plain.attribution, words, advance)
    own, neurons = plain.attribution, None
    layers = {part.layer for part in own.parts if part.kind == "mlp" and part.layer is not None}
    block = request.block(layers, request.index_base)
    if block is not None and own.tallies:
        asked = AskedLogit(own.position, own.answer, own.foil, ())
        neurons = attributor.neurons(plain.given, asked, block)
    return WhyReport(
        model=model.info,
        prompts=tuple(explained),
        text=plain.text,
        shown=heads.chosen,
        kinds=heads.kinds,
        labels=heads.labels,
        inputs=inputs,
        neurons=neurons,
        seed=request.seed,
        source=source,
        top=request.top,
        index_base=request.index_base,
        notes=(*study.notes, *plain.attribution.notes, *study.copies),
    )


def work(prompts: Sequence[Prompt], request: WhyRequest) -> Work:
    """Return the planned work over prompts, from which the loader chooses NumPy or torch."""
    runs = 1 + control_count(request.controls, len(prompts))
    tokens = about_tokens(*(prompt.text for prompt in prompts))
    if request.inputs and tokens > LONG // 2:  # gradients may be needed
        return Work(logits=True)
    tokens *= runs + (tokens * request.draws if request.inputs else 0)
    return Work(tokens, logits=True, fits=splits_logits)


def _explained(
    attributor: Attributor,
    model: Model,
    prompt: StudiedPrompt[WhyRequest],
    maps: Collection[HeadKey] = (),
) -> ExplainedPrompt:
    """Return the prompt's logit as a sum of parts.

    maps: the heads whose contribution maps (query, key) are included. Raises an error if parameters
    that are not finite have changed the logit.
    """
    question, given = prompt.question, prompt.given
    with prompt.naming():
        asked = answer_and_foil(model, question.answer, question.foil, attributor.labels)
        answer, foil = (None if word is None else word[0] for word in asked)
        attribution = attributor.attribute(
            given,
            position=place_in(given.predicted, question.position, "--position"),
            answer=answer,
            foil=foil,
            maps=maps,
        )
    # Fused attention may turn weights of NaN into zeros: the logit is finite, but a row is missing.
    # A probability needs every logit.
    lost = model.info.not_finite and len(attribution.rows) < len(attribution.heads)
    known = math.isfinite(attribution.top[0][1]) and not lost
    require_number("logit", attribution.logit if known else math.nan, model.info)
    ids = [attribution.answer, *(token for token, _ in attribution.top)]
    ids += [] if attribution.foil is None else [attribution.foil]
    return ExplainedPrompt(
        text=prompt.text,
        given=given,
        attribution=attribution,
        words=words_of(model, attribution.labels, ids),
        asked=answer is not None,
        base=np.zeros((0, len(attribution.heads))),
    )


# The base rate -------------------------------------------------------------------------------


def _controls(
    model: Model, plain: ExplainedPrompt, wanted: int, seed: tuple[int, int]
) -> Iterator[Input]:
    """Yield control prompts: copies with another token in place of the answer.

    The answer's earlier occurrences in the prompt are replaced. plain: the explained prompt.
    wanted: how many copies. seed: of the draws. Yields none if the prompt does not contain the
    answer, or if the parts do not sum to the logit.
    """
    given, attribution = plain.given, plain.attribution
    if not (attribution.tallies and wanted) or attribution.labels:
        return
    position, answer, ids = attribution.position, attribution.answer, given.predicted.ids
    own = [row for (kind, _, _), row in attribution.rows.items() if kind != "cross"]
    both_ways = any(np.any(row[position + 1 :]) for row in own)  # as in a masked model
    seen = ids if both_ways else ids[:position]
    earlier = [at for at, token in enumerate(seen) if token == answer and at != position]
    in_text = earlier
    if given.target is not None:
        in_text = [at for at, token in enumerate(given.ids) if token == answer]
    if not (earlier or in_text):
        return
    for other in _other_tokens(model.vocabulary(), plain, wanted, seed):
        target = None if given.target is None else _with(given.target, earlier, other)
        yield Input(_with(given.text, in_text, other), target)


def _other_tokens(
    vocabulary: Vocabulary, plain: ExplainedPrompt, wanted: int, seed: tuple[int, int]
) -> list[int]:
    """Return ids of tokens that are not in the prompt; first those that begin as the answer does.

    plain: the explained prompt. wanted: how many ids. seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    foil = plain.attribution.foil
    used = {*plain.given.ids, *(plain.given.target_ids or ()), plain.attribution.answer}
    used |= set() if foil is None else {foil}
    free: NDArray[np.int64] = vocabulary.plain[~np.isin(vocabulary.plain, list(used))]
    tried = generator.permutation(free)[: _TRIED * wanted].tolist()
    texts = zip(tried, vocabulary.texts(tried), strict=True)
    kept = [token for token, text in texts if _begins(text) == _begins(plain.answer)]
    return [*kept, *(token for token in tried if token not in kept)][:wanted]


def _begins(text: str) -> tuple[bool, bool]:
    return text.startswith(" "), text.strip().isalpha()


def _with(tokens: Tokens, places: Collection[int], other: int) -> Tokens:
    ids = tuple(other if at in places else token for at, token in enumerate(tokens.ids))
    return replace(tokens, ids=ids)
