"""Answers ``params``: exact parameters, caches, operations and memory of an architecture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnviz.count.params.cases import CountedCases, NamedModel, compared_cases, requested_cases
from attnviz.count.params.request import ParamsRequest
from attnviz.draw.report import Report
from attnviz.options import read_size

if TYPE_CHECKING:  # the options of the program need no drawing
    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document


@dataclass(frozen=True, repr=False)
class ParamsReport(Report):
    """The report of ``attnviz params``: the counts of all cases.

    models: how many models were named; 0 if options gave the sizes. request: the options.
    """

    counted: CountedCases
    models: int
    request: ParamsRequest

    command = "params"

    def data(self) -> dict[str, Any]:
        from attnviz.count.params.data import params_object

        return params_object(self.counted)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.count.params.data import write_params_json

        write_params_json(self.counted, stream)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.count.params.data import params_rows

        return params_rows(self.counted)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.count.params.document import params_document

        return params_document(self, explain=explain, hints=hints)


def params(models: Sequence[NamedModel], request: ParamsRequest) -> ParamsReport:
    """Count parameters, KV cache, operations and memory of each model, or of given sizes.

    models: the models; empty if the options in ``request`` give the sizes of an architecture.
    Raises UsageError for neither a model nor sizes, for both, numbers that do not fit together, or
    an unknown GPU; LoadError or OfflineError for a name whose config cannot be read.
    """
    count = compared_cases if request.compare else requested_cases
    if not request.gpu:
        return ParamsReport(count(models, request), len(models), request)
    from attnviz.count.params.cards import find_cards  # most runs name no card
    from attnviz.count.params.counting.serving import fit_cards

    cards = find_cards(request.gpu)
    counted, overhead = count(models, request), read_size(request.overhead, "--overhead", 0)
    cases = tuple(
        case._replace(gpus=fit_cards(case.cost, cards, chunk=request.chunk, overhead=overhead))
        if case.cost is not None
        else case
        for case in counted.cases
    )
    return ParamsReport(counted._replace(cases=cases), len(models), request)
