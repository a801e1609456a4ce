"""The interactive page of ``attnviz rollout``: the whole flow, and the last layer's attention."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.labels import numbered, token_labels
from attnviz.draw.numbers import counted
from attnviz.draw.page.data import Page, PageCapture, PageHead
from attnviz.draw.page.running_text import token_spans
from attnviz.inspect.rollout.records import RolloutReport
from attnviz.records import Tokens

ROLLOUT, LAYER = "rollout", "last layer"

_COLUMNS = 1024
"""The most columns of a page's map over a long text."""


def rollout_page(report: RolloutReport) -> Page:
    """Return the page: two maps over one text, without the sink at first unless it is kept.

    Of a long text it has the tokens that were followed, and its columns are sums over keys.
    """
    read = report.text if report.target is None else report.target
    weights: list[NDArray[np.floating]] = [report.matrix, report.raw]
    queries = keys = report.tokens
    causal, texts, at_sink = report.causal, (read, read), report.at_sink
    if report.sampled is not None:
        starts = key_starts(report, _COLUMNS, at_sink)
        weights = [summed_keys(report, each, starts) for each in weights]
        queries, keys = _followed(report), _together(report.tokens, starts, read)
        causal, texts, at_sink = False, ("", read), at_sink[starts]
    capture = PageCapture(
        name="",
        kind=report.kind,
        causal=causal,
        heads=[
            PageHead(0, 0, ROLLOUT, facts=f"through {counted(report.layers, 'layer')}"),
            PageHead(1, 0, LAYER, facts="mean of its heads"),
        ],
        weights=weights,
        queries=queries,
        keys=keys,
        texts=texts,
        order=(0, 1),
        sink=np.flatnonzero(at_sink).tolist(),
        of_heads=False,
        verbs=("comes from", "goes into"),
        query=report.queries.index(report.last),
    )
    bare = report.at_sink.any() and not report.keep_sink and not report.at_sink.all()
    return Page(report.model.name, [capture], link=f"{ROLLOUT}&mode=sinkless" if bare else ROLLOUT)


# Long texts ----------------------------------------------------------------------------------


def key_starts(
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


def summed_keys(
    report: RolloutReport, matrix: NDArray[np.floating], starts: Sequence[int] | NDArray[np.intp]
) -> NDArray[np.floating]:
    """Return a matrix (query, key) with sums over groups of keys; NaN where all keys are hidden.

    starts: the first key of each group. NaN counts as nothing.
    """
    sums = np.add.reduceat(np.nan_to_num(matrix), starts, axis=1)
    hidden = report.causal & (np.asarray(starts) > np.array(report.queries)[:, None])
    return np.where(hidden, np.nan, sums)


def _followed(report: RolloutReport) -> Tokens:
    """Return the tokens that were followed, named by their places in the text."""
    names, places = token_labels(report.tokens), report.queries
    said = tuple(numbered(names[place], place) for place in places)
    return Tokens(tuple(places), said, (False,) * len(said))


def _together(tokens: Tokens, starts: NDArray[np.intp], text: str) -> Tokens:
    """Return a token for each group of keys, which stands for all of its text."""
    names, spans = token_labels(tokens), token_spans(tokens, text)
    said, special, whole = list[str](), list[bool](), list[tuple[int, int]]()
    for start, stop in pairwise([*starts.tolist(), len(tokens)]):
        last = f"–{stop - 1}" if stop - start > 1 else ""
        special.append(all(tokens.special[start:stop]))
        said.append(
            names[start] if special[-1] else f"{names[start]}{'…' * bool(last)} ({start}{last})"
        )
        inside = [span for span in spans[start:stop] if span[1]]
        whole.append((inside[0][0], inside[-1][1]) if inside else (0, 0))
    known = tuple(whole) if spans else ()
    return Tokens(tuple(starts.tolist()), tuple(said), tuple(special), spans=known)
