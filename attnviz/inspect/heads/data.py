"""The output of ``attnviz heads`` for programs, without the weights: JSON values and a table.

Indices start at 0 whatever the names show. If several runs are compared, each head has an entry
for each run; facts that differ between the runs are null and are given in ``variants``. The files
with the weights are written and read in ``files``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.files import CsvTable, csv_text
from attnviz.draw.regions import region_facts, share_facts
from attnviz.draw.values import json_number, label_facts, model_facts, shortest
from attnviz.inspect.heads.links import word_links
from attnviz.inspect.heads.report import HeadsReport, HeadsView
from attnviz.measures.regions import regions_of
from attnviz.measures.sinks import sink_of
from attnviz.measures.words import WordPlaces
from attnviz.records import HeadScores, HeadsRecord

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.inspect.heads.pair import PairLinks

SCHEMA = "attnviz.heads/1"
_VARIED = ("kind", "causal", "score")
_OF_TEXTS = ("text", "target", "sink")
TOKENS = ("tokens", "token_ids", "key_tokens", "key_token_ids")
_LINKS = 5
"""How many links between words JSON has."""

_LINKED = ("layer", "head", "query", "key", "weight", "chance", "reached_by", "draws")
_COLUMNS = ("layer", "head", "query_index", "query_token", "key_index", "key_token", "weight")
_REGIONS = ("query_region", "key_region")


# JSON ----------------------------------------------------------------------------------------


def comparison_facts(found: HeadsReport) -> dict[str, Any]:
    """Return the JSON object of a report without its heads: the model, the text and its tokens."""
    facts = run_facts(found.first, found.target)
    if len(found.reports) == 1:
        return facts
    variants = []
    varied = (*_VARIED, *_OF_TEXTS) if found.of_texts else _VARIED
    for report in found.reports:
        own = run_facts(report, report.target if found.of_texts else None)
        variants.append({name: own[name] for name in (*varied, *TOKENS) if name in own})
    compared = [
        name for name in varied if any(each.get(name) != facts.get(name) for each in variants)
    ]
    return {**facts, **dict.fromkeys(compared), "compared": compared, "variants": variants}


def run_facts(report: HeadsRecord, target: str | None = None) -> dict[str, Any]:
    record = report.record
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "model": model_facts(record.model),
        "text": report.text,
    }
    if target is not None:
        facts["target"] = target
    facts |= {
        **_varied(report),
        "index_base": 0,
        "sorted_by": report.sorted_by,
        "tokens": list(record.queries.texts),
        "token_ids": list(record.queries.ids),
    }
    if record.kind == "cross":
        facts["key_tokens"] = list(record.keys.texts)
        facts["key_token_ids"] = list(record.keys.ids)
    facts["sink"] = {
        "keys": [int(place) for place in np.flatnonzero(sink_of(record)[1])],
        "resting_above": report.resting if report.sinks else None,
        "heads_resting": sum(report.rests(each.layer, each.head) for each in report.heads),
        "left_out": not report.sink,
    }
    if record.keys.regions:
        facts["regions"] = region_facts(record.keys)
    if report.ablated:
        facts["ablated"] = [list(head) for head in report.ablated]
    if report.norm_weighted:
        facts["norm_weighted"] = True
    return facts


def _varied(report: HeadsRecord) -> dict[str, Any]:
    """Return the facts in which compared runs may differ, as JSON values."""
    record = report.record
    return {"kind": record.kind, "causal": record.causal, "score": record.model.score}


def head_entries(found: HeadsReport) -> Iterator[tuple[dict[str, Any], HeadsRecord, HeadScores]]:
    """Yield each head of the first run as a JSON object without weights, once for each run.

    Runs that did not select the head are skipped. Each item is the object, the run's report, and
    the head's scores. If runs are compared, ``variant`` is the index in ``variants``, ``moved`` the
    share of attention on other keys than in variant 0.
    """
    for first in found.first.heads:
        place = first.layer, first.head
        for index in found.kept_by(*place):
            report, moved = found.reports[index], found.moved[index]
            scores = report.scores(*place)
            entry = _head_entry(report, scores)
            if len(found.reports) > 1:
                entry = {"variant": index, **_varied(report), **entry}
                entry["moved"] = None if moved is None else moved[place]
            yield entry, report, scores


def _head_entry(report: HeadsRecord, scores: HeadScores) -> dict[str, Any]:
    """Return a head as a JSON object: its indices, its scores (None: not measured), its label."""
    group = report.record.model.group(scores.head)
    found, place = report.regions, (scores.layer, scores.head)
    return {
        "layer": scores.layer,
        "head": scores.head,
        "kv_head": scores.head if group is None else group,
        "sink_weight": json_number(report.sinks.get(place)),
        "entropy": scores.scores.get("entropy"),
        **{name: value for name, value in scores.scores.items() if name != "entropy"},
        "trait": label_facts(scores.label),
        **({} if found is None else {"regions": share_facts(found, place)}),
    }


def asked_facts(found: HeadsReport, view: HeadsView) -> dict[str, Any]:
    """Return the JSON facts on a requested word or word pair; with several runs, a list by run.

    view: the request; the result is empty if it asks for no word and no word pair.
    """
    asked: dict[str, list[Any]] = {}
    runs = zip(found.reports, view.words, strict=False)
    if view.words:
        asked["token"] = [_word_facts(report, word, view.sink) for report, word in runs]
    if view.pairs:
        asked["pair"] = [_pair_facts(pair) for pair in view.pairs]
    several = len(found.reports) > 1
    return {name: facts if several else facts[0] for name, facts in asked.items()}


def link_facts(found: HeadsReport) -> dict[str, Any]:
    """Return the tested links between words, with their chance, as JSON values.

    The result is empty if several runs are compared; ``links`` is None if the text has too many
    pairs of words to test.
    """
    if len(found.reports) > 1:
        return {}
    agreed = found.agreed_links
    if agreed is None:
        return {"links": None}
    links = [
        {
            **link._asdict(),
            "query": [link.query.start, link.query.stop],
            "key": [link.key.start, link.key.stop],
            "chance": json_number(link.chance),
            "beats_chance": link.beats_chance,
        }
        for link in agreed.links[:_LINKS]
    ]
    return {"links": {"heads": agreed.heads, "pairs": agreed.pairs, "found": links}}


def _word_facts(report: HeadsRecord, word: WordPlaces, sink: bool) -> dict[str, Any]:
    """Return each head's strongest link from a word and to it as JSON, largest weight first.

    word: its positions among the queries and the keys. sink: also list links with the sink.
    """
    spans = {
        name: None if place is None else list(place.span)
        for name, place in zip(("queries", "keys"), word, strict=True)
    }
    links = [[each._asdict() for each in way] for way in word_links(report, word, sink)]
    return {**spans, "sink_left_out": not sink, "from": links[0], "to": links[1]}


def _pair_facts(pair: PairLinks) -> dict[str, Any]:
    """Return a word pair's weights in the text and in shuffled texts as JSON values.

    The heads furthest from chance come first.
    """
    from attnviz.inspect.heads.pair import SEED  # imports the engine: only if needed

    directions = [
        {"queries": list(each.queries), "keys": list(each.keys)} for each in pair.directions
    ]
    links = [
        {
            **each._asdict(),
            **{name: json_number(getattr(each, name)) for name in ("weight", "chance", "reached")},
        }
        for each in pair.links
    ]
    shuffled = {"draws": pair.draws, "seed": SEED, "tokens_shuffled": pair.moved}
    return {"directions": directions, **shuffled, "heads": links}


# A table -------------------------------------------------------------------------------------


def heads_rows(found: HeadsReport, view: HeadsView | None = None) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, then a row for each head, query and key (and run, if several).

    view: the requested word or word pair; None for all cells.
    Cells that a causal query cannot see are left out, and so is the sink if it is not shown. For a
    requested word, only its rows and columns are listed; for two, a row for each head and
    direction.
    """
    several = len(found.reports) > 1
    if view is not None and view.pairs:
        yield ("variant",) * several + _LINKED
        for index, pair in enumerate(view.pairs):
            for link in pair.links:
                words = pair.names[link.direction].split(" → ", 1)
                place = (*([index] if several else []), link.layer, link.head)
                yield (*place, *words, link.weight, link.chance, link.reached, pair.draws)
        return
    regions = _regions(found.first)
    columns = (*_COLUMNS, *_REGIONS) if regions else _COLUMNS
    yield ("variant", *_VARIED, *columns) if several else columns
    for entry, report, scores in head_entries(found):
        record = report.record
        names = ("variant", *_VARIED, "layer", "head") if several else ("layer", "head")
        start = [entry[name] for name in names]
        chosen = _cells(
            report, view.words[entry.get("variant", 0)] if view and view.words else None
        )
        rows = shortest(report.weights(scores.layer, scores.head)).tolist()
        for query, row in enumerate(rows):
            asking = record.queries.texts[query]
            for key, weight in enumerate(row[: query + 1] if record.causal else row):
                if chosen[query, key] and (report.sink or weight == weight):
                    more = (regions[0][query], regions[1][key]) if regions else ()
                    yield (*start, query, asking, key, record.keys.texts[key], weight, *more)


def _regions(report: HeadsRecord) -> tuple[Sequence[str], Sequence[str]] | None:
    """Return the regions of the queries and of the keys; None if the text has none."""
    queries, keys = report.record.queries, report.record.keys
    if not keys.regions:
        return None
    return queries.regions or [*regions_of(queries)] * len(queries), keys.regions


def _cells(report: HeadsRecord, word: WordPlaces | None) -> NDArray[np.bool_]:
    """Return a mask of the cells (query, key) to list: all, or the rows and columns of a word.

    word: its positions among the queries and the keys; None for all cells.
    """
    chosen = np.full((len(report.record.queries), len(report.record.keys)), word is None)
    for axis, place in enumerate(word or ()):
        if place is not None:
            np.moveaxis(chosen, axis, 0)[list(place.span)] = True
    return chosen


def write_heads_csv(
    found: HeadsReport, stream: SupportsWrite[str], view: HeadsView | None = None
) -> None:
    """Write ``heads_rows`` as CSV to a stream.

    view: the requested word or word pair. A single run is written in half the time, with every
        token quoted.
    """
    asked = view is not None and (view.pairs or view.words)
    if len(found.reports) > 1 or not found.first.sink or asked or found.first.regions:
        CsvTable(stream).writerows(heads_rows(found, view))
        return
    report, record = found.first, found.first.record
    queries, keys = _numbered(record.queries.texts), _numbered(record.keys.texts)
    stream.write(",".join(_COLUMNS) + "\n")
    for scores in report.heads:
        rows = shortest(report.weights(scores.layer, scores.head)).tolist()
        for index, (query, row) in enumerate(zip(queries, rows, strict=True)):
            seen = index + 1 if record.causal else len(row)
            start = f"{scores.layer},{scores.head},{query},"
            pairs = zip(keys[:seen], row[:seen], strict=True)
            stream.write("".join([f"{start}{key},{weight}\n" for key, weight in pairs]))


def _numbered(texts: tuple[str, ...]) -> list[str]:
    """Return each token as two CSV fields, index and quoted text, such as ``3,"the"``.

    texts: the tokens, whose control characters are escaped.
    """
    quoted = [csv_text(text).replace('"', '""') for text in texts]
    return [f'{index},"{text}"' for index, text in enumerate(quoted)]
