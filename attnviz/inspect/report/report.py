"""From a request to a report: asks the other questions about one loaded model, each once."""

from __future__ import annotations

from dataclasses import replace

from attnviz.count.params.head_cost import counted_model
from attnviz.draw.numbers import counted
from attnviz.draw.signed import Place
from attnviz.inspect.head.head import reckoned
from attnviz.inspect.head.job import CARD_TEXT, Steps, every_map, head_cards, require_fit
from attnviz.inspect.head.request import CardRequest
from attnviz.inspect.interventions.ablate.ablate import ablate
from attnviz.inspect.interventions.ablate.records import AblationReport
from attnviz.inspect.interventions.ablate.request import AblateRequest
from attnviz.inspect.patterns.patterns import patterns
from attnviz.inspect.patterns.report import PatternReport
from attnviz.inspect.patterns.request import PatternsRequest
from attnviz.inspect.report.records import ModelReport
from attnviz.inspect.report.request import ReportRequest
from attnviz.inspect.why.why import load_apart
from attnviz.models.model import Model
from attnviz.models.resolve import LoadOptions, reckoned_tokens
from attnviz.progress import UNWATCHED, Watch
from attnviz.texts import Texts

_LOSSES = 2**23
"""The most losses, of one token without one head each, that are kept."""


def open_model(name: str, options: LoadOptions, texts: Texts, request: ReportRequest) -> Model:
    """Load a model with the faster of NumPy and torch for the report on it.

    options: how it is loaded. texts: over which heads are ablated; they decide which is faster.
    """
    tokens = reckoned(texts) if request.budget is None else None  # gradients are torch's
    return load_apart(name, replace(options, tokens=tokens, changed=True))


def report(
    model: Model,
    text: str | None,
    texts: Texts,
    request: ReportRequest,
    *,
    advance: Watch = UNWATCHED,
) -> ModelReport:
    """Return the report on a model: counts, pattern scores, ablations, cards of some heads.

    text: of the maps and the prediction of the cards; None for a short one. texts: over which
    heads are ablated, and in which their strongest links are searched. advance: is given the
    progress.

    The report of a run that Ctrl-C ended holds what was measured until then; ``complete`` is False.
    Raises UsageError for texts that do not fit the model, KeyboardInterrupt if nothing was
    measured.
    """
    require_fit(model, texts, request)
    steps = Steps(advance)
    counted = steps.take("params", 0.0, lambda watch: counted_model(model))
    words = steps.take("vocabulary", 0.0, lambda watch: len(model.vocabulary().plain))
    scored = steps.take("label", 0.2, lambda watch: _scored(model, request, watch))
    ablation = steps.take("loss", 0.4, lambda watch: _ablated(model, texts, request, watch))
    if not steps.complete and scored is None and ablation is None:
        raise KeyboardInterrupt
    places, cards, maps = _places(ablation, request.cards), [], None
    if not steps.complete:
        steps.missing["cards"] = "interrupted"
    elif places:
        asked = CardRequest.of(vars(request))
        cards = head_cards(
            model,
            places,
            text or CARD_TEXT,
            texts,
            asked,
            steps,
            scored=scored,
            ablation=ablation,
        )
        maps = every_map(model, text or CARD_TEXT, asked)
    return ModelReport(
        model=model.info,
        counted=counted,
        vocabulary=words,
        context=model.context,
        scored=scored,
        ablation=ablation,
        cards=tuple(cards),
        maps=maps,
        missing=dict(steps.missing),
        notes=_fewer(len(places), request.cards) if ablation is not None else (),
        text=text or CARD_TEXT,
        source=texts.source,
        seed=request.seed,
        complete=steps.complete,
        index_base=request.index_base,
    )


def _scored(model: Model, request: ReportRequest, watch: Watch) -> PatternReport:
    asked = PatternsRequest.of(vars(request) | {"target": None, "raw": True, "top": None})
    return patterns(model, None, asked, examples=False, advance=watch)


def _ablated(model: Model, texts: Texts, request: ReportRequest, watch: Watch) -> AblationReport:
    tokens = sum(map(reckoned_tokens, texts.texts))
    kept = tokens * model.info.layers * model.info.heads <= _LOSSES
    more = {"target": None, "by_token": kept, "top": max(request.cards, 1)}
    asked = AblateRequest.of(vars(request) | more)
    found = ablate(model, texts, asked, followed=0 if kept else request.cards, advance=watch)
    return replace(found, by_token=False)


def _fewer(cards: int, wanted: int) -> tuple[str, ...]:
    """Return a note if there are fewer cards than wanted, because no other head costs loss."""
    if cards >= wanted:
        return ()
    return (f"cards of {counted(cards, 'head')}, not {wanted:,}: no other ablated head costs loss",)


def _places(ablation: AblationReport | None, most: int) -> list[Place]:
    """Return (layer, head) of the ``most`` heads whose ablation costs most, in that order."""
    if ablation is None or not most:
        return []
    matter = ablation.ranking(most).matter
    return [effect.head for effect in matter if effect.head is not None]
