"""Makes reports of heads from records of weights: scored, sorted, compared."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report
from attnviz.errors import UsageError
from attnviz.inspect.heads.pair import PairLinks
from attnviz.measures.labels import KnownLabels
from attnviz.measures.one_text import head_scores, notable_heads
from attnviz.measures.regions import region_shares
from attnviz.measures.registry import said_name
from attnviz.measures.sinks import resting_weight, sink_of, sink_weights, without_sink
from attnviz.measures.uniform import norm_weighted
from attnviz.measures.word_links import WordLinks, agreed_links
from attnviz.measures.words import WordPlaces, joined
from attnviz.records import AttentionRecord, HeadScores, HeadsRecord, HeadVectors

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document
    from attnviz.draw.files import Writer

NOTABLE = 3
"""The most heads that are shown as full maps."""


def heads_report(
    record: AttentionRecord,
    selected: bool,
    index_base: int = 0,
    sort: str | None = None,
    smallest_first: bool = False,
    *,
    text: str = "",
    target: str | None = None,
    sink: bool = True,
    known: KnownLabels | None = None,
    ablated: Collection[tuple[int, int]] = (),
    norms: Mapping[int, NDArray[np.floating]] | None = None,
    vectors: HeadVectors | None = None,
) -> HeadsRecord:
    """Return the report of the record's heads, sorted by the measure ``sort`` if it is given.

    smallest_first: sort the other way.
    selected: whether the heads were chosen. index_base: 0 or 1, of their names.
    text, target: the texts as given; a target that the model generated is taken from the record.
    sink: False leaves the attention sink out of the reported weights; scores are always computed on
        the model's own attention weights.
    known: labels of the model's heads that were measured before.
    ablated: (layer, head) whose outputs were set to zero. norms: by layer, (head, key): the norms
        of the moved values, with which the kept weights are multiplied. vectors: what makes them.

    Raises UsageError if this text or model has no such measure, or no sink to leave out.
    """
    heads, regions = head_scores(record, known), region_shares(record)
    sinks = _sinks(record)
    if sort is not None:
        heads = _sorted(heads, sort, smallest_first)
    ranked = [(entry.layer, entry.head) for entry in heads[:NOTABLE]]
    notable = tuple(ranked) if sort is not None else notable_heads(heads, NOTABLE)
    if target is None and text and record.kind in ("decoder", "cross"):
        target = joined(record.queries)
    if norms is not None:
        record = _norm_weighted(record, norms)
    if not sink:
        record = _without_sink(record)
    found = HeadsRecord(
        record=record,
        heads=heads,
        notable=notable,
        selected=selected,
        index_base=index_base,
        sorted_by=sort,
        text=text,
        target=target,
    )
    return replace(
        found,
        sinks=sinks,
        resting=resting_weight(record),
        sink=sink,
        ablated=tuple(sorted(ablated)),
        norm_weighted=norms is not None,
        vectors=vectors,
        regions=regions,
    )


def _sinks(record: AttentionRecord) -> dict[tuple[int, int], float]:
    """Return each head's attention weight on the sink, by (layer, head); empty without a sink."""
    queries, keys = sink_of(record)
    if not keys.any() or queries.all():
        return {}
    return {
        (layer.layer, head): weight
        for layer in record.layers
        for head, weight in zip(
            layer.heads, sink_weights(layer.weights, queries, keys).tolist(), strict=True
        )
    }


def _norm_weighted(
    record: AttentionRecord, norms: Mapping[int, NDArray[np.floating]]
) -> AttentionRecord:
    layers = [
        replace(each, weights=norm_weighted(each.weights, norms[each.layer][list(each.heads)]))
        for each in record.layers
    ]
    return replace(record, layers=tuple(layers))


def _without_sink(record: AttentionRecord) -> AttentionRecord:
    """Return the record without the sink's keys, with rows rescaled to sum to one.

    Raises UsageError if there is no sink.
    """
    keys = sink_of(record)[1]
    if not keys.any():
        raise UsageError(
            "--no-sink: there is no attention sink here, neither a special token nor a first one "
            "of causal attention"
        )
    layers = [replace(each, weights=without_sink(each.weights, keys)) for each in record.layers]
    return replace(record, layers=tuple(layers))


def _sorted(
    heads: tuple[HeadScores, ...], measure: str, smallest_first: bool
) -> tuple[HeadScores, ...]:
    """Return the heads sorted by a measure; heads without a value come last."""
    measured = [entry for entry in heads if entry.scores[measure] is not None]
    if not measured:
        raise UsageError(
            f"{said_name(measure)} cannot be measured here: the text repeats no token, or this "
            "kind of attention has none; choose another --sort"
        )
    measured.sort(key=lambda entry: entry.scores[measure] or 0.0, reverse=not smallest_first)
    return (*measured, *(entry for entry in heads if entry.scores[measure] is None))


# What is shown --------------------------------------------------------------------------


class HeadsView(NamedTuple):
    """The options of what is shown of a report, with a requested word or word pair.

    values: whether the weights are written into the cells.
    top: how many of the strongest token pairs of each head are listed, or None.
    words: for each run the requested word among the queries and the keys; empty if no word.
    pairs: for each run the heads that link two words; empty if not requested.
    sink: whether links with the attention sink are listed as well.
    explain: whether a glossary for newcomers is added.
    hints: whether options to try next are suggested.
    """

    values: bool = False
    top: int | None = None
    words: Sequence[WordPlaces] = ()
    pairs: Sequence[PairLinks] = ()
    sink: bool = False
    explain: bool = False
    hints: bool = False


@dataclass(frozen=True, repr=False)
class HeadsReport(Report):
    """The report of ``attnviz heads``: one or several runs of a model over a text, side by side.

    reports: at least one; they differ in the text, or in the kind of attention, its mask or its
        score.
    before: each run with every head, if heads are ablated and a page shows both; else empty.
    moved: for each report, the share of attention that each head (layer, head) has on other keys
        than in the first one, in [0, 1]; None for the first, and if the texts differ.
    view: the options of what is shown.
    """

    reports: tuple[HeadsRecord, ...]
    moved: tuple[Mapping[tuple[int, int], float] | None, ...]
    view: HeadsView = field(default_factory=HeadsView)
    before: tuple[HeadsRecord, ...] = ()

    command = "heads"

    def __post_init__(self) -> None:
        if not self.reports or len(self.moved) != len(self.reports):
            raise ValueError(
                "a comparison needs a report, and what was moved in each: "
                f"got {len(self.reports)} and {len(self.moved)}"
            )

    def data(self) -> dict[str, Any]:
        return self.to_dict()

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """Write the JSON object of ``data``, head by head, as it may be larger than the memory."""
        from attnviz.inspect.heads.written import write_heads_json

        write_heads_json(self, stream, self.view)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.heads.data import heads_rows

        return heads_rows(self, self.view)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.heads.document import heads_document

        return heads_document(self, self.view._replace(explain=explain, hints=hints))

    def arrays(self) -> Mapping[str, Writer]:
        from attnviz.inspect.heads.written import array_files

        return array_files(self, self.view)

    @cached_property
    def agreed_links(self) -> WordLinks | None:
        """Return the tested links between words of the first run; None if too many to test."""
        return agreed_links(self.first.record)

    @property
    def first(self) -> HeadsRecord:
        """Return the report of the first run: it gives the shared facts and the order of heads."""
        return self.reports[0]

    @property
    def of_texts(self) -> bool:
        """Return whether the runs are over several texts, each given by a person."""
        return len({report.text for report in self.reports}) > 1

    @property
    def target(self) -> str | None:
        """Return the target text of the first run that has one, or None."""
        return next((each.target for each in self.reports if each.target is not None), None)

    def kept_by(self, layer: int, head: int) -> tuple[int, ...]:
        """Return the indices of the reports that contain a head."""
        return tuple(
            index
            for index, report in enumerate(self.reports)
            if any((entry.layer, entry.head) == (layer, head) for entry in report.heads)
        )


def total_variation(
    weights: NDArray[np.floating], other: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Return the total variation distance of attention, one number for each head, in [0, 1].

    It is the mean over queries of ½ Σⱼ |A[i, j] − B[i, j]|: the share of attention that moves to
    other keys. weights, other: A and B, (..., query, key).
    """
    moved: NDArray[np.floating] = np.abs(weights - other).sum(-1).mean(-1) / 2
    return moved


def compare_heads(reports: Sequence[HeadsRecord]) -> HeadsReport:
    """Return the runs side by side, with the share of attention that each head moved.

    The share is relative to the first run, see ``HeadsReport.moved``; it is None if the two runs
    are over different texts.
    """
    first, *others = reports
    kept = {(entry.layer, entry.head) for entry in first.heads}
    texts = first.record.queries, first.record.keys
    moved: list[dict[tuple[int, int], float] | None] = [None]
    for report in others:
        places = kept & {(entry.layer, entry.head) for entry in report.heads}
        distances = {
            place: float(total_variation(first.weights(*place), report.weights(*place)))
            for place in sorted(places)
            if (report.record.queries, report.record.keys) == texts
        }
        moved.append(distances or None)
    return HeadsReport(tuple(reports), tuple(moved))


def kept_vectors(
    report: HeadsRecord, heads: Sequence[HeadScores]
) -> dict[str, NDArray[np.floating]]:
    """Return the arrays behind the weights of a run by name; empty if they were not requested.

    They are ``value_norms`` (head, key); ``queries`` and ``keys`` (head, token, d), and
    ``query_key_factor``, that of their product. heads: those of the arrays, in their order.
    """
    if report.vectors is None:
        return {}
    found = {
        "value_norms": report.vectors.norms,
        "queries": report.vectors.queries,
        "keys": report.vectors.keys,
    }
    arrays = {
        name: np.stack([by_layer[each.layer][each.head] for each in heads])
        for name, by_layer in found.items()
        if all(each.layer in by_layer for each in heads)
    }
    if "queries" in arrays and "keys" in arrays:
        arrays["query_key_factor"] = np.array(report.vectors.factor)
    return arrays
