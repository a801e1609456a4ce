"""Makes the report of ``why``: encodes the question, decomposes the logit, runs controls.

A prompt that contains the answer has a base rate: each head's contribution to the same answer with
other tokens of the vocabulary in the answer's earlier places. Heads that repeat what they have read
write less then; heads that always write this token write as much.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.attribution.on_numpy import NumpyAttributor
from attnviz.engine.attribution.parts import Attribution, Attributor, HeadKey
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import Choice, encoded, require_maps, written_targets
from attnviz.engine.known_labels import known_labels
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.inspect.why.inputs import LONG, input_effects
from attnviz.inspect.why.records import ExplainedPrompt, WhyReport
from attnviz.inspect.why.request import OtherText, WhyRequest
from attnviz.measures.bootstrap import copies_note
from attnviz.measures.words import find_in
from attnviz.models.bundled import Bundled
from attnviz.models.model import FinishedText, Model, Vocabulary, no_logits, require_number
from attnviz.models.resolve import LoadOptions, load, reckoned_tokens
from attnviz.models.stack_model import StackModel
from attnviz.options import HeadChoice, RegionOptions
from attnviz.progress import Advance
from attnviz.prompts import control_count, named_error, typed_prompts
from attnviz.records import HeadLabel, Input, Kind, Tokens
from attnviz.regions import both_texts, chat_or_text, finished, region_reader
from attnviz.texts import Texts, answer_and_foil, words_of

_TRIED = 8
"""How many tokens are tried for each control."""


class Prompt(NamedTuple):
    """One prompt with the question about its prediction, as typed.

    text: the prompt. answer, foil: the tokens that are compared, None for the defaults. position:
        where the answer is predicted, a word or an index. place: the prompt's name in messages,
        empty if it was typed.
    """

    text: str
    answer: str | None
    foil: str | None
    position: str | None
    place: str = ""


def read_prompts(
    request: WhyRequest,
    text: str | None = None,
    file: Path | None = None,
    texts: Path | Texts | None = None,
    column: str | None = None,
) -> tuple[list[Prompt], str]:
    """Return the prompts with their questions, and their source; see ``typed_prompts``."""
    usual = {"answer": request.answer, "foil": request.foil, "position": request.position}
    text = chat_or_text(request, text, file)
    read, source = typed_prompts("why", usual, text=text, file=file, texts=texts, column=column)
    return [Prompt._make((text, *asked, place)) for text, asked, place in read], source


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
    pairs, joined = list[tuple[Prompt, Input]](), tuple[str, ...]()
    for prompt in prompts:
        prompt = prompt._replace(text=finished(model, prompt.text, answering=True))
        given, joined = encoded_prompt(model, prompt.text, request, request.truncate)
        pairs.append((prompt._replace(text=both_texts(prompt.text, request.second)), given))
    asked = list({(given.ids, *prompt[1:4]): (prompt, given) for prompt, given in pairs}.values())
    if request.second is not None and asked[1:]:
        raise UsageError("--and joins a text to one prompt: leave out --texts, or --and")
    if request.inputs and asked[1:]:
        raise UsageError("--inputs explains one prompt: leave out --texts, or --inputs")
    wanted = control_count(request.controls, len(asked))
    first = asked[0][1]
    attributor = backend_of(model).open_attributor(first)
    found: list[ExplainedPrompt] = []
    shown: tuple[HeadKey, ...] = ()
    kinds: tuple[str, ...] = ()
    for number, (prompt, given) in enumerate(asked):
        plain = _attributed(attributor, model, prompt, given, shown if not number else ())
        _require_numbers(plain.found, model)
        if not number:
            kinds = kinds_shown(model, plain.found.heads, request.kind)
            shown = chosen_heads(model, plain.found.heads, request, kinds, request.index_base)
            if shown:
                require_maps(len(shown), *_sizes(given, shown), "choose fewer heads")
                plain = _attributed(attributor, model, prompt, given, shown)
        base = []
        for each in _controls(model, plain, wanted, (request.seed, number)):
            base.append(list(_same_question(attributor, plain, each).heads.values()))
            advance((number + len(base) / wanted) / len(asked))
        values = np.array(base).reshape(len(base), len(plain.found.heads))
        found.append(replace(plain, base=values))
        advance((number + 1) / len(asked))
    inputs = None
    if request.inputs and found[0].found.tallies:
        others = _others(model.vocabulary(), found[0], request.draws, (request.seed, 0))
        inputs = input_effects(model, found[0].given, found[0].found, others, advance)
    return WhyReport(
        model=model.info,
        prompts=tuple(found),
        text=found[0].text,
        shown=shown,
        kinds=kinds,
        labels={} if request.no_known_labels else labels_of(model, found[0].found.heads),
        inputs=inputs,
        seed=request.seed,
        source=source,
        top=request.top,
        index_base=request.index_base,
        notes=(
            *model.notes_for(first.text),
            *joined,
            *found[0].found.notes,
            *copies_note(len(pairs) - len(asked), len(pairs), "prompts"),
        ),
    )


def open_model(
    name: str, options: LoadOptions, prompts: Sequence[Prompt], request: WhyRequest
) -> Model:
    """Load a model with the faster of NumPy and torch that can split these logits.

    options: how it is loaded. prompts: their length decides which is faster.
    """
    options = replace(options, logits=True)
    runs = 1 + control_count(request.controls, len(prompts))
    tokens = sum(reckoned_tokens(prompt.text) for prompt in prompts)
    if request.inputs and tokens > LONG // 2:  # gradients may be needed
        return load(name, options)
    tokens *= runs + (tokens * request.draws if request.inputs else 0)
    return load_apart(name, replace(options, tokens=tokens))


def load_apart(name: str, options: LoadOptions) -> Model:
    """Load a model; on torch if NumPy can run it but cannot split its logits.

    name: of the model. options: how it is loaded.
    """
    model = load(name, options)
    if options.logits and isinstance(model, StackModel) and model.is_bare:
        raise no_logits(name)
    if (
        options.backend == "auto"
        and isinstance(model, StackModel)
        and not isinstance(model, Bundled)
        and NumpyAttributor.of(model) is None
    ):
        return load(name, replace(options, tokens=None))
    return model


# The question --------------------------------------------------------------------------------


def encoded_prompt(
    model: Model, text: str, other: OtherText, truncate: bool
) -> tuple[Input, tuple[str, ...]]:
    """Return the tokens of a prompt, with those of the decoder's text, and notes on two texts.

    other: the text of the decoder, by default the model's own greedy output, and a second text that
        is joined to the prompt. truncate: cut long texts.
    Raises UsageError for a target of a model with one stack.
    """
    target, choice = other.target, Choice(target=other.target, truncate=truncate)
    reader = region_reader(model, text, RegionOptions(second=other.second))
    tokens = encoded(model, text, truncate, None if reader is None else reader.encode)
    targets = written_targets(model, [tokens], choice)
    if target is not None and not targets:
        raise UsageError(f"--target is the text of a decoder: {model.info.name!r} has one stack")
    notes = () if reader is None else reader.notes(tokens)
    if text.endswith("\n") and not isinstance(text, FinishedText):
        notes = (*notes, "the prompt ends with a line feed: predicted is what follows that")
    return Input(tokens, *targets[:1]), notes


def _attributed(
    attributor: Attributor, model: Model, prompt: Prompt, given: Input, maps: Collection[HeadKey]
) -> ExplainedPrompt:
    """Return the prompt's logit as a sum of parts; an error names the prompt.

    given: its tokens. maps: the heads whose contribution maps (query, key) are included.
    """
    try:
        asked = answer_and_foil(model, prompt.answer, prompt.foil, attributor.labels)
        answer, foil = (None if word is None else word[0] for word in asked)
        found = attributor.attribute(
            given,
            position=position_in(given.predicted, prompt.position),
            answer=answer,
            foil=foil,
            maps=maps,
        )
    except UsageError as error:
        raise named_error(prompt.place, error) from error
    ids = [found.answer, *(one for one, _ in found.top)]
    ids += [] if found.foil is None else [found.foil]
    words = words_of(model, found.labels, ids)
    none = np.zeros((0, len(found.heads)))
    return ExplainedPrompt(prompt.text, given, found, words, answer is not None, none)


def _require_numbers(found: Attribution, model: Model) -> None:
    """Raise an error if parameters that are not finite have changed the logit.

    found: the logit and its parts. Fused attention may turn weights of NaN into zeros: the logit is
        finite, but a row is missing.
    """
    info = model.info
    lost = info.not_finite and len(found.rows) < len(found.heads)
    known = math.isfinite(found.top[0][1]) and not lost  # a probability needs every logit
    require_number("logit", found.logit if known else math.nan, info)


def position_in(tokens: Tokens, typed: str | None) -> int | None:
    """Return the position that ``--position`` names: of a token, or of a word's last token.

    tokens: of the prompt. typed: an index or a word (``WORD:2`` is its second occurrence); None
        gives None. Raises UsageError if the prompt does not have it.
    """
    if typed is None:
        return None
    word = find_in(tokens, typed)
    if word is None:
        raise UsageError(
            f"--position: no token {typed!r} in the prompt: give a word of it, WORD:2 for its "
            f"second place, or an index from 0 to {len(tokens) - 1}"
        )
    return word.span.stop - 1


def chosen_heads(
    model: Model, heads: Collection[HeadKey], request: HeadChoice, kinds: Collection[str], base: int
) -> tuple[HeadKey, ...]:
    """Return those of the heads that ``--layer`` and ``--head`` name; none if neither is given.

    kinds: the kinds of attention to choose from. base: the first number of layers and heads.
    Raises UsageError if the options name no such head.
    """
    info = model.info
    chosen = choose_heads(request.layer, request.head, info.layers, info.heads, base)
    if chosen is None:
        return ()
    keys = [key for key in heads if key[0] in kinds and key[2] in chosen.get(key[1], ())]
    if not keys:
        raise UsageError("none of the chosen layers has such a head: choose others with --head")
    return tuple(keys)


def kinds_shown(model: Model, heads: Collection[HeadKey], kind: Kind | None) -> tuple[str, ...]:
    """Return the kinds of attention of the heads; only ``kind`` if it is given.

    Raises UsageError if no head is of that kind.
    """
    there = tuple(dict.fromkeys(each for each, _, _ in heads))
    if kind is None:
        return there
    if kind not in there:
        raise UsageError(f"{model.info.name!r} has no {kind} attention: leave out --kind")
    return (kind,)


def _sizes(given: Input, shown: Collection[HeadKey]) -> tuple[int, int]:
    kinds = {kind for kind, _, _ in shown}
    return (
        max(len(given.queries(kind)) for kind in kinds),
        max(len(given.keys(kind)) for kind in kinds),
    )


def labels_of(model: Model, heads: Collection[HeadKey]) -> Mapping[HeadKey, HeadLabel]:
    """Return by head the label that an earlier run measured; heads without one are left out."""
    labels: dict[HeadKey, HeadLabel] = {}
    for kind in dict.fromkeys(kind for kind, _, _ in heads):
        known = known_labels(model, kind)
        for (layer, head), label in known.named().items() if known is not None else ():
            if (kind, layer, head) in heads:
                labels[kind, layer, head] = label
    return labels


# The base rate -------------------------------------------------------------------------------


def _controls(
    model: Model, plain: ExplainedPrompt, wanted: int, seed: tuple[int, int]
) -> Iterator[Input]:
    """Yield control prompts: copies with another token in place of the answer.

    The answer's earlier occurrences in the prompt are replaced. plain: the explained prompt.
    wanted: how many copies. seed: of the draws. Yields none if the prompt does not contain the
    answer, or if the parts do not sum to the logit.
    """
    given, found = plain.given, plain.found
    if not (found.tallies and wanted) or found.labels:
        return
    places = _earlier(given.predicted, found)
    text = [at for at, token in enumerate(given.ids) if token == found.answer]
    if not (places or (given.target and text)):
        return
    for other in _others(model.vocabulary(), plain, wanted, seed):
        if given.target is None:
            yield replace(given, text=_with(given.text, places, other))
        else:
            target = _with(given.target, places, other)
            yield replace(given, text=_with(given.text, text, other), target=target)


def _earlier(tokens: Tokens, found: Attribution) -> list[int]:
    """Return the positions of the answer's token in the prompt that the prediction can see."""
    own = [row for (kind, _, _), row in found.rows.items() if kind != "cross"]
    both = any(np.any(row[found.position + 1 :]) for row in own)  # a masked model sees all tokens
    seen = len(tokens) if both else found.position
    places = [at for at, token in enumerate(tokens.ids[:seen]) if token == found.answer]
    return [at for at in places if at != found.position]


def _others(
    vocabulary: Vocabulary, plain: ExplainedPrompt, wanted: int, seed: tuple[int, int]
) -> list[int]:
    """Return ids of tokens that are not in the prompt; first those that begin as the answer does.

    plain: the explained prompt. wanted: how many ids. seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    there = {*plain.given.ids, *(plain.given.target_ids or ()), plain.found.answer}
    there |= {plain.found.foil} if plain.found.foil is not None else set()
    free: NDArray[np.int64] = vocabulary.plain[~np.isin(vocabulary.plain, list(there))]
    tried = generator.permutation(free)[: _TRIED * wanted].tolist()
    texts = vocabulary.texts(tried)
    alike = [_begins(text) == _begins(plain.answer) for text in texts]
    kept = [token for token, same in zip(tried, alike, strict=True) if same]
    return [*kept, *(token for token in tried if token not in kept)][:wanted]


def _begins(text: str) -> tuple[bool, bool]:
    return text.startswith(" "), text.strip().isalpha()


def _with(tokens: Tokens, places: Collection[int], other: int) -> Tokens:
    ids = tuple(other if at in places else one for at, one in enumerate(tokens.ids))
    return replace(tokens, ids=ids)


def _same_question(attributor: Attributor, plain: ExplainedPrompt, given: Input) -> Attribution:
    found = plain.found
    return attributor.attribute(
        given, position=found.position, answer=found.answer, foil=found.foil
    )
