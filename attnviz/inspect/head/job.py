"""Measures the parts of the cards of some heads of one model, each part once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from attnviz.count.params.head_cost import HeadCost, counted_model, head_cost
from attnviz.draw.signed import Place
from attnviz.engine.attribution.one_token import OneTokenWrites, one_token_writes
from attnviz.engine.attribution.parts import HeadKey
from attnviz.engine.capture import Choice, attention_kind, capture, written_targets
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.head.records import Firing, HeadCard, Hurt, ReadFrom, Writes
from attnviz.inspect.head.request import CardRequest
from attnviz.inspect.heads.chosen import only
from attnviz.inspect.heads.heads import heads
from attnviz.inspect.heads.links import strongest_links
from attnviz.inspect.heads.report import HeadsReport, compare_heads
from attnviz.inspect.heads.request import HeadsRequest
from attnviz.inspect.interventions.ablate.ablate import ablate
from attnviz.inspect.interventions.ablate.records import AblationReport
from attnviz.inspect.interventions.ablate.request import AblateRequest
from attnviz.inspect.interventions.path.path import AllPaths, PathReport, all_paths, alone
from attnviz.inspect.interventions.prompts import read_pairs
from attnviz.inspect.patterns.patterns import patterns
from attnviz.inspect.patterns.report import PatternReport
from attnviz.inspect.patterns.request import PatternsRequest
from attnviz.inspect.why.records import WhyReport
from attnviz.inspect.why.request import WhyRequest
from attnviz.inspect.why.why import Prompt, why
from attnviz.models.model import Model
from attnviz.models.own import OwnAttention
from attnviz.models.resolve import reckoned_tokens
from attnviz.options import Options
from attnviz.progress import Watch
from attnviz.records import HeadsRecord, Kind, LayerWeights, Provenance
from attnviz.texts import Texts, encode_texts

CARD_TEXT = "Then Mary saw Tom. Then Mary saw"
"""The text of a card if none is given: it is short, and names are repeated."""

_TRIED = 128
"""The texts of one token for each head."""

_WEIGHTS = 2**24
"""The most weights of all heads that are kept for a page."""

_ENCODER = "the heads of an encoder write to no logit"

T = TypeVar("T")
_Question = TypeVar("_Question", bound=Options)


class Steps:
    """Measures the parts of a head's card or a report one after another.

    missing: the reason by the name of a missing part. complete: False after Ctrl-C, which ends the
        measurements.
    """

    def __init__(self, watch: Watch) -> None:
        self.missing: dict[str, str] = {}
        self.complete = True
        self._watch, self._done = watch, 0.0

    def take(self, name: str, share: float, measure: Callable[[Watch], T]) -> T | None:
        """Measure one part and return it; None if the model does not have it, or after Ctrl-C.

        name: of the part. share: its share of all work, in [0, 1]. measure: measures it, given an
            object that reports progress.
        """
        start, self._done = self._done, self._done + share
        if not self.complete:
            self.missing[name] = "interrupted"
            return None
        try:
            found = measure(_Within(self._watch, start, share))
        except (UsageError, UnsupportedError) as error:
            self.missing[name] = str(error)
            return None
        except KeyboardInterrupt:
            self.complete, self.missing[name] = False, "interrupted"
            return None
        if isinstance(found, Provenance):  # a part that keeps what was done
            self.complete = found.complete
        self._watch(min(self._done, 1.0))
        return found


class _Within(Watch):
    """Reports the progress of one part of a run as progress of the whole run.

    The part begins at ``start`` and is ``share`` of the whole, both in [0, 1].
    """

    def __init__(self, whole: Watch, start: float, share: float) -> None:
        self._whole, self._start, self._share = whole, start, share

    def __call__(self, share: float) -> None:
        self._whole(min(self._start + share * self._share, 1.0))


def head_cards(
    model: Model,
    places: Sequence[Place],
    text: str,
    texts: Texts,
    request: CardRequest,
    steps: Steps,
    *,
    scored: PatternReport | None = None,
    ablation: AblationReport | None = None,
) -> list[HeadCard]:
    """Return a card, a one-page summary, for each of the heads (layer, head).

    places: these heads. text: of the map and the prediction. texts: over which heads are ablated,
    and in which their strongest links are searched.
    steps: measures the parts, except those that it already lists as missing. scored, ablation: the
        results for all heads, if they are known; else those of these heads are measured.

    Raises UsageError for texts that do not fit the model, UnsupportedError if its attention cannot
    be observed, KeyboardInterrupt if nothing was measured.
    """
    job = _Cards(model, places, texts, request)
    maps = job.maps(text)
    known = steps.missing
    if scored is None and "label" not in known:
        scored = steps.take("label", 0.2, job.scored)
    firings = steps.take("fires", 0.05, job.firings) or {}
    if ablation is None and "loss" not in known:
        ablation = steps.take("loss", 0.35, job.ablated)
    logits = steps.take("writes", 0.1, lambda watch: job.why(text, watch))
    writes = steps.take("copies", 0.1, lambda watch: job.writes()) or {}
    paths = steps.take("paths", 0.15, job.paths)
    costs = steps.take("cost", 0.0, lambda watch: job.costs()) or {}
    cards = []
    for place in places:
        missing = dict(steps.missing)
        readers = job.readers(paths, place, missing)
        hurts, predictions = _hurts(ablation, place, request.top)
        cards.append(
            HeadCard(
                model=model.info,
                head=place,
                kind=job.kind,
                map=compare_heads([only(maps.first, {place})]),
                scored=scored,
                firings=firings.get(place, ())[: request.top],
                ablation=ablation,
                hurts=hurts,
                predictions=predictions,
                why=logits,
                writes=writes.get(place),
                sources=tuple(ReadFrom(*each) for each in paths.sources(place)) if paths else (),
                readers=readers,
                cost=costs.get(place[0]),
                missing=missing,
                top=request.top,
                text=text,
                source=texts.source,
                seed=request.seed,
                complete=steps.complete,
                index_base=request.index_base,
            )
        )
    return cards


def every_map(model: Model, text: str, request: CardRequest) -> HeadsRecord | None:
    """Return the maps of all heads over the text of the cards; None if they are too many."""
    tokens = reckoned_tokens(text)
    if model.info.layers * model.info.heads * tokens**2 > _WEIGHTS:
        return None
    shared = vars(request) | {"head": ()}
    del shared["top"]
    return heads(lambda changes: model, text, HeadsRequest.of(shared)).first


def require_fit(model: Model, texts: Texts, request: CardRequest) -> Kind:
    """Check the request for a head's card; return its kind of attention."""
    encode_texts(model, texts, request.truncate, _least(model))
    return attention_kind(model, Choice(kind=request.kind, target=request.target))


def _least(model: Model) -> int:
    """Return the fewest tokens that a text needs, for a card of a head of this model."""
    return 1 if "decoder" in model.kinds or isinstance(model, OwnAttention) else 2


class _Cards:
    """Measures the parts of head cards; each method makes the measurement of another command."""

    def __init__(
        self, model: Model, places: Sequence[Place], texts: Texts, request: CardRequest
    ) -> None:
        self.kind: Kind = require_fit(model, texts, request)
        self._model, self._places, self._texts, self._request = model, places, texts, request
        self._two_stacks = "decoder" in model.kinds
        base = request.index_base
        self._names = tuple(f"L{layer + base}H{head + base}" for layer, head in places)

    @property
    def _heads(self) -> list[HeadKey]:
        return [(self.kind, *place) for place in self._places]

    def _asked(self, question: type[_Question], /, **more: Any) -> _Question:
        """Return the request of another command for these heads, with the card's options."""
        shared = {name: one for name, one in vars(self._request).items() if name != "top"}
        return question.of(shared | {"target": None, "head": self._names} | more)

    def maps(self, text: str) -> HeadsReport:
        asked = self._asked(HeadsRequest, target=self._request.target)
        return heads(lambda changes: self._model, text, asked)

    def scored(self, watch: Watch) -> PatternReport:
        asked = self._asked(PatternsRequest)
        return patterns(self._model, None, asked, examples=False, advance=watch)

    def firings(self, watch: Watch) -> Mapping[Place, tuple[Firing, ...]]:
        """Return for each (layer, head) its strongest link in each text, the strongest first."""
        model, kind = self._model, self.kind
        wanted: dict[int, set[int]] = {}
        for layer, head in self._places:
            wanted.setdefault(layer, set()).add(head)
        texts = encode_texts(model, self._texts, self._request.truncate, _least(model))
        targets = written_targets(model, texts, Choice())
        found: dict[Place, list[Firing]] = {place: [] for place in self._places}
        for index, tokens in enumerate(texts):
            target = targets[index] if targets else None
            record = capture(model, tokens, kind=kind, target=target, heads=wanted)
            for layer, head, weights in record:
                alone = (LayerWeights(layer, (head,), weights[None]),)
                shown = HeadsRecord(replace(record, layers=alone), (), (), True)
                for _, _, query, key, weight in strongest_links(shown, 1):
                    ends = record.queries, record.keys
                    found[layer, head].append(Firing(index, *ends, query, key, weight))
            watch((index + 1) / len(texts))
        return {
            place: tuple(sorted(some, key=lambda each: -each.weight))
            for place, some in found.items()
        }

    def ablated(self, watch: Watch) -> AblationReport:
        asked = self._asked(AblateRequest, by_token=True)
        return ablate(self._model, self._texts, asked, advance=watch)

    def why(self, text: str, watch: Watch) -> WhyReport:
        if self.kind == "encoder":
            raise UsageError(_ENCODER)
        kind = self.kind if self._two_stacks else None
        target = self._request.target if self._two_stacks else None
        asked = self._asked(WhyRequest, head=(), kind=kind, target=target)
        report = why(self._model, [Prompt(text, None, None, None)], asked, advance=watch)
        report.require_tally()
        return report

    def writes(self) -> Mapping[Place, Writes]:
        found: Mapping[HeadKey, OneTokenWrites] = one_token_writes(
            self._model, self._heads, tokens=_TRIED, seed=self._request.seed, most=_TRIED
        )
        texts = self._model.vocabulary().texts
        named = {}
        for (_, *place), each in found.items():
            ids = sorted({token for pair in each.strongest for token in pair[:2]})
            words = dict(zip(ids, texts(ids), strict=True))
            whole = [pair for pair in each.strongest if _is_word(words[pair.read])]
            shown = (whole or list(each.strongest))[: self._request.top]
            named[place[0], place[1]] = Writes(each._replace(strongest=tuple(shown)), words)
        return named

    def paths(self, watch: Watch) -> AllPaths:
        if isinstance(self._model, OwnAttention):
            raise alone(self._model.info)
        if self.kind in ("encoder", "cross"):
            raise UsageError(f"paths are followed in a decoder, not in {self.kind} attention")
        layers = range(max(layer for layer, _ in self._places) + 1)
        pairs = read_pairs(None, None, None)
        return all_paths(self._model, pairs, layers, seed=self._request.seed, advance=watch)

    def readers(
        self, paths: AllPaths | None, place: Place, missing: dict[str, str]
    ) -> PathReport | None:
        """Return the share of a head in the inputs of later heads, or None if not measured.

        paths: the measurement of all heads, or None. place: the (layer, head). missing: the reasons
            by the name of the part, to which one may be added.
        """
        if paths is None:
            return None
        if place[0] == self._model.info.layers - 1:
            missing["readers"] = "the last layer: no later head reads from it"
            return None
        try:
            report = paths.report(place)
        except UsageError as error:
            missing["readers"] = str(error)
            return None
        return replace(report, top=self._request.top, index_base=self._request.index_base)

    def costs(self) -> Mapping[int, HeadCost]:
        counted = counted_model(self._model)
        return {layer: head_cost(counted, layer, self.kind) for layer, _ in self._places}


def _is_word(text: str) -> bool:
    """Return whether a token is a word that begins with a blank, as in running text."""
    return text.startswith(" ") and text.strip().isalpha()


def _hurts(
    ablation: AblationReport | None, place: Place, most: int
) -> tuple[tuple[Hurt, ...], int]:
    """Return the tokens whose loss rises most without a head, and the number of predictions."""
    found = list(_changes(ablation, place))
    found.sort(key=lambda each: -each.change)
    return tuple(each for each in found[:most] if each.change > 0), len(found)


def _changes(ablation: AblationReport | None, place: Place) -> Iterator[Hurt]:
    effects = ablation.effects if ablation is not None else ()
    for effect in effects:
        if ablation is None or effect.head != place:
            continue
        read = ablation.targets or ablation.texts
        for index, changes in enumerate(effect.token_losses):
            for at in np.flatnonzero(np.isfinite(changes)).tolist():
                yield Hurt(index, read[index], at, float(changes[at]))
