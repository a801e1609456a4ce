"""Makes the report of ``why``: decomposes the logit of each prompt, runs controls.

A prompt that contains the answer has a base rate: each head's contribution to the same answer with
other tokens of the vocabulary in the answer's earlier places. Heads that repeat what they have read
write less then; heads that always write this token write as much.

Which words a prediction needs: each is replaced by others, and hidden: no other token attends to
it, in any head, while all places stay. Both are runs of the model, not estimates. A text that is
too long for that has integrated gradients instead, see ``integrated``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.attribution.parts import AskedLogit, Attribution, Attributor
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import require_maps
from attnviz.engine.likely import answer_places, log_softmax
from attnviz.engine.observer import to_numpy
from attnviz.errors import UsageError
from attnviz.inspect.why.report import ExplainedPrompt, InputEffects, WhyReport
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

_TRIED = 8  # how many tokens are tried for each control


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
    if others and (request.inputs or request.ffn is not None):
        option = "--inputs" if request.inputs else "--ffn"
        raise UsageError(f"{option} explains one prompt: leave out --texts, or {option}")
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
        own = plain.attribution
        base = list[list[float]]()
        for control in study.watched(number, controls):
            same = attributor.attribute(
                control, position=own.position, answer=own.answer, foil=own.foil
            )
            base.append(list(same.heads.values()))
        explained.append(replace(plain, base=np.array(base).reshape(len(base), len(own.heads))))
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
    """Return a prompt's logit as a sum of parts; ``maps``: the heads with maps (query, key)."""
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
    """Yield control prompts, in which another token replaces the answer where it stands earlier."""
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

    def changed(tokens: Tokens, positions: Collection[int], other: int) -> Tokens:
        ids = (other if at in positions else token for at, token in enumerate(tokens.ids))
        return replace(tokens, ids=tuple(ids))

    for other in _other_tokens(model.vocabulary(), plain, wanted, seed):
        target = None if given.target is None else changed(given.target, earlier, other)
        yield Input(changed(given.text, in_text, other), target)


def _other_tokens(
    vocabulary: Vocabulary, plain: ExplainedPrompt, wanted: int, seed: tuple[int, int]
) -> list[int]:
    """Return ids of tokens not in the prompt; first those that begin as the answer does."""
    generator = np.random.default_rng(seed)
    foil = plain.attribution.foil
    used = {*plain.given.ids, *(plain.given.target_ids or ()), plain.attribution.answer}
    used |= set() if foil is None else {foil}
    free: NDArray[np.int64] = vocabulary.plain[~np.isin(vocabulary.plain, list(used))]
    tried = generator.permutation(free)[: _TRIED * wanted].tolist()

    def begins(text: str) -> tuple[bool, bool]:
        return text.startswith(" "), text.strip().isalpha()

    texts = zip(tried, vocabulary.texts(tried), strict=True)
    kept = [token for token, text in texts if begins(text) == begins(plain.answer)]
    return [*kept, *(token for token in tried if token not in kept)][:wanted]


# Which words the prediction needs -------------------------------------------------------------

LONG = 128
"""The most tokens of a text whose words are replaced and hidden one by one."""

_TOKENS, _LOGITS = 4096, 2**24  # the most tokens, and the most logits, of texts that run together


def input_effects(
    model: Model,
    given: Input,
    attribution: Attribution,
    others: Sequence[int],
    advance: Advance = lambda share: None,
) -> InputEffects:
    """Measure how much a prediction loses without each token of its text.

    attribution: the logit of the prediction. others: the ids of the words that replace each token.
    Raises UsageError for an encoder–decoder, UnsupportedError if tokens cannot be hidden, or if a
    long text needs gradients and NumPy runs the model.
    """
    if given.target is not None:
        raise UsageError("--inputs reads models of one stack: leave it out for an encoder-decoder")
    if len(given.text) > LONG:
        return _integrated(model, given, attribution)
    if len(others) < 2:
        raise UsageError(
            "--inputs: the vocabulary has fewer than 2 words that are not in the prompt: nothing "
            "could stand in a word's place"
        )
    attributor = backend_of(model).open_attributor(given)
    (own,), count = _values(attributor, attribution, [given])
    text = given.text
    size = max(min(_TOKENS // len(text), _LOGITS // count), 1)
    plain = np.isin(text.ids, model.vocabulary().plain)
    tried = np.flatnonzero(plain & ~np.array(text.special)).tolist()
    rows = [given.masked(at, other) for at in tried for other in others]
    values = np.empty(len(rows))
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        values[start : start + size], _ = _values(attributor, attribution, some)
        advance((start + len(some)) / len(rows))
    drawn = own - values.reshape(len(tried), len(others))
    replaced, errors, hidden = (np.full(len(text), np.nan) for _ in range(3))
    replaced[tried] = drawn.mean(1)
    errors[tried] = drawn.std(1, ddof=1) / np.sqrt(len(others))
    for start in range(0, len(text), size):
        tokens = range(start, min(start + size, len(text)))
        left, _ = _values(attributor, attribution, [given] * len(tokens), tokens)
        hidden[start : tokens.stop] = own - left
    return InputEffects(
        quantity="log_probability" if attribution.foil is None else "logit_difference",
        own=float(own),
        draws=len(others),
        replaced=replaced,
        errors=errors,
        hidden=hidden,
    )


def _values(
    attributor: Attributor, asked: Attribution, texts: Sequence[Input], hidden: Sequence[int] = ()
) -> tuple[NDArray[np.floating], int]:
    """Return ln p(answer), or logit(answer) − logit(foil), (text,), and the number of logits.

    texts: of one length, which run together. hidden: see ``Attributor.logits_of_texts``.
    """
    logits = attributor.logits_of_texts(texts, asked.position, hidden)
    own = logits[:, asked.answer]
    if asked.foil is not None:
        own = own - logits[:, asked.foil]
    elif asked.span is None and not asked.several:
        on_host = isinstance(logits, np.ndarray)
        own = log_softmax(logits)[:, asked.answer] if on_host else own - logits.logsumexp(-1)
    values: NDArray[np.float64] = to_numpy(own).astype(np.float64, copy=False)
    if asked.several and asked.foil is None:
        values = -np.logaddexp(0, -values)
    return values, logits.shape[1]


def _integrated(model: Model, given: Input, asked: Attribution) -> InputEffects:
    """Return integrated gradients in place of replaced words, for a long text."""
    patchable = backend_of(model).open_patchable(model.kinds[0], given, labels=True, several=True)
    positions = answer_places(given.text) if patchable.answers else []
    from torch import Tensor  # torch only where needed
    from torch.nn.functional import logsigmoid

    from attnviz.engine.attribution.on_torch import integrated_gradients

    def measure(logits: Tensor) -> Tensor:
        if positions:
            own = logits[:, positions, asked.answer].log_softmax(-1)
            return own[:, positions.index(asked.position)]
        logits = logits[:, 0]
        answer = logits[:, asked.answer]
        if asked.foil is not None:
            return answer - logits[:, asked.foil]
        return logsigmoid(answer) if asked.several else logits.log_softmax(-1)[:, asked.answer]

    shares = integrated_gradients(patchable, given, None if positions else asked.position, measure)
    none = np.full(len(given.text), np.nan)
    return InputEffects(
        quantity="log_probability" if asked.foil is None else "logit_difference",
        own=shares.change,
        draws=0,
        replaced=shares.shares,
        errors=none,
        hidden=none,
        steps=shares.steps,
        gap=shares.gap,
        converged=shares.converged,
    )
