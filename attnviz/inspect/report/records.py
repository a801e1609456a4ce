"""The report on a model: what was counted, scored and ablated, and the cards of some heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnviz.count.params.params import ParamsReport
from attnviz.draw.report import Report
from attnviz.inspect.head.records import HeadCard
from attnviz.inspect.interventions.ablate.records import AblationReport
from attnviz.inspect.patterns.report import PatternReport
from attnviz.records import HeadsRecord, ModelInfo, Provenance

if TYPE_CHECKING:
    from attnviz.draw.document import Document


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
        from attnviz.inspect.report.data import report_data

        return report_data(self)

    def rows(self) -> Iterable[tuple[object, ...]]:
        from attnviz.inspect.report.data import report_rows

        return report_rows(self)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.report.document import report_document

        return report_document(self).shown(explain=explain, hints=hints)
