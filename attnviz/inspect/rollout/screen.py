"""The document of ``attnviz rollout``: the origin of the last token, and of every other one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw import document as doc
from attnviz.draw.labels import numbered, token_labels, token_spans
from attnviz.draw.numbers import counted, layer_names, listed
from attnviz.draw.page.data import Page, PageCapture, PageHead
from attnviz.draw.provenance import (
    ONE_PASS,
    advised,
    fits_two_lines,
    model_words,
    named,
    notes_group,
)
from attnviz.inspect.picture.on_picture import SCALE, on_picture
from attnviz.inspect.rollout.report import RolloutReport
from attnviz.measures.sinks import without_sink
from attnviz.measures.telling import is_content
from attnviz.measures.words import word_ranges, word_text, words_of_tokens
from attnviz.prompts.naming import quoted_word
from attnviz.records import UNKNOWN, Tokens
from attnviz.token_layout import TokenLayout

_NAMED = 3  # the most words that the finding names
_TIE = 0.9
"""A word with more of another word's share than this keeps it from standing out."""

_MORE, _TIMES, _LITTLE = 0.06, 2, 0.01
"""A word stands out with this much more than its share under uniform attention, and this many times
it (no word does in 96% of 378 shuffled texts, 98% of 200 in random models); the least told."""

_LONG = 40  # the most tokens of a first screen with a map; more have the text alone
_BESIDE = 3  # the columns between two maps, or between a map and the text
_LABEL = 14  # the columns of a label next to a map's row
_VALUE = 4  # the columns of a cell in which its weight is written
_FRAMED = 108  # columns within the frames from which on both maps and the text fit
_TEXTS = 12  # the lines of two coloured texts with their largest shares, and of two frames
_TALL = 30  # the least lines of a screen that lists the largest shares below each text
_POOLED = 64  # the most columns of a map over a long text
_PAGE = 1024  # the most columns of a page's map over a long text
_CHROME = 3  # the lines of a map's title and of its colour key
_ROLLOUT = "rollout"


class _Kept(NamedTuple):
    """The matrices of a rollout report as they are drawn, perhaps without the attention sink.

    rollout, layer: the rollout and the last layer's weights, (query, key), NaN if left out. places:
    the positions of the tokens that are shown.
    """

    rollout: NDArray[np.floating]
    layer: NDArray[np.floating]
    places: Sequence[int]


def document(report: RolloutReport) -> doc.Document:
    """Return the document: the rollout through all layers next to the last layer's attention."""
    if report.tokens.layout is not None:
        return _of_picture(report, report.tokens.layout)
    info, text, target = report.model, report.text, report.target
    kept = _kept(report)
    words = [] if report.kind == "self" else [f"{report.kind} attention"]
    words.append(counted(len(report.tokens), "token"))
    words += [] if report.sampled is None else [f"{len(report.sampled)} of them followed"]
    words += [f"seed {info.seed}"] if info.seed is not None else []
    about: list[doc.Part] = [
        doc.Facts([*model_words(info.of(report.kind)), *((word, False) for word in words)]),
        doc.Quote("text", text),
        *([] if target is None else [doc.Quote("target", target)]),
    ]
    maps = doc.Maps(_maps(report, kept), values=report.values)
    layers = counted(info.layers if report.kind == "self" else report.layers, "layer")
    if report.kind == "self" and report.layers < info.layers:
        layers = f"{report.layers} of {layers}"
    further = ["--sink: keep the sink", "--token WORD", "--values", "--explain"]
    return doc.Document(
        f"rollout of {info.name}",
        f"Attention rollout of {info.name}",
        [
            doc.Group(about),
            notes_group(info.notes, report.tokens),
            doc.Group([doc.Note(_left_out(report)), maps]),
            doc.Group([_texts(report, kept)]),
        ],
        doc.Explanation(
            "rollout",
            f"{ONE_PASS} ({len(report.tokens)} tokens).",
        ),
        doc.next_steps(further[report.keep_sink :], tone="faint"),
        heading=[*named(info), (layers, False), ("attention rollout", False)],
        quoted=text if target is None else target,
        finding=_finding(report),
        first=advised(partial(_first, report, kept), report.tokens),
        page=partial(_page, report),
    )


def _of_picture(report: RolloutReport, layout: TokenLayout) -> doc.Document:
    """Return the document of a picture: where the query's rollout lies, beside the last layer."""
    info, query, row = report.model, report.query, report.queries.index(report.query)
    asking = layout.names()[query]
    rows = {"rollout": report.matrix[row], f"mean of L{info.layers - 1}": report.raw[row]}
    alone = doc.Picture(layout.pictures[0], words=[("image", True)], alternative=report.text)
    maps = [on_picture(layout, weights, name, query=query) for name, weights in rows.items()]
    title = [(f"What {asking} draws on", True), ("marked: 60% of it", False)]
    drawn = doc.Pictures([alone, *maps], title, scale=SCALE)
    shares = {name: float(rows["rollout"][layout.of_kind(name)].sum()) for name in ("cls", "patch")}
    own = f" {shares['cls']:.0%} stays on CLS." if shares["cls"] else ""
    areas = [str(drawn.below[0][0]).removeprefix("60% on ") for drawn in maps]
    finding = (
        f"Through all layers, 60% of what {asking} draws from patches comes from {areas[0]} of "
        f"them; in the last layer alone, from {areas[1]}.{own}"
    )
    words = [*named(info), (counted(info.layers, "layer"), False), ("attention rollout", False)]
    about: list[doc.Part] = [
        doc.Facts([*model_words(info), *words[-2:]]),
        doc.Quote("image", report.text, lead=7),
    ]
    return doc.Document(
        f"rollout of {info.name}",
        f"Attention rollout of {info.name}",
        [doc.Group(about), notes_group(info.notes, report.tokens), doc.Group([drawn])],
        doc.Explanation("rollout", f"{ONE_PASS.replace('text', 'image')}."),
        doc.next_steps(["--token ROW,COLUMN", "--explain"], tone="faint"),
        heading=words,
        quoted=report.text,
        finding=finding,
        first=lambda columns, lines: [doc.Group([drawn._replace(lines=lines - 4)])],
    )


def _kept(report: RolloutReport) -> _Kept:
    """Return the matrices without the sink's columns, unless it is kept or is all that there is."""
    left = ~report.at_sink
    if report.keep_sink or not left.any():
        return _Kept(report.matrix, report.raw, range(len(report.tokens)))
    layer = without_sink(report.raw, report.at_sink)
    return _Kept(report.without_sink(), layer, np.flatnonzero(left).tolist())


# The answer in words -------------------------------------------------------------------------


def _finding(report: RolloutReport) -> str:
    """Return which other words have a share beyond uniform attention, and which has the most."""
    at_sink, tokens = report.at_sink, report.tokens
    own = words_of_tokens(tokens)[report.query]
    word = itself = quoted_word(tokens, own)
    if report.asked is None:
        later = {word_text(tokens, span) for span in word_ranges(tokens) if span[0] > own[-1]}
        word = f"the last {'known ' * (not later.isdisjoint(UNKNOWN))}word, {word}"
    if at_sink.all():
        return f"Every token of this text is a sink: nothing else is left to follow to {word}."
    query = report.queries.index(report.query)
    row = report.matrix[query]
    if np.isnan(row).all():
        return "The attention weights are not numbers (NaN): nothing can be followed."
    rest = np.nan_to_num(row if report.keep_sink else report.without_sink()[query])
    shares = {span: float(rest[list(span)].sum()) for span in word_ranges(tokens)}
    others = [span for span in shares if span != own and shares[span] >= 0.005]
    texts = {span: word_text(tokens, span) for span in others}
    no_word = {*UNKNOWN, *(tokens.texts[at] for at in np.flatnonzero(tokens.special))}
    content = [span for span, text in texts.items() if is_content(text) and text not in no_word]
    order = sorted(content or others, key=lambda span: -shares[span])
    if report.not_followed:
        names = listed([quoted_word(tokens, span) for span in order[:_NAMED]])
        return (
            f"Attention alone leads from {itself} to {names or 'its sink'}; these are no "
            f"shares of the input, as tokens also mix in {layer_names(report.not_followed)}."
        )
    noun, uniform = "content word" if content else "word", report.uniform()
    base = {span: float(uniform[list(span)].sum()) for span in order}
    told = {span: f"{shares[span]:.0%} (uniform: {base[span]:.0%})" for span in order}
    high = [span for span in order if shares[span] >= max(base[span] + _MORE, base[span] * _TIMES)]
    rival = max((shares[span] for span in others if span not in high), default=0.0)
    clear = [span for span in high if rival < _TIE * shares[span]][:_NAMED]
    claims = [
        f"{listed([quoted_word(tokens, span) for span in clear[:count]])} "
        f"stand{'s' * (count == 1)} out in the rollout from {word}: "
        f"{listed([told[span] for span in clear[:count]])}{end}."
        for count in range(len(clear), 0, -1)
        for end in (f"; {shares[own]:.0%} stays on {itself}", "")
    ] or [f"No other word has a share in the rollout from {word}."]
    if not clear and order:
        most, above = order[0], max(order, key=lambda span: shares[span] - base[span])
        largest = f"; {quoted_word(tokens, most)} has the largest share, {told[most]}."
        first = f"{quoted_word(tokens, above)}{' has the largest share and' * (above == most)}"
        claim = f"{first} exceeds uniform attention most, {told[above]}"
        ends = ["."] if above == most else [largest, "."]
        if shares[above] - base[above] < _LITTLE:
            claim, ends = "none clearly exceeds uniform attention", [largest]
        begin = f"Rollout from {word}{',' * (report.asked is None)} to {noun}s:"
        claims = [f"{begin} {claim}{end}" for end in ends]
    return next(filter(fits_two_lines, claims), claims[-1])


def _left_out(report: RolloutReport) -> str:
    """Return the note that says if the drawings have the attention sink, or if there is none."""
    if not report.at_sink.any():
        return "this text has no attention sink to leave out"
    if report.keep_sink or report.at_sink.all():
        return "the attention sink (first token, special tokens) is kept: raw rollout"
    return (
        "attention sink left out (first token, special tokens), rows rescaled to sum to one; "
        "--sink keeps it"
    )


# The pictures --------------------------------------------------------------------------------


def _maps(report: RolloutReport, kept: _Kept) -> list[doc.Map]:
    matrices = {
        f"rollout through {counted(report.layers, 'layer')}": kept.rollout,
        "last layer, mean of its heads": kept.layer,
    }
    if report.sampled is None:
        tokens, square = report.tokens.taken(kept.places), np.ix_(kept.places, kept.places)
        return [
            doc.Map(name, matrix[square], tokens, tokens, causal=report.causal)
            for name, matrix in matrices.items()
        ]
    starts = _key_starts(report, _POOLED)
    pooled = f"sums over {starts[1] if len(starts) > 1 else len(report.tokens):,} keys"
    queries, keys = report.tokens.taken(report.sampled), report.tokens.taken(starts.tolist())
    return [
        doc.Map(f"{name}, {pooled}", _summed(report, matrix, starts), queries, keys)
        for name, matrix in matrices.items()
    ]


def _texts(report: RolloutReport, kept: _Kept, lines: int = 0) -> doc.Maps:
    """Return the text coloured by one token's rollout and by its last layer, in ``lines`` lines."""
    tokens, query = report.tokens, report.queries.index(report.query)
    asking = tokens.taken([report.query])
    word = quoted_word(tokens, words_of_tokens(tokens)[report.query])
    origin = f"where attention leads from {word}" if report.not_followed else f"from {word}"
    names = dict.fromkeys(token_labels(tokens)[at] for at in np.flatnonzero(report.at_sink))
    held = float(report.matrix[query][report.at_sink].sum())
    sink = f"; sink {' and '.join(names)} ({held:.0%}) left out"
    sink *= bool(names) and not report.keep_sink
    rows = {
        f"rollout {origin}, relative to max{sink}": kept.rollout[query],
        f"last layer: attention from {word}, relative to max": kept.layer[query],
    }
    maps = [
        doc.Map(title, row[None], asking, tokens, full=float(np.nanmax(row, initial=0.0)) or 1.0)
        for title, row in rows.items()
    ]
    return doc.Maps(maps, texts=True, lines=lines, scale=None)


def _aside(report: RolloutReport, kept: _Kept, lines: int) -> list[doc.Part | doc.Group]:
    """Return the coloured texts, and below them the words with the largest shares that fit."""
    tokens, query = report.tokens, report.queries.index(report.query)
    drawn, layer = (np.nan_to_num(matrix[query]) for matrix in (kept.rollout, kept.layer))
    words = [
        (quoted_word(tokens, word), float(drawn[list(word)].sum()), float(layer[list(word)].sum()))
        for word in word_ranges(tokens)
        if word.start in kept.places and word.start <= report.query
    ]
    words.sort(key=lambda word: -word[1])
    top = max([rollout for _, rollout, _ in words], default=0.0) or 1.0
    table = doc.table(
        words[: max(lines - _TEXTS, 0)],
        doc.ColumnOf("word", lambda word: word[0], right=False),
        doc.ColumnOf("rollout", lambda word: f"{word[1]:.0%}"),
        doc.ColumnOf("last layer", lambda word: f"{word[2]:.0%}"),
        row=lambda word: {"bar": (word[1], top)},
    )
    return [_texts(report, kept), *([table] if table.rows else [])]


def _first(report: RolloutReport, kept: _Kept, columns: int, lines: int) -> Sequence[doc.Group]:
    """Return the first screen: the coloured text, next to as many readable maps as fit."""
    count = len(kept.places)
    if count > _LONG or count + _CHROME > lines or count + _LABEL > columns:
        return [doc.Group([_texts(report, kept, max((lines - 2) // 2 - 1, 1))])]
    values = report.values or columns >= 3 * (_VALUE * count + _LABEL)
    drawn = [doc.Maps([part], values=values, scale=None) for part in _maps(report, kept)]
    key = doc.Group([doc.Maps(())], yields=2)
    if columns >= _FRAMED:
        if columns >= 3 * (2 * count + _LABEL):  # two columns a cell
            return [doc.beside(*drawn, _aside(report, kept, lines)), key]
        maps: list[doc.Part | doc.Group] = [*drawn[: lines // (count + _CHROME)]]
        return [doc.beside(maps, _aside(report, kept, lines)), key]
    # Three columns if the cells have two characters, two if they have one.
    fits = {beside: (columns + _BESIDE) // beside - _BESIDE - _LABEL for beside in (3, 2)}
    beside = 3 if fits[3] >= 2 * count else 2 if fits[2] >= count else 1
    if beside == 1:
        return [doc.Group([_texts(report, kept)]), doc.Group(drawn[:1], yields=1), key]
    limit = (lines - 2 * _CHROME) // 2 if lines < _TALL else 0
    parts = [*drawn[: beside - 1], _texts(report, kept, limit)]
    return [doc.Group(parts, beside=doc.Beside(fits[beside] + _LABEL, _BESIDE)), key]


def _page(report: RolloutReport) -> Page:
    """Return the page: two maps over one text, without the sink at first unless it is kept."""
    read = report.text if report.target is None else report.target
    weights: list[NDArray[np.floating]] = [report.matrix, report.raw]
    queries = keys = report.tokens
    causal, texts, at_sink = report.causal, (read, read), report.at_sink
    if report.sampled is not None:
        starts = _key_starts(report, _PAGE, at_sink)
        weights = [_summed(report, matrix, starts) for matrix in weights]
        names, places = token_labels(report.tokens), report.queries
        followed = tuple(numbered(names[query], query) for query in places)
        queries = Tokens(tuple(places), followed, (False,) * len(followed))
        keys = _together(report.tokens, starts, read)
        causal, texts, at_sink = False, ("", read), at_sink[starts]
    capture = PageCapture(
        name="",
        kind=report.kind,
        causal=causal,
        heads=[
            PageHead(0, 0, _ROLLOUT, facts=f"through {counted(report.layers, 'layer')}"),
            PageHead(1, 0, "last layer", facts="mean of its heads"),
        ],
        weights=weights,
        queries=queries,
        keys=keys,
        texts=texts,
        order=(0, 1),
        sink=np.flatnonzero(at_sink).tolist(),
        of_heads=False,
        verbs=("comes from", "goes into"),
        query=report.queries.index(report.query),
    )
    bare = report.at_sink.any() and not report.keep_sink and not report.at_sink.all()
    return Page(report.model.name, [capture], link=_ROLLOUT + "&mode=sinkless" * bool(bare))


# Long texts ----------------------------------------------------------------------------------


def _key_starts(
    report: RolloutReport, columns: int, alone: NDArray[np.bool_] | None = None
) -> NDArray[np.intp]:
    """Return the first key of each group of neighbours: at most ``columns`` groups of one size.

    alone: a mask (token,) of keys that are a group of their own, besides these.
    """
    length = len(report.tokens)
    starts = np.zeros(length + 1, bool)
    starts[: length : -(-length // columns)] = True
    if alone is not None:
        starts[:-1] |= alone
        starts[1:] |= alone
    return np.flatnonzero(starts[:-1])


def _summed(
    report: RolloutReport, matrix: NDArray[np.floating], starts: NDArray[np.intp]
) -> NDArray[np.floating]:
    """Return sums over groups of keys, which begin at ``starts``; NaN where all keys are hidden."""
    sums = np.add.reduceat(np.nan_to_num(matrix), starts, axis=1)
    hidden = report.causal & (starts > np.array(report.queries)[:, None])
    return np.where(hidden, np.nan, sums)


def _together(tokens: Tokens, starts: NDArray[np.intp], text: str) -> Tokens:
    """Return a token for each group of keys, which stands for all of its text."""
    names, spans = token_labels(tokens), token_spans(tokens, text)
    texts, special, whole = list[str](), list[bool](), list[tuple[int, int]]()
    for start, stop in pairwise([*starts.tolist(), len(tokens)]):
        last = f"–{stop - 1}" if stop - start > 1 else ""
        special.append(all(tokens.special[start:stop]))
        name = names[start]
        texts.append(name if special[-1] else f"{name}{'…' * bool(last)} ({start}{last})")
        inside = [span for span in spans[start:stop] if span[1]]
        whole.append((inside[0][0], inside[-1][1]) if inside else (0, 0))
    known = tuple(whole) if spans else ()
    return Tokens(tuple(starts.tolist()), tuple(texts), tuple(special), spans=known)
