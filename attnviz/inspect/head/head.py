"""Measures what the other questions say of some heads, each part once for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from attnviz.count.params.params import HeadCost, counted_model, head_cost
from attnviz.engine.attribution.one_token import one_token_writes
from attnviz.engine.capture import Choice, attention_kind, capture, written_targets
from attnviz.engine.head_run import Head
from attnviz.engine.known_labels import head_or_label
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.head.report import Firing, HeadCard, Hurt, ReadFrom, Writes
from attnviz.inspect.head.request import CardRequest, HeadRequest
from attnviz.inspect.heads.heads import whole_maps
from attnviz.inspect.heads.links import strongest_links
from attnviz.inspect.heads.report import compare_heads, only
from attnviz.inspect.heads.request import HeadsRequest
from attnviz.inspect.interventions.ablate.ablate import ablate
from attnviz.inspect.interventions.ablate.report import AblationReport
from attnviz.inspect.interventions.ablate.request import AblateRequest
from attnviz.inspect.interventions.path.path import AllPaths, all_paths, alone
from attnviz.inspect.interventions.path.report import PathReport
from attnviz.inspect.patterns.patterns import patterns
from attnviz.inspect.patterns.probes import probe_tokens
from attnviz.inspect.patterns.report import PatternReport
from attnviz.inspect.patterns.request import PatternsRequest
from attnviz.inspect.why.report import WhyReport
from attnviz.inspect.why.request import WhyRequest
from attnviz.inspect.why.why import why
from attnviz.measures.registry import LABELS, plain_name, typed_names
from attnviz.models.model import Model
from attnviz.models.own import OwnAttention
from attnviz.models.work import Work, about_tokens
from attnviz.options import Options
from attnviz.progress import UNWATCHED, Watch
from attnviz.prompts.request import read_pairs
from attnviz.prompts.study import Prompt, splits_logits
from attnviz.records import HeadKey, HeadsRecord, Kind, LayerWeights, Provenance
from attnviz.texts import Texts, encode_texts

CARD_TEXT = "Then Mary saw Tom. Then Mary saw"
"""The text of a card if none is given: it is short, and names are repeated."""

_NAME = re.compile(r"\s*([Ll]?-?\d+\s*[.Hh]\s*-?\d+|[Hh]?-?\d+)\s*")
_TRIED = 128  # the texts of one token for each head
_WEIGHTS = 2**24  # the most weights of all heads that are kept for a page
T = TypeVar("T")
_Question = TypeVar("_Question", bound=Options)


def names_a_head(typed: str) -> bool:
    """Return whether a string looks like a head's name, ``L1H2``, or is the name of a label."""
    return _NAME.fullmatch(typed) is not None or plain_name(typed) in typed_names(LABELS)


def work(texts: Texts, request: CardRequest) -> Work:
    """Return the planned work for cards, from which the loader chooses NumPy or torch.

    texts: over which heads are ablated.
    """
    tokens = probe_tokens(None, None) + about_tokens(*texts.texts)
    return Work(tokens, changed=True, fits=splits_logits)


def head(
    model: Model,
    text: str | None,
    texts: Texts,
    request: HeadRequest,
    *,
    advance: Watch = UNWATCHED,
) -> HeadCard:
    """Return the card of one head: a one-page summary of all that is measured on it.

    text: of its map and of the prediction; None for a short one. texts: over which it is ablated,
        and in which its strongest links are searched. advance: is given the progress.
    The card of a run that Ctrl-C ended contains what was measured until then; ``complete`` is
    False. Raises UsageError if the request does not name a single head, and for texts that do not
    fit the model, UnsupportedError if its attention cannot be observed.
    """
    kind = request.kind or model.kinds[0]
    named = head_or_label(model, kind, request.head, request.index_base)
    (card,) = head_cards(model, [named], text or CARD_TEXT, texts, request, Steps(advance))
    return replace(card, asked=text is not None)


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
            part = measure(_Within(self._watch, start, share))
        except (UsageError, UnsupportedError) as error:
            self.missing[name] = str(error)
            return None
        except KeyboardInterrupt:
            self.complete, self.missing[name] = False, "interrupted"
            return None
        if isinstance(part, Provenance):  # a part that keeps what was done
            self.complete = part.complete
        self._watch(min(self._done, 1.0))
        return part


class _Within(Watch):
    """Reports the progress of one part, which begins at ``start``, as progress of the whole run."""

    def __init__(self, whole: Watch, start: float, share: float) -> None:
        self._whole, self._start, self._share = whole, start, share

    def __call__(self, share: float) -> None:
        self._whole(min(self._start + share * self._share, 1.0))


def head_cards(
    model: Model,
    heads: Sequence[Head],
    text: str,
    texts: Texts,
    request: CardRequest,
    steps: Steps,
    *,
    scored: PatternReport | None = None,
    ablation: AblationReport | None = None,
) -> list[HeadCard]:
    """Return a card, a one-page summary, for each of the heads (layer, head).

    text: of the map and the prediction. texts: over which heads are ablated, and in which their
        strongest links are searched.
    steps: measures the parts, except those that it already lists as missing. scored, ablation: the
        results for all heads, if they are known; else those of these heads are measured.

    Raises UsageError for texts that do not fit the model, UnsupportedError if its attention cannot
    be observed, KeyboardInterrupt if nothing was measured.
    """
    cards = _Cards(model, heads, texts, request)
    asked = cards.asked(HeadsRequest, target=request.target)
    maps = whole_maps(lambda changes: model, text, asked).first
    if scored is None and "label" not in steps.missing:
        probed = cards.asked(PatternsRequest)
        scored = steps.take(
            "label", 0.2, lambda watch: patterns(model, None, probed, advance=watch)
        )
    firings = steps.take("fires", 0.05, cards.firings) or {}
    if ablation is None and "loss" not in steps.missing:
        lost = cards.asked(AblateRequest, by_token=True)
        ablation = steps.take("loss", 0.35, lambda watch: ablate(model, texts, lost, advance=watch))
    logits = steps.take("writes", 0.1, lambda watch: cards.why(text, watch))
    writes = steps.take("copies", 0.1, lambda watch: cards.writes()) or {}
    paths = steps.take("paths", 0.15, cards.paths)
    costs = steps.take("cost", 0.0, lambda watch: cards.costs()) or {}
    made = []
    for head in heads:
        missing, hurts = dict(steps.missing), _hurts(ablation, head)
        readers = cards.readers(paths, head, missing)
        card = HeadCard(
            model=model.info,
            head=head,
            kind=cards.kind,
            map=compare_heads([only(maps, {head})]),
            scored=scored,
            firings=firings.get(head, ())[: request.top],
            ablation=ablation,
            hurts=tuple(hurt for hurt in hurts[: request.top] if hurt.change > 0),
            predictions=len(hurts),
            why=logits,
            writes=writes.get(head),
            sources=tuple(ReadFrom(*source) for source in paths.sources(head)) if paths else (),
            readers=readers,
            cost=costs.get(head[0]),
            missing=missing,
            top=request.top,
            text=text,
            source=texts.source,
            notes=texts.notes,
            seed=request.seed,
            complete=steps.complete,
            index_base=request.index_base,
        )
        made.append(card)
    return made


def every_map(model: Model, text: str, request: CardRequest) -> HeadsRecord | None:
    """Return all heads' maps over the cards' text; None if they exceed ``_WEIGHTS`` weights."""
    if model.info.layers * model.info.heads * about_tokens(text) ** 2 > _WEIGHTS:
        return None
    shared = {name: value for name, value in vars(request).items() if name != "top"}
    return whole_maps(lambda changes: model, text, HeadsRequest.of(shared | {"head": ()})).first


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
        self, model: Model, heads: Sequence[Head], texts: Texts, request: CardRequest
    ) -> None:
        self.kind: Kind = require_fit(model, texts, request)
        self._model, self._heads, self._texts, self._request = model, heads, texts, request
        base = request.index_base
        self._names = tuple(f"L{layer + base}H{head + base}" for layer, head in heads)

    def asked(self, question: type[_Question], /, **more: Any) -> _Question:
        """Return the request of another command for these heads, with the card's options."""
        shared = {name: value for name, value in vars(self._request).items() if name != "top"}
        return question.of(shared | {"target": None, "head": self._names} | more)

    def firings(self, watch: Watch) -> Mapping[Head, tuple[Firing, ...]]:
        """Return for each (layer, head) its strongest link in each text, the strongest first."""
        wanted: dict[int, set[int]] = {}
        for layer, head in self._heads:
            wanted.setdefault(layer, set()).add(head)
        model = self._model
        texts = encode_texts(model, self._texts, self._request.truncate, _least(model))
        targets = written_targets(model, texts, Choice())
        links: dict[Head, list[Firing]] = {head: [] for head in self._heads}
        for index, tokens in enumerate(texts):
            target = targets[index] if targets else None
            record = capture(model, tokens, kind=self.kind, target=target, heads=wanted)
            for layer, head, weights in record:
                alone = (LayerWeights(layer, (head,), weights[None]),)
                shown = HeadsRecord(replace(record, layers=alone), (), (), True)
                for _, _, query, key, weight in strongest_links(shown, 1):
                    ends = record.queries, record.keys
                    links[layer, head].append(Firing(index, *ends, query, key, weight))
            watch((index + 1) / len(texts))
        return {
            head: tuple(sorted(of_head, key=lambda link: -link.weight))
            for head, of_head in links.items()
        }

    def why(self, text: str, watch: Watch) -> WhyReport:
        if self.kind == "encoder":
            raise UsageError("the heads of an encoder write to no logit")
        stacks: dict[str, Any] = {"kind": None, "target": None}
        if "decoder" in self._model.kinds:
            stacks = {"kind": self.kind, "target": self._request.target}
        asked = self.asked(WhyRequest, head=(), **stacks)
        report = why(self._model, [Prompt(text)], asked, advance=watch)
        report.require_tally()
        return report

    def writes(self) -> Mapping[Head, Writes]:
        asked: list[HeadKey] = [(self.kind, *head) for head in self._heads]
        seed, named = self._request.seed, dict[Head, Writes]()
        written = one_token_writes(self._model, asked, tokens=_TRIED, seed=seed, most=_TRIED)
        for (_, layer, head), effect in written.items():
            ids = sorted({token for pair in effect.strongest for token in pair[:2]})
            words = dict(zip(ids, self._model.vocabulary().texts(ids), strict=True))
            whole = [  # words as in running text, which begin with a blank
                pair
                for pair in effect.strongest
                if words[pair.read].startswith(" ") and words[pair.read].strip().isalpha()
            ]
            shown = (whole or list(effect.strongest))[: self._request.top]
            named[layer, head] = Writes(effect._replace(strongest=tuple(shown)), words)
        return named

    def paths(self, watch: Watch) -> AllPaths:
        if isinstance(self._model, OwnAttention):
            raise alone(self._model.info)
        if self.kind in ("encoder", "cross"):
            raise UsageError(f"paths are followed in a decoder, not in {self.kind} attention")
        layers = range(max(layer for layer, _ in self._heads) + 1)
        pairs = read_pairs(None, None, None)
        return all_paths(self._model, pairs, layers, seed=self._request.seed, advance=watch)

    def readers(
        self, paths: AllPaths | None, head: Head, missing: dict[str, str]
    ) -> PathReport | None:
        """Return the share of a head in the inputs of later heads, or None if not measured.

        missing: the reasons by the name of the part, to which one may be added.
        """
        if paths is None:
            return None
        if head[0] == self._model.info.layers - 1:
            missing["readers"] = "the last layer: no later head reads from it"
            return None
        try:
            report = paths.report(head)
        except UsageError as error:
            missing["readers"] = str(error)
            return None
        return replace(report, top=self._request.top, index_base=self._request.index_base)

    def costs(self) -> Mapping[int, HeadCost]:
        counted = counted_model(self._model)
        return {layer: head_cost(counted, layer, self.kind) for layer, _ in self._heads}


def _hurts(ablation: AblationReport | None, head: Head) -> list[Hurt]:
    """Return the change of every token's loss without a head, the largest first."""
    if ablation is None:
        return []
    read = ablation.targets or ablation.texts
    hurts = [
        Hurt(index, read[index], at, float(changes[at]))
        for effect in ablation.effects
        if effect.head == head
        for index, changes in enumerate(effect.token_losses)
        for at in np.flatnonzero(np.isfinite(changes)).tolist()
    ]
    return sorted(hurts, key=lambda hurt: -hurt.change)
