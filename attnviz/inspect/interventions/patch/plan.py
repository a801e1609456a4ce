"""The plan of a run of ``patch``: prompt pairs, their tokens and the patches, all checked first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnviz.draw.numbers import counted
from attnviz.draw.signed import Place
from attnviz.engine.capture import Choice, attention_kind
from attnviz.engine.known_labels import by_label
from attnviz.engine.likely import answer_places
from attnviz.engine.patching import SITES, WHOLE_LAYER, Patch, PatchMethod, PatchOptions, Site
from attnviz.engine.scan.patching import Patching
from attnviz.engine.scan.run import open_patching
from attnviz.engine.selection import choose_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.interventions.patch.report import AskedToken
from attnviz.inspect.interventions.patch.request import PatchRequest
from attnviz.measures.words import find_in
from attnviz.models.model import Model, model_identity, require_number
from attnviz.models.own import OwnAttention
from attnviz.progress import UNWATCHED, Watch
from attnviz.prompts.request import PromptPairs
from attnviz.prompts.study import (
    StudiedPair,
    TokenPair,
    control_pairs,
    fitting,
    joining,
    pair_study,
)
from attnviz.records import Kind, Tokens
from attnviz.resume import digest
from attnviz.texts import asked_word, words_of

_DRAWS = 8  # the number of random sources of the control if there is a single pair

_LEAST_DIFFERENCE = {"logit_diff": 0.1, "log_prob": 0.1, "kl": 0.01}
"""The least difference between two runs, in logits or nats: a share of less says nothing."""

MOST_FOLLOWED = 4  # the number of heads whose tokens are patched one by one if no heads were chosen
_ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDINGS = 4
"""Two runs must also differ by this many times the rounding error of the largest logit."""


@dataclass(frozen=True)
class AskedPair:
    """A prompt pair with its measured tokens; or an unrelated pair for the baseline of another.

    of: for an unrelated pair, the index of the measured pair. position: of the token in the patched
        prompt that predicts the answer.
    answer, foil: the tokens whose probabilities are compared; the foil is None if there is none.
    """

    index: int
    of: int
    tokens: TokenPair
    position: int
    answer: AskedToken
    foil: AskedToken | None


@dataclass(frozen=True)
class PatchPlan:
    """Everything that patching needs, checked before the first patch.

    text: the first pair's clean prompt, as it was given. wanted: the number of pairs given.
    asked: the prompt pairs to measure; the first one is shown. drawn: the number of controls whose
        source is random tokens. places: the (layer, head) that are patched one by one.
    threshold: the least difference of the metric between two runs for which shares are shown.
    opened: returns an object that patches it by another method.
    """

    model: Model
    request: PatchRequest
    kind: Kind
    text: str
    source: str
    wanted: int
    asked: tuple[AskedPair, ...]
    controls: tuple[AskedPair, ...]
    drawn: int
    places: tuple[Place, ...]
    together: tuple[Place, ...]
    threshold: float
    notes: tuple[str, ...]
    patching: Patching
    opened: Callable[[PatchMethod], Patching]

    @property
    def _side(self) -> int:
        return 0 if self.request.direction == "noise" else 1

    @property
    def base(self) -> Tokens:
        """Return the prompt of the first pair whose run the patches change."""
        tokens = self.asked[0].tokens
        return tokens.corrupt if self._side else tokens.clean

    @property
    def group(self) -> int:
        """Return how many query heads share a patched key/value head; else 1."""
        site = self.patching.sites(self.request.what)[0]
        return max(len(self.patching.served(site)), 1)

    def patches(self, asked: AskedPair) -> list[Patch]:
        """Return the patches of a prompt pair: one for each head or layer, then the joint one."""
        tokens: tuple[int, ...] | None = None
        where = self.request.where
        if where == "last":
            tokens = (asked.position,)
        elif where == "changed":
            possible = {match[self._side] for match in asked.tokens.matches}
            tokens = tuple(at for at in asked.tokens.changed[self._side] if at in possible)
            if not tokens:
                raise UsageError(
                    "--at changed: no token of one prompt stands against one of the other"
                )
        patches = [Patch((self._site(head, tokens),)) for head in self.places]
        joint = tuple(self._site(head, tokens) for head in self.together)
        return [*patches, Patch(joint)] if joint else patches

    def by_token(self, places: Sequence[Place]) -> tuple[list[int], list[Patch]]:
        """Return the token positions to patch in the first prompt pair, and the patches.

        There is a patch for each token and each of these, token by token. In a causal model nothing
        differs before the first token that differs; such tokens are left out.
        """
        pair, side = self.asked[0].tokens, self._side
        tokens = sorted(match[side] for match in pair.matches)
        if self.kind == "self" and self.asked[0].position == len(self.base) - 1:
            first = min(pair.changed[side], default=0)
            tokens = [token for token in tokens if token >= first]
        return tokens, [Patch((self._site(at, (token,)),)) for token in tokens for at in places]

    def _site(self, cell: Place, tokens: tuple[int, ...] | None) -> Site:
        what, (layer, head) = self.request.what, cell
        return Site(what, layer, None if what in WHOLE_LAYER else head, tokens)

    def identity(self) -> Mapping[str, Any]:
        """Return all facts that the results depend on, for comparison with a resume file."""
        request, runs = self.request, list[list[Any]]()
        for asked in (*self.asked, *self.controls):
            pair, foil = asked.tokens, asked.foil and asked.foil.id
            target = None if pair.target is None else pair.target.ids
            ids = [pair.clean.ids, pair.corrupt.ids, pair.places, target]
            runs.append([*ids, asked.answer.id, foil])
        return {
            **model_identity(self.model),
            "kind": self.kind,
            "what": request.what,
            "direction": request.direction,
            "pairs": f"{len(self.asked)} ({digest(runs)})",
            "at": request.where,
            "sites": f"{len(self.places)} ({digest([self.places, self.together])})",
        }


def plan_of(
    model: Model, given: PromptPairs, request: PatchRequest, watch: Watch = UNWATCHED
) -> PatchPlan:
    """Check and tokenize everything in a request; return what is patched, ready to run.

    watch: is given an announcement of the work, before any prompt is run. A pair of a file that
    does not fit the model's tokens is left out, with a note. Raises UsageError if no pair is left,
    UnsupportedError for a model that predicts nothing.
    """
    if isinstance(model, OwnAttention):
        raise UnsupportedError(
            f"{model.info.name!r} is attention alone: there is no prediction that a patch could "
            "change; choose a language model"
        )
    kind = attention_kind(model, Choice(kind=request.kind))
    study = pair_study(model, given.prompts, request.align, request.target)
    tokens = [pair.given for pair in study.prompts]
    controls, drawn = control_pairs(model, tokens, request.direction, _DRAWS, request.seed)
    pairs = [pair.engine for pair in (*tokens, *(pair for _, pair in controls))]

    def opened(method: PatchMethod) -> Patching:
        options = PatchOptions(request.direction, method, max_memory=request.memory)
        if request.resume is None:  # a file may be continued with another metric
            options = replace(options, metrics=(request.metric,))
        return open_patching(model, pairs, options, kind=kind)

    patching = opened("exact")
    places, together = _chosen(patching, request, model, kind)
    units = counted(len(places), "layer" if request.what in WHOLE_LAYER else "head")
    many = f" × {len(tokens):,} pairs" if len(tokens) > 1 else ""
    watch.begin(f"patching {SITES[request.what].words} of {units}{many}")
    asked, unasked = fitting(
        study.prompts, lambda index, pair: _asked(model, patching, index, pair, request), "pairs"
    )
    by_index = {pair.index: pair for pair in asked}
    threshold = _LEAST_DIFFERENCE[request.metric]
    if request.metric != "kl":
        largest = max(float(np.abs(run.logits).max()) for run in patching.predictions(0))
        rounding = _ROUNDING.get(model.info.dtype, 0.0)
        threshold = max(threshold, _ROUNDINGS * rounding * largest)
    first, joined = study.prompts[asked[0].index], tuple[str, ...]()
    if first.question.second is not None:
        reader = joining(model, first.question.clean, first.question.second)
        joined = reader.notes(first.given.clean)
    return PatchPlan(
        model=model,
        request=request,
        kind=kind,
        text=first.text,
        source=given.source,
        wanted=len(given.prompts),
        asked=tuple(asked),
        controls=tuple(
            replace(by_index[of], index=len(tokens) + number, tokens=pair)
            for number, (of, pair) in enumerate(controls)
            if of in by_index
        ),
        drawn=drawn,
        places=places,
        together=together,
        threshold=threshold,
        notes=(*study.notes, *study.copies, *unasked, *joined),
        patching=patching,
        opened=opened,
    )


def _asked(
    model: Model, patching: Patching, index: int, pair: StudiedPair, request: PatchRequest
) -> AskedPair:
    """Return a pair with the tokens that are compared; raise UsageError if they are the same."""
    clean, corrupt = patching.predictions(index)
    for plain in (clean, corrupt):
        require_number("logit", float(plain.logits[plain.top]), model.info)
    base = clean if request.direction == "noise" else corrupt
    words, labels, typed = list[AskedToken](), patching.labels, pair.question
    for option, word, top, tokens in (
        ("--answer", request.answer or typed.answer, clean.top, pair.given.clean),
        ("--foil", request.foil or typed.foil, corrupt.top, pair.given.corrupt),
    ):
        if patching.answers:
            words.append(_start(option, word, top, tokens))
        elif word is not None:
            words.append(AskedToken(*asked_word(model, word, option, labels)))
        else:
            words.append(AskedToken(top, words_of(model, labels, [top])[top]))
    answer, foil = words
    if answer.id != foil.id or request.metric != "logit_diff":
        compared = foil if answer.id != foil.id else None
        return AskedPair(index, index, pair.given, base.position, answer, compared)
    if answer.id != clean.top or answer.id != corrupt.top:
        raise UsageError(
            f"answer and foil are the same {'label' if labels else 'token'}, {answer.text!r}: name "
            "two that differ with --answer and --foil"
        )
    missing = "--foil" if request.answer or typed.answer else "--answer and --foil"
    raise UsageError(
        f"both prompts predict {answer.text!r}, so there is nothing to compare: add {missing}"
    )


def _start(option: str, typed: str | None, top: int, tokens: Tokens) -> AskedToken:
    """Return the token where an answer starts. typed: a word or index; None for the likeliest."""
    if typed is None:
        return AskedToken(top, tokens.texts[top])
    word = find_in(tokens, typed)
    if word is None:
        raise UsageError(f"{option}: no token {typed!r} in the prompt: give a word in it")
    if word.span.start not in answer_places(tokens):
        raise UsageError(
            f"{option}: {typed!r} is not a token of the context, so it cannot be the answer"
        )
    return AskedToken(word.span.start, tokens.texts[word.span.start])


def _chosen(
    patching: Patching, request: PatchRequest, model: Model, kind: Kind
) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
    """Return the (layer, head) to patch one by one, and together; key/value heads if shared."""
    base, whole = request.index_base, request.what in WHOLE_LAYER
    layers, heads = model.info.layers, 1 if whole else model.info.heads
    counts = patching.heads(request.what)
    every = [(layer, head) for layer, count in counts.items() for head in range(count)]
    queries = {} if whole else patching.queries
    group = {layer: max(queries.get(layer, 1) // count, 1) for layer, count in counts.items()}

    def named(layer: str | None, head: tuple[str, ...]) -> list[Place]:
        typed = by_label(model, kind, head, base)
        chosen = choose_heads(layer, typed, layers, heads, base) or {}
        wanted = {
            (at, number // group[at]) for at, own in chosen.items() if at in group for number in own
        }
        return [cell for cell in every if cell in wanted]

    singles = named(request.layer, request.head) or every
    joint = named(None, request.together) if request.together else []
    if len(joint) == 1:
        raise UsageError("--together patches heads at once: name two or more")
    both = {*singles, *joint}
    return tuple(cell for cell in every if cell in both), tuple(joint)
