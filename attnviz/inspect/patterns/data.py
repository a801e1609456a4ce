"""The output of ``attnviz patterns`` for programs: the object of ``--json``, rows of a table.

``attnviz diff`` reads the heads of the object back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from attnviz.draw.regions import share_facts
from attnviz.draw.values import json_number, json_numbers, model_facts
from attnviz.inspect.patterns.records import PatternReport, PatternScores, Probe
from attnviz.measures.registry import STATISTICS, label_named
from attnviz.reading import finite, optional, typed
from attnviz.records import RegionShares

SCHEMA = "attnviz.patterns/1"


def score_entry(entry: PatternScores, regions: RegionShares | None = None) -> dict[str, Any]:
    """Return the JSON object of one head's pattern scores; ``null`` for values not measured.

    entry: its scores. regions: the attention shares between regions; None if the text has none.
    """
    found: dict[str, Any] = {
        "layer": entry.layer,
        "head": entry.head,
        "label": entry.label,
        "score": json_number(entry.score),
        "margin": json_number(entry.margin),
        "agreement": json_number(entry.agreement),
        "scores": json_numbers(entry.scores),
        "base_rate": json_numbers(entry.base_rate),
        "strength": json_numbers(entry.strength),
        "intervals": {name: [*map(json_number, ends)] for name, ends in entry.intervals.items()},
        "statistics": json_numbers(entry.statistics),
        "measured": dict(entry.measured),
        "events": entry.events,
    }
    if entry.control:
        found["control"] = json_numbers(entry.control)
    if regions is not None:
        found["regions"] = share_facts(regions, (entry.layer, entry.head))
    return found


def read_scores(facts: Mapping[str, Any]) -> PatternScores:
    """Return the label, the pattern scores and the intervals of one head from a saved file.

    facts: its object as ``patterns_data`` wrote it.
    Raises KeyError, TypeError or ValueError for anything else.
    """
    ends = {
        str(name): (finite(low), finite(high))
        for name, (low, high) in facts["intervals"].items()
        if low is not None and high is not None
    }
    return PatternScores(
        typed(facts["layer"], int),
        typed(facts["head"], int),
        optional(facts["label"], str),
        _numbers_of(facts["scores"]),
        _numbers_of(facts.get("base_rate", {})),
        intervals=ends,
    )


def _numbers_of(facts: Mapping[str, Any]) -> dict[str, float | None]:
    return {str(name): None if one is None else finite(one) for name, one in facts.items()}


def _probe(probe: Probe) -> dict[str, Any]:
    return {
        "name": probe.name,
        "texts": probe.texts,
        "shortest": probe.shortest,
        "longest": probe.longest,
        "scores": list(probe.scores),
        "seeds": list(probe.seeds),
        "pairs": dict(probe.pairs),
        "skipped": list(probe.skipped),
    }


def patterns_data(report: PatternReport) -> dict[str, Any]:
    """Return the report as JSON values, except the example maps; indices start at 0.

    ``heads`` has an entry for each head, layer by layer; if one label is watched, only the heads
    that have its score, highest first.
    """
    control, watch = report.control, report.watch
    heads = report.heads if watch is None else report.ranked(watch)
    regions = report.regions
    sizes = {} if regions is None else {"queries": regions.queries, "keys": regions.keys}
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "text": report.text or None,
        "target": report.target,
        "source": report.source or None,
        "kind": report.kind,
        "causal": report.causal,
        "view": report.view,
        "watched": watch,
        "index_base": 0,
        "probes": [_probe(probe) for probe in report.probes],
        "labels": {
            name: {
                "letter": label_named(name).letter,
                "family": label_named(name).family,
                "threshold": report.thresholds[name],
                "heads": len(report.labelled(name)),
            }
            for name in report.labels
        },
        "labels_from": None if report.labels_from == "none" else report.labels_from,
        "labels_date": report.labels_date or None,
        "not_measured": dict(report.not_measured),
        "untestable": json_numbers(report.untestable),
        "control": control
        and {"weights": "random", "seed": control.seed, "labelled": dict(control.labelled)},
        "seconds": round(report.seconds, 3),
        "notes": list(report.notes),
        **({"regions": sizes} if sizes else {}),
        "heads": [score_entry(entry, regions) for entry in heads],
    }


def patterns_rows(report: PatternReport, watch: str | None) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, then a row for each head, ranked if one label is watched.

    watch: that label, or None.
    The columns ``score.NAME``, ``base.NAME``, ``strength.NAME`` and, with a random baseline,
    ``random.NAME`` belong to the score NAME; statistics have their own names.
    A cell is empty if it was not measured. With regions, ``share.A>B`` and ``uniform.A>B`` are
    the attention from region A to region B, and that of uniform attention.
    """
    regions = report.regions
    pairs = [] if regions is None else [*product(regions.queries, regions.keys)]
    of_pairs = [f"{kind}.{one}>{other}" for kind in ("share", "uniform") for one, other in pairs]
    names = dict.fromkeys(name for entry in report.heads for name in entry.scores)
    kinds = ("score", "base", "strength", *(["random"] if report.control else []))
    columns = (f"{kind}.{name}" for kind in kinds for name in names)
    yield ("layer", "head", "label", "margin", "agreement", *STATISTICS, *columns, *of_pairs)
    for entry in report.heads if watch is None else report.ranked(watch):
        numbers = (entry.margin, entry.agreement)
        statistics = (entry.statistics.get(name) for name in STATISTICS)
        by_name = (entry.scores, entry.base_rate, entry.strength, entry.control)[: len(kinds)]
        scores = (values.get(name) for values in by_name for name in names)
        found: list[float] = []
        if regions is not None:
            at = regions.heads.index((entry.layer, entry.head))
            found = [*regions.share[at].ravel().tolist(), *regions.uniform[at].ravel().tolist()]
        yield (
            entry.layer,
            entry.head,
            entry.label,
            *map(json_number, (*numbers, *statistics, *scores, *found)),
        )
