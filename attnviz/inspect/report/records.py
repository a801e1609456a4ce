"""The report on a model: what was counted, scored and ablated, and the cards of some heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attnviz.count.params.params import ParamsReport
from attnviz.draw.report import Report, written_in
from attnviz.inspect.head.records import HeadCard
from attnviz.inspect.interventions.ablate.records import AblationReport
from attnviz.inspect.patterns.records import PatternReport
from attnviz.records import HeadsRecord, ModelInfo, Provenance


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
    data = written_in("attnviz.inspect.report.data:report_data")
    rows = written_in("attnviz.inspect.report.data:report_rows")
    document = written_in("attnviz.inspect.report.document:report_document")
