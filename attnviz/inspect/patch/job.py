"""All that patching needs, read, encoded and checked before the first patch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from attnviz.draw.provenance import counted
from attnviz.engine.capture import Choice, attention_kind
from attnviz.engine.patching import (
    WHOLE_LAYER,
    Patch,
    PatchMethod,
    PatchMetric,
    PatchOptions,
    Site,
    What,
)
from attnviz.engine.scan.run import Patching, open_patching
from attnviz.engine.scan.runner import ENDING
from attnviz.engine.selection import choose_heads
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.patch.pairs import TokenPair, control_pairs, encode_pair
from attnviz.inspect.patch.prompts import PromptPairs, Prompts
from attnviz.inspect.patch.records import AskedToken, Place
from attnviz.inspect.patch.request import At, PatchRequest
from attnviz.inspect.patch.words import WHAT
from attnviz.measures.bootstrap import copies_note
from attnviz.models.model import Model, TwoStackModel, require_number, weights_fingerprint
from attnviz.models.operations import sizes_of
from attnviz.models.own import OwnAttention
from attnviz.models.pace import seconds
from attnviz.records import UNWATCHED, Kind, Tokens, Watch
from attnviz.resume import digest
from attnviz.texts import single_token

_DRAWS = 8
"""Random sources of one pair alone."""

_LEAST_DIFFERENCE = {"logit_diff": 0.1, "log_prob": 0.1, "kl": 0.01}
"""Logits and nats below which two prompts hardly differ: a share of so little says nothing."""

MOST_FOLLOWED = 4
"""Heads whose tokens are patched one by one where nobody chose heads."""

_ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDINGS = 4
"""Times the dtype's rounding of the largest logit, which two runs must differ by as well."""


@dataclass(frozen=True)
class AskedPair:
    """A pair that is measured.

    index: of the pair among those of the engine. of: of a control, that of the measured pair.
    tokens: both prompts.
    position: of the base run's token that predicts.
    answer, foil: what is asked for; no foil where none was found.
    """

    index: int
    of: int
    tokens: TokenPair
    position: int
    answer: AskedToken
    foil: AskedToken | None


@dataclass(frozen=True)
class PatchJob:
    """Patching, ready to run.

    asked: the pairs, the first of which is shown. controls: pairs with another's source.
    text: the shown pair's clean prompt, as it was given. wanted: how many pairs there were.
    drawn: how many of these have random tokens as their source.
    places: of the patches of one site each, in the grid. together: the heads patched at once.
    threshold: by how much the metric of two runs must differ.
    patching: the model, ready to be measured. opened: the same for a method.
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
    def what(self) -> What:
        """Return what is patched."""
        return self.request.what

    @property
    def metric(self) -> PatchMetric:
        """Return what is measured."""
        return self.request.metric

    @property
    def base(self) -> Tokens:
        """Return the shown pair's prompt of the run into which is patched."""
        tokens = self.asked[0].tokens
        return tokens.clean if self._side == 0 else tokens.corrupt

    @property
    def _side(self) -> int:
        """0 where clean is the base run, 1 where corrupt is."""
        return 0 if self.request.direction == "noise" else 1

    @property
    def group(self) -> int:
        """Return how many query heads a patched head serves."""
        site = self.patching.sites(self.what)[0]
        return max(len(self.patching.served(site)), 1)

    def patches(self, asked: AskedPair) -> list[Patch]:
        """Return the patches of one pair: one a place, then all of ``together`` at once."""
        tokens = self._tokens(asked, self.request.where)
        singles = [Patch((self._site(place, tokens),)) for place in self.places]
        if not self.together:
            return singles
        return [*singles, Patch(tuple(self._site(place, tokens) for place in self.together))]

    def by_token(self, places: Sequence[Place]) -> tuple[list[int], list[Patch]]:
        """Return the tokens of the first pair that can matter, and a patch each of them and each
        place.

        Before the first token that differs a causal model has nothing to exchange.
        """
        pair, side = self.asked[0].tokens, self._side
        tokens = sorted(match[side] for match in pair.matches)
        if self.kind == "self" and self.asked[0].position == len(self.base) - 1:
            first = min(pair.changed[side], default=0)
            tokens = [token for token in tokens if token >= first]
        return tokens, [Patch((self._site(at, (token,)),)) for token in tokens for at in places]

    def _site(self, place: Place, tokens: tuple[int, ...] | None) -> Site:
        return Site(self.what, place[0], None if self.what in WHOLE_LAYER else place[1], tokens)

    def _tokens(self, asked: AskedPair, at: At) -> tuple[int, ...] | None:
        if at == "all":
            return None
        if at == "last":
            return (asked.position,)
        possible = {match[self._side] for match in asked.tokens.matches}
        found = tuple(at for at in asked.tokens.changed[self._side] if at in possible)
        if not found:
            raise UsageError("--at changed: no token of one prompt stands against one of the other")
        return found

    def identity(self) -> Mapping[str, Any]:
        """Return all that the results depend on, for a resume file to be compared with."""
        info, request = self.model.info, self.request
        runs = [
            [*_ids(one.tokens), one.answer.id, one.foil.id if one.foil is not None else None]
            for one in (*self.asked, *self.controls)
        ]
        return {
            "model": info.name,
            "weights": weights_fingerprint(self.model),
            "dtype": info.dtype,
            "kind": self.kind,
            "what": self.what,
            "direction": request.direction,
            "pairs": f"{len(self.asked)} ({digest(runs)})",
            "at": self.request.where,
            "sites": f"{len(self.places)} ({digest([self.places, self.together])})",
        }


def _ids(pair: TokenPair) -> list[Any]:
    target = pair.target.ids if pair.target is not None else None
    return [pair.clean.ids, pair.corrupt.ids, pair.places, target]


def prepare(
    model: Model, given: PromptPairs, request: PatchRequest, watch: Watch = UNWATCHED
) -> PatchJob:
    """Encode and check everything. watch: is given what will be done, before any prompt is run.

    A pair of a file that does not fit the model's tokens is left out, with a note; UsageError where
    none is left, or the only one does not fit, UnsupportedError for a model that predicts nothing.
    """
    if isinstance(model, OwnAttention):
        raise UnsupportedError(
            f"{model.info.name!r} is attention alone: there is no prediction that a patch could "
            "change; choose a language model"
        )
    kind = attention_kind(model, Choice(kind=request.kind))
    target = decoder_text(model, request.target)
    align, direction = request.align, request.direction
    encoded, left_out = fitting(
        given,
        range(len(given.prompts)),
        lambda place: encode_pair(model, given.prompts[place], align, target),
    )
    single = {(pair.clean.ids, pair.corrupt.ids): place for place, pair in encoded.items()}
    kept = sorted(single.values())  # a copy is no new evidence
    tokens = [encoded[place] for place in kept]
    controls = control_pairs(model, tokens, direction, _DRAWS, request.seed)
    engine = [pair.engine for pair in (*tokens, *(pair for _, pair in controls.pairs))]

    def opened(method: PatchMethod) -> Patching:
        options = PatchOptions(direction, method, max_memory=request.memory)
        return open_patching(model, engine, options, kind=kind)

    patching = opened("exact")
    places, together = _chosen(patching, request, model)
    _announce(watch, model, request, tokens, len(controls.pairs), places=places)
    index = {place: number for number, place in enumerate(kept)}
    asked, unasked = fitting(
        given,
        kept,
        lambda place: _asked(
            model, patching, index[place], tokens[index[place]], given.prompts[place], request
        ),
    )
    measured = {one.index: one for one in asked.values()}
    copies = len(encoded) - len(kept)
    return PatchJob(
        model=model,
        request=request,
        kind=kind,
        text=given.prompts[next(iter(asked))].clean,
        source=given.source,
        wanted=len(given.prompts),
        asked=tuple(measured.values()),
        controls=tuple(
            replace(measured[number], index=len(tokens) + at, tokens=pair)
            for at, (number, pair) in enumerate(controls.pairs)
            if number in measured
        ),
        drawn=controls.drawn,
        places=places,
        together=together,
        threshold=_threshold(model, patching, request),
        notes=(*left_out, *copies_note(copies, len(encoded), "pairs"), *unasked),
        patching=patching,
        opened=opened,
    )


def _announce(
    watch: Watch,
    model: Model,
    request: PatchRequest,
    pairs: Sequence[TokenPair],
    controls: int,
    *,
    places: Sequence[Place],
) -> None:
    """Say what is patched, and about how long that takes."""
    units = counted(len(places), "layer" if request.what in WHOLE_LAYER else "head")
    many = f" × {len(pairs):,} pairs" if len(pairs) > 1 else ""

    def expected() -> float:
        sizes = sizes_of(model)
        runs = [
            sizes.changed(len(pair.corrupt), [layer for layer, _ in places], ENDING)
            for pair in pairs
        ]
        controlled = request.method != "gradient" and request.metric != "kl"
        rounds = float(len(pairs) * (2 if request.method == "both" else 1))
        rounds += controls * controlled
        rounds += request.each_token * len(pairs[0].corrupt) * MOST_FOLLOWED / len(places)
        return seconds(model, rounds * sum(runs) / len(runs), len(places))

    watch.expect(f"patching {WHAT[request.what]} of {units}{many}", expected)


_T = TypeVar("_T")


def fitting(
    given: PromptPairs, places: Sequence[int], make: Callable[[int], _T]
) -> tuple[dict[int, _T], list[str]]:
    """Return what is made of each pair that fits, and a note on the others; UsageError for none."""
    found: dict[int, _T] = {}
    failures = []
    for place in places:
        try:
            found[place] = make(place)
        except UsageError as error:
            if not given.lines:
                raise
            failures.append(f"{given.place(place)}{error}")
    if not found:
        raise UsageError(f"none of {len(places)} pairs can be measured; {failures[0]}")
    if not failures:
        return found, []
    left = f"{len(failures)} of {len(places)} pairs left out; {failures[0]}"
    return found, [left]


def decoder_text(model: Model, text: str | None) -> Tokens | None:
    """Return what an encoder–decoder has written so far: its start token, or that and
    ``--target``.
    """
    if not isinstance(model, TwoStackModel) or "decoder" not in model.kinds:
        if text is not None:
            raise UsageError(
                f"--target is the text of a decoder: {model.info.name!r} has one stack"
            )
        return None
    return model.encode_target(text or "")


def _asked(
    model: Model,
    patching: Patching,
    index: int,
    pair: TokenPair,
    prompts: Prompts,
    request: PatchRequest,
) -> AskedPair:
    clean, corrupt = patching.predictions(index)
    for plain in (clean, corrupt):
        require_number("logit", float(plain.logits[plain.top]), model.info)
    base = clean if request.direction == "noise" else corrupt
    words = []
    for option, typed, top in (
        ("--answer", request.answer or prompts.answer, clean.top),
        ("--foil", request.foil or prompts.foil, corrupt.top),
    ):
        given = None if typed is None else AskedToken(*single_token(model, typed, option))
        words.append(given or AskedToken(top, model.vocabulary().texts([top])[0]))
    answer, foil = words
    if answer.id != foil.id:
        return AskedPair(index, index, pair, base.position, answer, foil)
    if request.metric != "logit_diff":
        return AskedPair(index, index, pair, base.position, answer, None)
    if answer.id != clean.top or answer.id != corrupt.top:
        raise UsageError(
            f"answer and foil are the same token, {answer.text!r}: name two that differ with "
            "--answer and --foil"
        )
    missing = "--foil" if request.answer or prompts.answer else "--answer and --foil"
    raise UsageError(f"both prompts predict {answer.text!r}: nothing to compare, add {missing}")


def _chosen(
    patching: Patching, request: PatchRequest, model: Model
) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
    """Return the places that are patched one by one, and those at once.

    Of heads that share keys and values, those of ``key`` and ``value`` that any chosen one reads.
    Raises UsageError for a head that the model does not have.
    """
    what, base = request.what, request.index_base
    every = [(site.layer, site.head or 0) for site in patching.sites(what)]
    layers, heads = model.info.layers, 1 if what in WHOLE_LAYER else model.info.heads
    counts, queries = patching.heads(what), patching.queries

    def named(chosen: Mapping[int, frozenset[int]] | None) -> list[Place]:
        if chosen is None:
            return []
        group = {layer: max(queries.get(layer, 1) // count, 1) for layer, count in counts.items()}
        group |= dict.fromkeys(counts if what in WHOLE_LAYER else (), 1)
        wanted = {
            (layer, head // group[layer])
            for layer, some in chosen.items()
            if layer in group
            for head in some
        }
        return [place for place in every if place in wanted]

    singles = named(choose_heads(request.layer, request.head, layers, heads, base)) or every
    together = request.together
    joint = named(choose_heads(None, together, layers, heads, base)) if together else []
    if len(joint) == 1:
        raise UsageError("--together patches heads at once: name two or more")
    both = set(singles) | set(joint)
    return tuple(place for place in every if place in both), tuple(joint)


def _threshold(model: Model, patching: Patching, request: PatchRequest) -> float:
    """By how much the metric of two runs must differ for a share of it to be shown."""
    least = _LEAST_DIFFERENCE[request.metric]
    if request.metric == "kl":
        return least
    largest = max(float(np.abs(each.logits).max()) for each in patching.predictions(0))
    return max(least, _ROUNDINGS * _ROUNDING.get(model.info.dtype, 0.0) * largest)
