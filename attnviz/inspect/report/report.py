"""The report on a model: asks the other questions about one loaded model, each once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attnviz.count.params.params import counted_model
from attnviz.count.params.report import ParamsReport
from attnviz.draw.numbers import counted
from attnviz.draw.report import Report, fields_of
from attnviz.draw.signed import Place
from attnviz.draw.values import model_facts, table_of
from attnviz.inspect.head.head import CARD_TEXT, Steps, every_map, head_cards, require_fit
from attnviz.inspect.head.head import work as cards_work
from attnviz.inspect.head.report import HeadCard
from attnviz.inspect.head.request import CardRequest
from attnviz.inspect.interventions.ablate.ablate import ablate
from attnviz.inspect.interventions.ablate.report import AblationReport, effect_entry
from attnviz.inspect.interventions.ablate.request import AblateRequest
from attnviz.inspect.patterns.patterns import patterns
from attnviz.inspect.patterns.report import PatternReport, score_entry
from attnviz.inspect.patterns.request import PatternsRequest
from attnviz.inspect.report.request import ReportRequest
from attnviz.models.model import Model
from attnviz.models.work import Work, about_tokens
from attnviz.progress import UNWATCHED, Watch
from attnviz.records import HeadsRecord, ModelInfo, Provenance
from attnviz.texts import Texts

_LOSSES = 2**23  # the most losses, of one token without one head each, that are kept


@dataclass(frozen=True, repr=False)
class ModelReport(Report, Provenance):
    """The report of ``attnviz report`` on a model: its counts, its heads and the cards of some.

    A part is None if missing. counted: the model's parameters and cache. vocabulary: how many plain
    tokens it has, or None.
    context: the longest text in tokens; None for no limit.
    scored: the labels and scores of all heads. ablation: what each head costs, or each of those
        that the budget allowed.
    maps: of all heads over the text of the cards, for a page; None if they are too many.
    cards: of the heads whose ablation costs most. missing: for each part that is None, the reason.
    """

    model: ModelInfo
    counted: ParamsReport | None = None
    vocabulary: int | None = None
    context: int | None = None
    scored: PatternReport | None = None
    ablation: AblationReport | None = None
    cards: tuple[HeadCard, ...] = ()
    maps: HeadsRecord | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    command = "report"
    lists = ("cards",)

    def data(self) -> dict[str, Any]:
        """Return a whole report on a model as one JSON object; indices start at 0."""
        scored, ablation, losses = self.scored, self.ablation, None
        if ablation is not None:
            ablation = replace(ablation, index_base=0)
            losses = {
                **fields_of(ablation, ("method", "metric")),
                "texts": len(ablation.texts),
                "baseline": ablation.baseline,
                "heads": [effect_entry(ablation, effect) for effect in ablation.singles],
            }
        return {
            "schema": "attnviz.report/1",
            "model": model_facts(self.model),
            "source": self.source or None,
            "seed": self.seed,
            "index_base": 0,
            **fields_of(self, ("complete", "notes", "missing", "vocabulary", "context")),
            "params": None if self.counted is None else self.counted.facts(),
            "labels": None if scored is None else [score_entry(entry) for entry in scored.heads],
            "ablation": losses,
            "cards": [card.data() for card in self.cards],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each head: label, score, ablation effect."""
        data, heads = self.data(), dict[Place, dict[str, Any]]()
        for entry in (*(data["labels"] or ()), *(data["ablation"] or {"heads": ()})["heads"]):
            heads.setdefault((entry["layer"], entry["head"]), {}).update(entry)
        columns = ("layer", "head", "label", "score", "loss_delta", "ci_low", "ci_high")
        return table_of((*columns, "adjusted_p"), heads.values())


def work(texts: Texts, request: ReportRequest) -> Work:
    """Return the planned work for a report, from which the loader chooses NumPy or torch.

    texts: over which heads are ablated; within a budget gradients rank them, which only torch has.
    """
    planned = cards_work(texts, request)
    return planned if request.budget is None else replace(planned, tokens=None)


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
    params = steps.take("params", 0.0, lambda watch: counted_model(model))
    words = steps.take("vocabulary", 0.0, lambda watch: len(model.vocabulary().plain))
    probed = PatternsRequest.of(vars(request) | {"target": None, "raw": True, "top": None})
    scored = steps.take("label", 0.2, lambda watch: patterns(model, None, probed, advance=watch))
    ablation = steps.take("loss", 0.4, lambda watch: _ablated(model, texts, request, watch))
    if not steps.complete and scored is None and ablation is None:
        raise KeyboardInterrupt
    places, cards, maps, text = list[Place](), [], None, text or CARD_TEXT
    if ablation is not None and request.cards:
        matter = ablation.ranking(request.cards).matter
        places = [effect.head for effect in matter if effect.head is not None]
    if not steps.complete:
        steps.missing["cards"] = "interrupted"
    elif places:
        asked = CardRequest.of(vars(request))
        cards = head_cards(
            model, places, text, texts, asked, steps, scored=scored, ablation=ablation
        )
        maps = every_map(model, text, asked)
    notes = texts.notes
    if ablation is not None and len(places) < request.cards:
        fewer = f"cards of {counted(len(places), 'head')}, not {request.cards:,}"
        notes += (f"{fewer}: no other ablated head costs loss",)
    return ModelReport(
        model=model.info,
        counted=params,
        vocabulary=words,
        context=model.context,
        scored=scored,
        ablation=ablation,
        cards=tuple(cards),
        maps=maps,
        missing=dict(steps.missing),
        notes=notes,
        text=text,
        source=texts.source,
        seed=request.seed,
        complete=steps.complete,
        index_base=request.index_base,
    )


def _ablated(model: Model, texts: Texts, request: ReportRequest, watch: Watch) -> AblationReport:
    tokens = about_tokens(*texts.texts)
    kept = tokens * model.info.layers * model.info.heads <= _LOSSES
    more = {"target": None, "by_token": kept, "top": max(request.cards, 1)}
    asked = AblateRequest.of(vars(request) | more)
    followed = 0 if kept else request.cards
    return replace(ablate(model, texts, asked, followed=followed, advance=watch), by_token=False)
