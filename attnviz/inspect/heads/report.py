"""The reports of ``attnviz heads``, and their JSON, tables and arrays.

Indices start at 0 whatever the names show. If several runs stand side by side, each head has an
entry for each run; facts that differ between the runs are null and are given in ``variants``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.regions import region_facts, share_facts
from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import (
    json_values,
    label_facts,
    model_facts,
    npz_file,
    shortest,
    table_of,
    token_facts,
)
from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError
from attnviz.inspect.heads.links import SEED, PairLinks, word_links
from attnviz.measures.regions import regions_of
from attnviz.measures.sinks import sink_of
from attnviz.measures.telling import Telling, is_worth_adding, told
from attnviz.measures.word_links import WordLink, WordLinks, agreed_links
from attnviz.measures.words import Word, WordPlaces
from attnviz.options import spelled_head
from attnviz.records import (
    AttentionRecord,
    Bools,
    Floats,
    HeadScores,
    HeadsRecord,
    Kind,
    ModelInfo,
    Provenance,
    RegionShares,
    Tokens,
)

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.drawing_plot import Axes
    from attnviz.draw.files import Writer

NOTABLE = 3
"""The most heads that are shown as full maps."""

SCHEMA = "attnviz.heads/1"
TOKENS = ("tokens", "token_ids", "key_tokens", "key_token_ids")
_VARIED = ("kind", "causal", "score")
_OF_TEXTS = ("text", "target", "sink")
_LINKS = 5  # how many links between words JSON has
_LINKED = ("layer", "head", "query", "key", "weight", "chance", "reached_by", "draws")
_COLUMNS = ("layer", "head", "query_index", "query_token", "key_index", "key_token", "weight")
_REGIONS = ("query_region", "key_region")


HeadChoice: TypeAlias = str | int | tuple[int, int]
"""A head as on the command line (``L2H5``, ``2.*``, ``0-3.1,4``), the number of a head in every
layer, or (layer, head)."""

_NAMED = 4  # the most heads that an error names


def chosen_heads(
    report: HeadsRecord, heads: Sequence[HeadChoice], layer: str | int | None
) -> frozenset[tuple[int, int]]:
    """Return the chosen (layer, head) that the report has, or all its heads if none is chosen.

    heads, layer: the choices as typed, such as ``L1H2`` and ``0-3``; None for any layer.

    Raises UsageError if a choice is not valid, or the report has none of the chosen heads.
    """
    info, here = report.record.model, frozenset(report.places)
    layers = None if layer is None else str(layer)
    named = choose_heads(layers, [*map(spelled_head, heads)], info.layers, info.heads, 0)
    if named is None:
        return here
    chosen = here & {(at, head) for at, kept in named.items() for head in kept}
    if not chosen:
        names = ", ".join(report.name(*head) for head in sorted(here)[:_NAMED])
        more = ", …" if len(here) > _NAMED else ""
        raise UsageError(f"none of the chosen heads was kept: here are {names}{more}")
    return chosen


def one_head(report: HeadsRecord, head: HeadChoice) -> tuple[int, int]:
    """Return the (layer, head) of the one head that ``head`` names; UsageError if it is not one."""
    chosen = chosen_heads(report, (head,), None)
    if len(chosen) != 1:
        raise UsageError(
            f"{head!r} names {len(chosen)} heads: name one, such as "
            f"{report.name(*min(chosen))}, or take .heads({head!r})"
        )
    return next(iter(chosen))


class HeadsView(NamedTuple):
    """The options of how a report is shown, with a requested word or word pair.

    top: how many of the strongest token pairs of each head are listed, or None.
    words: for each run the requested word among the queries and the keys; empty if no word.
    pairs: for each run the heads that link two words; empty if not requested.
    sink: whether links with the attention sink are listed as well.
    """

    values: bool = False
    top: int | None = None
    words: Sequence[WordPlaces] = ()
    pairs: Sequence[PairLinks] = ()
    sink: bool = False


@dataclass(frozen=True, repr=False)
class HeadsReport(Report):
    """The report of ``attnviz heads``: one or several runs of a model over a text, side by side.

    reports: at least one; they differ in the text, or in the kind of attention, its mask or its
        score.
    moved: for each report, the share of attention that each head (layer, head) has on other keys
        than in the first one, in [0, 1]; None for the first, and if the texts differ.
    before: each run with every head, if heads are ablated and a page shows both; else empty.
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
        """Write the JSON object, a row of weights at a time, as it may be larger than the memory.

        ``heads`` has an entry for each selected head and run, in the order of the first run's
        heads; weights have the fewest digits that give the same float32. A single run has a line
        for each row of weights, a comparison a line for each entry.
        """
        facts = _facts(self) | _asked_facts(self)
        stream.write(_encode(facts).removesuffix("}") + ', "heads": [')
        begin, between = ("\n", ",\n") if len(self.reports) == 1 else ("", ", ")
        for index, (entry, run, scores) in enumerate(_head_entries(self)):
            if run.vectors is not None and scores.layer in run.vectors.norms:
                entry["value_norms"] = shortest(run.vectors.norms[scores.layer][scores.head])
            stream.write(f"{',' if index else ''}\n{_encode(entry).removesuffix('}')}")
            stream.write(', "weights": [')
            rows = map(json.dumps, json_values(shortest(run.weights(*scores.place))))
            stream.write(begin + between.join(rows) + "]}")
        stream.write("\n]}\n")

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each head, query and key (and run, if several).

        Cells that a causal query cannot see are left out, and so is the sink if it is not shown.
        For a requested word, only its rows and columns are listed; for two, a row for each head
        and direction.
        """
        if not self.view.pairs:
            yield from _weight_rows(self)
            return
        several = len(self.reports) > 1
        yield ("variant",) * several + _LINKED
        for index, pair in enumerate(self.view.pairs):
            for link in pair.links:
                words = pair.names[link.direction].split(" → ", 1)
                head = (*[index] * several, link.layer, link.head)
                yield (*head, *words, link.weight, link.chance, link.reached, pair.draws)

    def arrays(self) -> Mapping[str, Writer]:
        """Return the functions that write the attention weights to a file, by its ending."""
        from attnviz.draw.files import text_file  # a screen starts without it

        return {".csv": text_file(partial(_write_csv, self)), ".npz": partial(_write_npz, self)}

    def __getitem__(self, head: HeadChoice) -> Floats:
        """Return the attention weights (query, key) of one head in the first run.

        head: such as ``"L1H2"`` or ``(1, 2)``. Raises UsageError if it does not name one head.
        """
        return self.first.weights(*one_head(self.first, head))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the (layer, head) of each head of the first run, layer by layer."""
        return iter([(layer, head) for layer, head, _ in self.first.record])

    def plot(self, head: HeadChoice | None = None, *, ax: Axes | None = None) -> Axes:
        """Draw the map of one head of the first run with Matplotlib; see ``plot_head``."""
        return plot_head(self.first, head, self.palette, 1.0, ax)

    @cached_property
    def agreed_links(self) -> WordLinks | None:
        """Return the tested links between words of the first run; None if too many to test."""
        return agreed_links(self.first.record)

    @cached_property
    def told(self) -> list[Telling]:
        """Return the links between words that the finding names, at most two.

        The list is empty if the finding is about something else: chosen heads, several runs, random
        parameters.
        """
        run = self.first
        about_text = len(self.reports) == 1 and not run.selected and run.sorted_by is None
        if not about_text or run.record.model.weights == "random":
            return []
        tellings = told(run.record, self.agreed_links, {own.place: own.label for own in run.heads})
        ends = [{telling.link.query, telling.link.key} for telling in tellings]
        pairs = zip(tellings, ends, strict=True)
        more = [own for own, pair in pairs if pair != ends[0] and is_worth_adding(run.record, own)]
        return [*tellings[:1], *more[:1]]

    @property
    def first(self) -> HeadsRecord:
        """Return the report of the first run: it gives the shared facts and the order of heads."""
        return self.reports[0]

    @property
    def of_texts(self) -> bool:
        """Return whether the runs are over several texts, each given by a person."""
        return len({run.text for run in self.reports}) > 1

    @property
    def target(self) -> str | None:
        """Return the target text of the first run that has one, or None."""
        return next((run.target for run in self.reports if run.target is not None), None)

    def kept_by(self, layer: int, head: int) -> tuple[int, ...]:
        """Return the indices of the reports that contain a head."""
        return tuple(at for at, run in enumerate(self.reports) if (layer, head) in run.places)


def plot_head(
    report: HeadsRecord, head: HeadChoice | None, palette: str, limit: float, ax: Axes | None
) -> Axes:
    """Draw the map of one head on Matplotlib's axes, and return them.

    head: None if the report has one head only. limit: the weight with the last colour. ax: None
        makes a new figure. Raises UsageError if not one head is named.
    """
    from attnviz.draw.drawing_plot import draw_matrix
    from attnviz.draw.labels import visible

    chosen, record = one_head(report, "*" if head is None else head), report.record
    rows, columns = (
        [visible(text.strip()) for text in side.texts] for side in (record.queries, record.keys)
    )
    title, weights = report.name(*chosen), report.weights(*chosen)
    return draw_matrix(weights, rows, columns, title=title, palette=palette, limit=limit, ax=ax)


def padding_of(record: AttentionRecord) -> Bools | None:
    """Return a mask (key,) of the padding that no query sees; None without a padding mask."""
    mask = record.layers[0].mask if record.model.score is not None else None
    return None if mask is None else np.asarray(~mask.any(0))


def compare_heads(reports: Sequence[HeadsRecord]) -> HeadsReport:
    """Return some runs side by side, and what each head moves between the first and the others.

    It is ½ Σⱼ |aᵢⱼ − bᵢⱼ|, mean over the queries i: the share on other keys, in [0, 1].
    """
    first, *others = reports
    moved: list[dict[tuple[int, int], float] | None] = [None]
    for run in others:
        alike = (run.record.queries, run.record.keys) == (first.record.queries, first.record.keys)
        distances = {
            head: float(np.abs(first.weights(*head) - run.weights(*head)).sum(-1).mean() / 2)
            for head in sorted({*first.places} & {*run.places} if alike else ())
        }
        moved.append(distances or None)
    return HeadsReport(tuple(reports), tuple(moved))


def only(run: HeadsRecord, chosen: Iterable[tuple[int, int]]) -> HeadsRecord:
    """Return the record limited to some heads, as if only they had been requested."""
    kept, layers = frozenset(chosen), []
    for layer in run.record.layers:
        rows = [at for at, head in enumerate(layer.heads) if (layer.layer, head) in kept]
        if rows:
            heads = tuple(layer.heads[at] for at in rows)
            layers.append(replace(layer, heads=heads, weights=layer.weights[rows]))
    scores = tuple(entry for entry in run.heads if entry.place in kept)
    return replace(
        run,
        record=replace(run.record, layers=tuple(layers)),
        heads=scores,
        notable=tuple(entry.place for entry in scores[: len(run.notable)]),
        selected=True,
    )


def kept_vectors(run: HeadsRecord, heads: Sequence[HeadScores]) -> dict[str, NDArray[np.floating]]:
    """Return by name the vectors behind a run's weights; empty if they were not requested.

    They are ``value_norms`` (head, key); ``queries`` and ``keys`` (head, token, d), and
    ``query_key_factor``, that of their product.
    """
    if (vectors := run.vectors) is None:
        return {}
    kept = {"value_norms": vectors.norms, "queries": vectors.queries, "keys": vectors.keys}
    arrays = {
        name: np.stack([by_layer[entry.layer][entry.head] for entry in heads])
        for name, by_layer in kept.items()
        if all(entry.layer in by_layer for entry in heads)
    }
    if "queries" in arrays and "keys" in arrays:
        arrays["query_key_factor"] = np.array(vectors.factor)
    return arrays


# A long text ---------------------------------------------------------------------------------


class LongHead(NamedTuple):
    """The scores and the pooled weights of one head over a long text.

    scores: by measure; None if the text has no case of it. pooled: (query bucket, key bucket), the
    mean over the queries of the sum of the weights. even: the mean distance of uniform attention
    over the keys that its layer lets a query see. pairs: (weight, query, key), strongest first.
    part: weights of the requested queries and keys. row: mean weights of the requested word's rows.
    """

    layer: int
    head: int
    scores: Mapping[str, float | None]
    pooled: Floats
    even: float
    pairs: Sequence[tuple[float, int, int]] = ()
    part: Floats | None = None
    row: Floats | None = None


@dataclass(frozen=True, repr=False, kw_only=True)
class LongHeads(Provenance, Report):
    """The attention of heads over a long text, pooled.

    bucket: the tokens that a cell of ``pooled`` stands for, on both axes.
    regions: the attention between the regions of the text; None without regions.
    part: the queries and keys that are shown in full; None without. word: the one whose rows are
        shown; None without. sorted_by: the measure by which heads are ordered, largest first.
    """

    model: ModelInfo
    kind: Kind
    causal: bool
    tokens: Tokens
    heads: tuple[LongHead, ...]
    bucket: int
    regions: RegionShares | None = None
    part: tuple[range, range] | None = None
    word: Word | None = None
    sorted_by: str | None = None

    command = "heads"
    lists = ("heads",)

    def data(self) -> dict[str, Any]:
        return {
            "schema": "attnviz.heads-long/1",
            "model": model_facts(self.model),
            **fields_of(self, ("kind", "causal", "complete", "notes", "seconds")),
            **token_facts(self.tokens),
            **({"regions": region_facts(self.tokens)} if self.regions is not None else {}),
            "bucket": self.bucket,
            "heads": [self._entry(head) for head in self.heads],
        }

    def _entry(self, head: LongHead) -> dict[str, Any]:
        entry: dict[str, Any] = {"layer": head.layer, "head": head.head, **head.scores}
        entry["pooled"] = head.pooled
        if head.pairs:
            entry["pairs"] = head.pairs
        if head.part is not None and self.part is not None:
            entry["queries"], entry["keys"] = ([side.start, side.stop] for side in self.part)
            entry["weights"] = head.part
        if self.regions is not None:
            entry["regions"] = share_facts(self.regions, (head.layer, head.head))
        if head.row is not None:
            entry["row"] = head.row
        return entry

    def rows(self) -> Iterator[tuple[object, ...]]:
        names = ("layer", "head", *(self.heads[0].scores if self.heads else ()))
        return table_of(names, map(self._entry, self.heads))


# JSON ----------------------------------------------------------------------------------------


def _encode(value: object) -> str:
    """Return ASCII JSON: an escape sequence in a token must not reach a terminal."""
    return json.dumps(json_values(value), allow_nan=False)


def _facts(report: HeadsReport) -> dict[str, Any]:
    """Return the JSON object without its heads: the model, the text and its tokens."""
    facts = _run_facts(report.first, report.target)
    if len(report.reports) == 1:
        return facts
    variants, varied = [], (*_VARIED, *(_OF_TEXTS if report.of_texts else ()), "padding")
    for run in report.reports:
        own = _run_facts(run, run.target if report.of_texts else None)
        variants.append({name: own[name] for name in (*varied, *TOKENS) if name in own})
    compared = [
        name for name in varied if any(own.get(name) != facts.get(name) for own in variants)
    ]
    return {**facts, **dict.fromkeys(compared), "compared": compared, "variants": variants}


def _run_facts(run: HeadsRecord, target: str | None = None) -> dict[str, Any]:
    record, keys = run.record, run.record.keys
    key_facts = {f"key_{name}": value for name, value in token_facts(keys).items()}
    return {
        "schema": SCHEMA,
        "model": model_facts(record.model),
        "text": run.text,
        **({} if target is None else {"target": target}),
        **fields_of(record, ("kind", "causal")),
        "score": record.model.score,
        "index_base": 0,
        "sorted_by": run.sorted_by,
        **token_facts(record.queries),
        **(key_facts if record.kind == "cross" else {}),
        "sink": {
            "keys": np.flatnonzero(sink_of(record)[1]).tolist(),
            "resting_above": run.resting if run.sinks else None,
            "heads_resting": sum(run.rests(*head) for head in run.places),
            "left_out": not run.sink,
        },
        **({"regions": region_facts(keys)} if keys.regions else {}),
        **({} if (hidden := padding_of(record)) is None else {"padding": int(hidden.sum())}),
        **({"ablated": run.ablated} if run.ablated else {}),
        **({"norm_weighted": True} if run.norm_weighted else {}),
    }


def _head_entries(report: HeadsReport) -> Iterator[tuple[dict[str, Any], HeadsRecord, HeadScores]]:
    """Yield each head of the first run as a JSON object without weights, once for each run.

    A score is None if it was not measured.
    """
    for head in report.first.places:
        for index in report.kept_by(*head):
            run, moved, entry = report.reports[index], report.moved[index], dict[str, Any]()
            record, scores, group = run.record, run.scores(*head), run.record.model.group(head[1])
            if len(report.reports) > 1:
                varied = record.kind, record.causal, record.model.score
                entry = {"variant": index, **dict(zip(_VARIED, varied, strict=True))}
            entry |= {
                **fields_of(scores, ("layer", "head")),
                "kv_head": scores.head if group is None else group,
                "sink_weight": run.sinks.get(head),
                "entropy": scores.scores.get("entropy"),
                **scores.scores,
                "trait": label_facts(scores.label),
            }
            if run.regions is not None:
                entry["regions"] = share_facts(run.regions, head)
            if len(report.reports) > 1:
                entry["moved"] = None if moved is None else moved[head]
            yield entry, run, scores


def _link_facts(link: WordLink) -> dict[str, Any]:
    ends = {"query": [link.query.start, link.query.stop], "key": [link.key.start, link.key.stop]}
    return link._asdict() | ends | {"beats_chance": link.beats_chance}


def _asked_facts(report: HeadsReport) -> dict[str, Any]:
    """Return the tested links between words of a single run, and what a word or pair was asked."""
    view, several, facts = report.view, len(report.reports) > 1, dict[str, Any]()
    if not several:
        agreed = report.agreed_links
        facts["links"] = agreed and {
            **fields_of(agreed, ("heads", "pairs")),
            "told": [{"why": own.why} | _link_facts(own.link) for own in report.told],
            "found": list(map(_link_facts, agreed.links[:_LINKS])),
        }
    words, pairs = [], []
    for run, word in zip(report.reports, view.words, strict=False):
        queries, keys = (None if axis is None else [*axis.span] for axis in word)
        ways = zip(("from", "to"), word_links(run, word, view.sink), strict=True)
        listed = {name: [link._asdict() for link in way] for name, way in ways}
        words.append({"queries": queries, "keys": keys, "sink_left_out": not view.sink, **listed})
    for pair in view.pairs:
        ends = [{"queries": [*way.queries], "keys": [*way.keys]} for way in pair.directions]
        links = [link._asdict() for link in pair.links]
        drawn = {"draws": pair.draws, "seed": SEED, "tokens_shuffled": pair.moved}
        pairs.append({"directions": ends, **drawn, "heads": links})
    for name, asked in (("token", words), ("pair", pairs)):
        if asked:
            facts[name] = asked if several else asked[0]
    return facts


# Tables and arrays ---------------------------------------------------------------------------


def _weight_rows(report: HeadsReport) -> Iterator[tuple[object, ...]]:
    words, tokens = report.view.words, report.first.record
    regions = tokens.keys.regions
    asked = tokens.queries.regions or [*regions_of(tokens.queries)] * len(tokens.queries)
    columns = ("variant", *_VARIED) * (len(report.reports) > 1) + _COLUMNS
    yield (*columns, *_REGIONS) if regions else columns
    for entry, run, scores in _head_entries(report):
        record = run.record
        start = [entry[name] for name in columns if name in entry]
        chosen = np.full((len(record.queries), len(record.keys)), not words)
        for axis, own in enumerate(words[entry.get("variant", 0)] if words else ()):
            if own is not None:  # only its rows and columns
                np.moveaxis(chosen, axis, 0)[list(own.span)] = True
        for query, row in enumerate(shortest(run.weights(*scores.place)).tolist()):
            asking = record.queries.texts[query]
            for key, weight in enumerate(row[: query + 1] if record.causal else row):
                if chosen[query, key] and (run.sink or weight == weight):
                    more = (asked[query], regions[key]) if regions else ()
                    yield (*start, query, asking, key, record.keys.texts[key], weight, *more)


def _write_csv(report: HeadsReport, stream: SupportsWrite[str]) -> None:
    """Write the rows as CSV; of a single run every token is quoted."""
    import csv

    from attnviz.draw.files import CsvTable, csv_text

    run, rows = report.first, iter(report.rows())
    asked = report.view.pairs or report.view.words
    if len(report.reports) > 1 or not run.sink or asked or run.regions:
        CsvTable(stream).writerows(rows)
        return
    stream.write(",".join(map(str, next(rows))) + "\n")
    quoting = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    for row in rows:
        quoting.writerow([csv_text(cell) if isinstance(cell, str) else cell for cell in row])


def _write_npz(report: HeadsReport, stream: Any) -> None:
    """Write an archive that ``numpy.load`` opens with ``allow_pickle=False``."""
    entries = [*_head_entries(report)]
    provenance = _encode({**_facts(report), "heads": [entry for entry, _, _ in entries]})
    arrays: dict[str, Any] = {"provenance": provenance}
    for index, run in enumerate(report.reports):
        facts, heads = _run_facts(run), [scores for _, owner, scores in entries if owner is run]
        kept = {
            "weights": np.stack([run.weights(*scores.place) for scores in heads]),
            "layers": [scores.layer for scores in heads],
            "heads": [scores.head for scores in heads],
            **{name: facts[name] for name in TOKENS if name in facts},
            **kept_vectors(run, heads),
        }
        end = f"_{index}" if len(report.reports) > 1 else ""
        arrays |= {f"{name}{end}": array for name, array in kept.items()}
    npz_file(**arrays)(stream)
