"""From a request to a report: reads a text and keeps the weights of every head, run by run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from attnviz.engine.capture import Choice, asked, capture_text, encoded
from attnviz.engine.known_labels import known_labels
from attnviz.engine.selection import choose_heads
from attnviz.engine.text_pass import TextReader
from attnviz.engine.vectors import vectors_of
from attnviz.errors import UsageError
from attnviz.inspect.heads.pair import DRAWS, PairLinks, pair_links
from attnviz.inspect.heads.report import HeadsReport, HeadsView, compare_heads, heads_report
from attnviz.inspect.heads.request import HeadsRequest
from attnviz.inspect.heads.runs import requested_runs
from attnviz.measures.words import find_word
from attnviz.models.model import Model
from attnviz.models.resolve import reckoned_tokens
from attnviz.progress import UNWATCHED, Advance
from attnviz.records import AttentionRecord, HeadsRecord
from attnviz.regions import region_reader
from attnviz.texts import Texts

Opening = Callable[[dict[str, Any]], Model]
"""Opens the model, with changes to the library's own attention: its mask, its score."""


def reckoned_length(text: str | Texts, request: HeadsRequest) -> int | None:
    """Return about how many tokens the model will run on for this request; None if it needs torch.

    The number decides which backend (NumPy or torch) is faster.
    """
    if request.asks_sums:
        return None
    tokens = sum(map(reckoned_tokens, (text,) if isinstance(text, str) else text.texts))
    return tokens * (1 if request.pair is None else 1 + DRAWS)


def heads(
    opening: Opening,
    given: str,
    request: HeadsRequest,
    *,
    vectors: bool = False,
    advance: Advance = UNWATCHED,
) -> HeadsReport:
    """Return where each head attends over one text, in one run or in several side by side.

    opening: a function that opens the model of a run, given the changes to it. given: the text.
    vectors: also keep queries, keys and the norms of values, which an interactive page shows.
    advance: is called with the share of a run's layers that is read.
    Raises UsageError if a choice, a word or the text does not fit the model, or if two runs are
    the same; UnsupportedError if the attention cannot be observed.
    """
    reports: list[HeadsRecord] = []
    before: list[HeadsRecord] = []
    pairs: list[PairLinks] = []
    model, opened, text = None, None, given
    for changes, choice in requested_runs(request):
        if model is None or opened != changes:
            model, opened = opening(changes), changes
        if (reader := region_reader(model, given, request)) is not None:
            text, choice = reader.text, replace(choice, encode=reader.encode)
        record, selected, changed = _captured(model, text, choice, request, vectors, advance)
        shown = text
        if reader is not None:
            shown, notes = reader.shown, record.model.notes + reader.notes(record.keys)
            record = replace(record, model=replace(record.model, notes=notes))
        if request.pair is not None:
            pairs.append(_pair(model, record, text, choice, request.pair))
        report = partial(
            heads_report,
            selected=selected,
            index_base=choice.index_base,
            sort=request.sort,
            smallest_first=request.reverse,
            text=shown,
            target=choice.target,
            sink=request.sink is not False,
            known=known_labels(model, record.kind, ignored=choice.no_known_labels),
        )
        reports.append(report(record, **changed))
        if vectors and request.ablate and not request.norm_weighted:
            wanted = asked(model, text, choice)
            whole = TextReader(model).read(wanted).record
            before.append(report(whole, vectors=vectors_of(model, wanted)))
    word = request.token
    words = [] if word is None else [find_word(each.record, word) for each in reports]
    ways = {(each.record.kind, each.record.causal, each.record.model.score) for each in reports}
    if len(ways) < len(reports):
        raise UsageError("a single word has no later one to hide: give a text of at least two")
    view = HeadsView(request.values, request.top, words, pairs, bool(request.sink))
    return replace(compare_heads(reports), view=view, before=tuple(before))


def heads_of_texts(
    opening: Opening, texts: Texts, request: HeadsRequest, *, vectors: bool = False
) -> HeadsReport:
    """Return where each head attends over each of several texts, side by side in their order.

    opening, vectors: see ``heads``. Raises as ``heads`` does, with the name of the text, and
    UsageError for options that compare runs over one text or name places in it.
    """
    if given := request.regions_given:
        raise UsageError(f"{given[0]} names regions of one text: leave out --texts")
    ((changes, _), *others) = requested_runs(request)
    if others:
        raise UsageError("--texts takes one run of each text: give one --kind and one --score")
    model, found = opening(changes), list[HeadsReport]()
    for index, text in enumerate(texts.texts):
        try:
            found.append(heads(lambda _: model, text, request, vectors=vectors))
        except UsageError as error:
            raise UsageError(f"{texts.place(index)}: {error}") from error
    asked = [each.view for each in found]
    view = asked[0]._replace(
        words=[word for each in asked for word in each.words],
        pairs=[pair for each in asked for pair in each.pairs],
    )
    before = tuple(record for each in found for record in each.before)
    return replace(compare_heads([each.first for each in found]), view=view, before=before)


def _captured(
    model: Model,
    text: str,
    choice: Choice,
    request: HeadsRequest,
    vectors: bool,
    advance: Advance,
) -> tuple[AttentionRecord, bool, dict[str, Any]]:
    """Return the attention record, whether heads were chosen, and arguments for ``heads_report``.

    choice: the heads and the kind of attention of this run.
    """
    if not (request.ablate or request.norm_weighted):
        found = vectors_of(model, asked(model, text, choice)) if vectors else None
        return *capture_text(model, text, choice, advance), {"vectors": found}
    info = model.info
    chosen = choose_heads(None, request.ablate, info.layers, info.heads, choice.index_base) or {}
    removed = {(layer, head) for layer, heads in chosen.items() for head in heads}
    wanted, reader = asked(model, text, choice), TextReader(model)
    record = reader.read(wanted, removed).record
    norms = reader.norms(wanted, removed) if request.norm_weighted else None
    found = vectors_of(model, wanted, removed) if vectors else None
    return record, wanted.heads is not None, {"ablated": removed, "norms": norms, "vectors": found}


def _pair(
    model: Model, record: AttentionRecord, text: str, choice: Choice, words: tuple[str, str]
) -> PairLinks:
    first, second = (find_word(record, word) for word in words)
    tokens = encoded(model, text, choice.truncate, choice.encode)
    return pair_links(model, record, (first, second), tokens)
