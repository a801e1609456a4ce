"""Makes the reports of ``heads``: reads one or several texts, and keeps the weights of every head.

This is the one place that decides whether a text is read as whole maps or, because it is long or
pooled maps were asked for, as sums over rows, see ``sums``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.capture import Choice, asked, attention_kind, capture_text, encoded
from attnviz.engine.known_labels import known_labels
from attnviz.engine.observer import sums_or_maps
from attnviz.engine.selection import choose_heads
from attnviz.engine.text_pass import TextReader, vectors_of
from attnviz.errors import UsageError
from attnviz.inspect.heads.links import DRAWS, PairLinks, pair_links
from attnviz.inspect.heads.report import NOTABLE, HeadsReport, HeadsView, LongHeads, compare_heads
from attnviz.inspect.heads.request import HeadsRequest
from attnviz.inspect.heads.sums import long_heads
from attnviz.measures.labels import KnownLabels
from attnviz.measures.one_text import head_scores, notable_heads
from attnviz.measures.regions import region_shares
from attnviz.measures.registry import said_name
from attnviz.measures.sinks import resting_weight, sink_of, sink_weights, without_sink
from attnviz.measures.uniform import norm_weighted
from attnviz.measures.words import WordPlaces, find_word, joined
from attnviz.models.model import Model
from attnviz.models.work import ON_TORCH, Work, about_tokens
from attnviz.progress import UNWATCHED, Advance
from attnviz.records import AttentionRecord, HeadsRecord, HeadVectors, Kind, Score
from attnviz.regions import region_reader
from attnviz.texts import Texts

Opening = Callable[[dict[str, Any]], Model]
"""Opens the model, with changes to the library's own attention: its mask, its score."""

RequestedRun = tuple[dict[str, Any], Choice]
"""One run: the changes to the library's own attention, and which attention is kept."""

_Name = TypeVar("_Name", bound=str)


def work(text: str | Texts, request: HeadsRequest) -> Work:
    """Return the planned work over a text, from which the loader chooses NumPy or torch."""
    if request.asks_sums:
        return ON_TORCH
    tokens = about_tokens(*([text] if isinstance(text, str) else text.texts))
    return Work(tokens * (1 if request.pair is None else 1 + DRAWS))


def heads(
    model: Model,
    given: str | Texts,
    request: HeadsRequest,
    opening: Opening,
    *,
    vectors: bool = False,
    advance: Advance = UNWATCHED,
) -> HeadsReport | LongHeads:
    """Measure where each head attends: in whole maps, or over a long text in pooled ones.

    model: of the first run. given: a text, or several, which stand side by side. opening: opens the
    model of a further run. vectors: also keep queries, keys and the norms of values, which an
    interactive page shows.
    advance: is called with the share of a run's layers that is read; see ``long_heads``.

    Raises UsageError if a choice, a word or the text does not fit the model, if two runs are the
    same, or if an option needs maps of another size; UnsupportedError if the attention cannot be
    observed.
    """
    ((changes, choice), *_) = requested_runs(request, of_texts=isinstance(given, Texts))

    def in_whole_maps() -> HeadsReport | LongHeads:
        def reopened(changed: dict[str, Any]) -> Model:
            return model if changed == changes else opening(changed)

        return whole_maps(reopened, given, request, vectors=vectors, advance=advance)

    needs_whole, asked_for = request.needs_whole, request.asks_sums
    if isinstance(given, Texts):
        return in_whole_maps()
    if asked_for and needs_whole:
        raise UsageError(f"{needs_whole} needs whole maps of a short text: leave it out")
    if request.reduce == "full" or needs_whole or not (asked_for or model.info.backend == "torch"):
        return in_whole_maps()
    kind, reader = attention_kind(model, choice), region_reader(model, given, request)
    if not asked_for and kind not in ("self", "encoder"):
        return in_whole_maps()
    text, encode = (given, None) if reader is None else (reader.text, reader.encode)
    tokens = encoded(model, text, request.truncate, encode)
    shown, notes = (given, ()) if reader is None else (reader.shown, reader.notes(tokens))
    return sums_or_maps(
        model.info,
        len(tokens),
        "fused" if asked_for else request.reduce,
        lambda: long_heads(model, tokens, kind, request, advance, text=shown, notes=notes),
        in_whole_maps,
    )


class _Run(NamedTuple):
    """What one run over one text gives."""

    maps: HeadsRecord
    before: HeadsRecord | None
    word: WordPlaces | None
    pair: PairLinks | None


def whole_maps(
    opening: Opening,
    given: str | Texts,
    request: HeadsRequest,
    *,
    vectors: bool = False,
    advance: Advance = UNWATCHED,
) -> HeadsReport:
    """Measure where each head attends, in whole maps, in one run or in several side by side.

    opening: opens the model of a run. The other arguments and the errors are those of ``heads``.
    """
    runs, model, opened = list[_Run](), None, None
    texts, watch = ([given], advance) if isinstance(given, str) else (given.texts, UNWATCHED)
    for changes, choice in requested_runs(request, of_texts=isinstance(given, Texts)):
        if model is None or opened != changes:
            model, opened = opening(changes), changes
        for index, text in enumerate(texts):
            try:
                runs.append(_read(model, text, choice, request, vectors, watch))
            except UsageError as error:
                if isinstance(given, str):
                    raise
                raise UsageError(f"{given.place(index)}: {error}") from error
    maps = [run.maps for run in runs]
    if isinstance(given, Texts):
        record = maps[0].record
        info = replace(record.model, notes=record.model.notes + given.notes)
        maps[0] = replace(maps[0], record=replace(record, model=info))
    words = [run.word for run in runs if run.word is not None]
    ways = {(each.record.kind, each.record.causal, each.record.model.score) for each in maps}
    if isinstance(given, str) and len(ways) < len(runs):
        raise UsageError("a single word has no later one to hide: give a text of at least two")
    pairs = [run.pair for run in runs if run.pair is not None]
    view = HeadsView(request.values, request.top, words, pairs, bool(request.sink))
    before = tuple(run.before for run in runs if run.before is not None)
    return replace(compare_heads(maps), view=view, before=before)


def _read(
    model: Model,
    given: str,
    choice: Choice,
    request: HeadsRequest,
    vectors: bool,
    advance: Advance,
) -> _Run:
    """Return the maps of one run over one text, and what is asked of a word or a pair in it."""
    reader, text = region_reader(model, given, request), given
    if reader is not None:
        text, choice = reader.text, replace(choice, encode=reader.encode)
    info, removed, norms = model.info, set[tuple[int, int]](), None
    if request.ablate or request.norm_weighted:
        chosen = choose_heads(None, request.ablate, info.layers, info.heads, choice.index_base)
        removed = {(layer, head) for layer, some in (chosen or {}).items() for head in some}
        wanted, text_reader = asked(model, text, choice), TextReader(model)
        record, selected = text_reader.read(wanted, removed).record, wanted.heads is not None
        norms = text_reader.norms(wanted, removed) if request.norm_weighted else None
    else:
        record, selected = capture_text(model, text, choice, advance)
    kept = vectors_of(model, asked(model, text, choice), removed) if vectors else None

    def scored(record: AttentionRecord, **changed: Any) -> HeadsRecord:
        return heads_report(
            record,
            selected,
            index_base=choice.index_base,
            sort=request.sort,
            smallest_first=request.reverse,
            text=given if reader is None else reader.shown,
            target=choice.target,
            sink=request.sink is not False,
            known=known_labels(model, record.kind, ignored=choice.no_known_labels),
            **changed,
        )

    noted = record
    if reader is not None:
        notes = record.model.notes + reader.notes(record.keys)
        noted = replace(record, model=replace(record.model, notes=notes))
    maps = scored(noted, ablated=removed, norms=norms, vectors=kept)
    before = None
    if vectors and request.ablate and not request.norm_weighted:
        wanted = asked(model, text, choice)
        whole = TextReader(model).read(wanted).record
        before = scored(whole, vectors=vectors_of(model, wanted))
    pair = None
    if request.pair is not None:
        first, second = (find_word(record, word) for word in request.pair)
        tokens = encoded(model, text, choice.truncate, choice.encode)
        pair = pair_links(model, record, (first, second), tokens)
    word = None if request.token is None else find_word(maps.record, request.token)
    return _Run(maps, before, word, pair)


# The runs of a request -----------------------------------------------------------------------


def requested_runs(request: HeadsRequest, of_texts: bool = False) -> tuple[RequestedRun, ...]:
    """Return the requested runs: one for each kind and score, and for each mask if compared.

    A causal mask is for self-attention: cross attention next to it has none. The target is only
    for the kinds that have one. of_texts: whether each run is over several texts.

    Raises UsageError if a name is unknown or given twice, if masks of cross attention are compared,
    or if an option does not go with several texts.
    """
    if of_texts and (named := request.regions_given):
        raise UsageError(f"{named[0]} names regions of one text: leave out --texts")
    kinds: tuple[Kind, ...] = _chosen("--kind", request.kind, get_args(Kind))
    scores: tuple[Score, ...] = _chosen("--score", request.score, get_args(Score))
    if request.compare_mask and "cross" in kinds:
        raise UsageError(
            "--compare-mask hides the later words of one text, cross attention has two: leave "
            "out --kind cross"
        )
    choice = Choice(
        request.layer,
        request.head,
        request.index_base,
        target=request.target,
        truncate=request.truncate,
        no_known_labels=request.no_known_labels,
    )
    runs, several = list[RequestedRun](), len(kinds) > 1
    masks = (False, True) if request.compare_mask else (None,)
    for kind, score, causal in product(kinds or (None,), scores or (None,), masks):
        changes = {"score": score, "causal": False if several and kind == "cross" else causal}
        target = None if several and kind not in ("decoder", "cross") else choice.target
        given = {name: value for name, value in changes.items() if value is not None}
        runs.append((given, replace(choice, kind=kind, target=target)))
    if of_texts and len(runs) > 1:
        raise UsageError("--texts takes one run of each text: give one --kind and one --score")
    return tuple(runs)


def _chosen(option: str, typed: str | None, known: tuple[_Name, ...]) -> tuple[_Name, ...]:
    """Return the names between the commas of an option's value."""
    names = [] if typed is None else [name.strip() for name in typed.split(",")]
    for place, name in enumerate(names):
        if name not in known:
            expected = ", ".join(map(repr, known))
            raise UsageError(f"{option}: {name!r} is not one of {expected}")
        if name in names[:place]:
            raise UsageError(f"{option} {name} is given twice: there is one run of each")
    return tuple(one for name in names for one in known if one == name)


# Scores --------------------------------------------------------------------------------------


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
        of the moved values, by which the kept weights are multiplied. vectors: queries and keys.

    Raises UsageError if this text or model has no such measure, or no sink to leave out.
    """
    scores, regions = head_scores(record, known), region_shares(record)
    queries, keys = sink_of(record)
    sinks = {
        (layer.layer, head): weight
        for layer in (record.layers if keys.any() and not queries.all() else ())
        for head, weight in zip(
            layer.heads, sink_weights(layer.weights, queries, keys).tolist(), strict=True
        )
    }
    if sort is not None:
        measured = [entry for entry in scores if entry.scores[sort] is not None]
        if not measured:
            raise UsageError(
                f"{said_name(sort)} cannot be measured here: the text repeats no token, or this "
                "kind of attention has none; choose another --sort"
            )
        measured.sort(key=lambda entry: entry.scores[sort] or 0.0, reverse=not smallest_first)
        scores = (*measured, *(entry for entry in scores if entry.scores[sort] is None))
    leading = tuple(entry.place for entry in scores[:NOTABLE])
    if target is None and text and record.kind in ("decoder", "cross"):
        target = joined(record.queries)
    layers = record.layers
    if norms is not None:
        layers = tuple(
            replace(each, weights=norm_weighted(each.weights, norms[each.layer][list(each.heads)]))
            for each in layers
        )
    if not sink:
        if not keys.any():
            raise UsageError(
                "--no-sink: there is no attention sink here, neither a special token nor a first "
                "one of causal attention"
            )
        layers = tuple(replace(each, weights=without_sink(each.weights, keys)) for each in layers)
    record = replace(record, layers=layers)
    return HeadsRecord(
        record=record,
        heads=scores,
        notable=leading if sort is not None else notable_heads(scores, NOTABLE),
        selected=selected,
        index_base=index_base,
        sorted_by=sort,
        text=text,
        target=target,
        sinks=sinks,
        resting=resting_weight(record),
        sink=sink,
        ablated=tuple(sorted(ablated)),
        norm_weighted=norms is not None,
        vectors=vectors,
        regions=regions,
    )
