"""Tests whether a head's attention over one text earns it a label, or could be due to chance.

A label names a key for each query: an *event* is a query with that key. The head's weight on the
keys of the events is compared with two things. The effect: the same head's attention to the same
keys from its other queries (a column, such as a sink, is no pattern). The evidence: for each query
a key drawn at random among those that it sees. For random keys J, S = Σ A[i, J_i] has a mean,
variance and third cumulant that are the sums of those of the rows. Its upper tail is approximated
by the gamma distribution with these three moments (Pearson's type III) and converted to standard
normal deviates by the cube root of Wilson & Hilferty (1931, "The distribution of chi-square", PNAS
17:684). The skew matters: in a peaked head with random weights each row hits its key with
probability one over the number of keys seen, and eight hits of twelve are rare but not as rare as a
normal tail says. Compared with the exact tail of such rows the probability is right within a factor
of two at 0.01, and one to four times too large at 0.00001, where labels are decided
(tests/measures/test_evidence.py).

Because rows of one text are not independent draws, repetitions of an event count once: equal tokens
have nearly equal rows and columns. The first token, separators and other special tokens are neither
queries nor keys of events: if they gather attention, that is a sink.

Measured by ``tests/benchmarks/bench_labels.py``: of heads with random weights (``mha``, GPT-2,
BERT, Llama; initializer_range 0.02, 0.3 and 0.5) at most 0.5% reach the threshold of a label and
lie beyond three deviations, while 0.13% are expected, and none lies beyond four.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.registry import NEAR
from attnviz.measures.rows import TextFacts, Weights
from attnviz.records import Bools, Ints

FEWEST_TOKENS = 8
"""The fewest tokens of a text that can give a head a label."""

FEWEST_EVENTS = 8
"""The fewest different events that can give a head a label."""

_MOST_EVENTS = 256
"""The most events of a long text that are used, evenly spaced."""

_OFFSETS = {"previous": -1, "self": 0, "next": 1}
_FOLLOWING = {"duplicate": 0, "induction": 1}
"""The distance in tokens of the key from an earlier token that equals the query."""

_ROUNDING = 1e-8
"""The least variance: rounding may give 32-bit weights that should be equal this much."""

NAMES = len(_OFFSETS) + len(_FOLLOWING) + 1  # local
"""The number of labels that are tested for each head."""

Floats = NDArray[np.float64]


class Evidence(NamedTuple):
    """How strongly one text speaks for one label, for each head.

    An event is a query for which the label names a key. events: number of different events in the
    text.
    control: (head,) mean attention weight on the keys of the events from the other queries that see
        them. score: (head,) mean weight on the same keys from the queries of the events.
    deviations: (head,) how far the score lies above that of keys drawn at random, as the normal
        deviate of the same upper tail.
    """

    events: int
    control: Floats
    score: Floats
    deviations: Floats


def evidence(text: TextFacts, weights: Weights, seen: Bools) -> dict[str, Evidence]:
    """Return the evidence for each label with enough events in the text, by label.

    weights: attention weights (head, query, key) of self-attention, rows that sum to one.
    seen: (query, key), whether the query sees the key.
    Encoders are not tested for induction, because they see the token to predict.
    """
    causal = text.attention.causal
    if text.attention.kind == "cross" or len(text.queries) < FEWEST_TOKENS:
        return {}
    tested = {}
    for name, offset in _OFFSETS.items():
        if not (causal and offset > 0):
            tested[name] = _of_offset(text, weights, seen, offset)
    for name, behind in _FOLLOWING.items():
        if causal or not behind:
            tested[name] = _of_copies(text, weights, seen, behind)
    tested["local"] = _of_surroundings(text, weights, seen)
    return {name: label for name, label in tested.items() if label.events >= FEWEST_EVENTS}


def _of_offset(text: TextFacts, weights: Weights, seen: Bools, offset: int) -> Evidence:
    """Return the evidence for keys ``offset`` tokens away; an event is a pair of tokens."""
    ids, count = np.asarray(text.queries.ids), len(text.queries)
    plain = ~text.special
    sees = seen & plain & plain[:, None]
    queries = np.arange(count)
    keys = queries + offset
    there = (keys >= 0) & (keys < count) & (seen.sum(-1) > 1)
    there[there] &= sees[queries[there], keys[there]]
    pairs = np.stack([ids[keys[there]], ids[queries[there]]])
    _, first = np.unique(pairs, axis=1, return_index=True)
    chosen = _evenly_spaced(np.flatnonzero(there)[np.sort(first)])
    aims = keys[chosen]
    columns = np.einsum("hqk,qk->hk", weights, sees, dtype=np.float64)[:, aims]
    hits = weights[:, chosen, aims].astype(np.float64)
    others = np.maximum(sees.sum(0)[aims] - 1, 1)
    return _evidence_of(hits, (columns - hits) / others, weights[:, chosen], sees[chosen])


def _of_copies(text: TextFacts, weights: Weights, seen: Bools, behind: int) -> Evidence:
    """Return the evidence for keys ``behind`` tokens after earlier equal tokens.

    An event is a token of the vocabulary, at its last place in the text. For the evidence, a query
    gets the keys of a random event among those whose keys it sees.
    """
    ids, count = np.asarray(text.queries.ids), len(text.queries)
    plain = ~text.special
    kinds, which = np.unique(ids, return_inverse=True)
    members = np.zeros((count, len(kinds)))  # (key, kind): the keys that a kind of token leads to
    sources = np.arange(count - behind)
    sources = sources[plain[sources] & plain[sources + behind]]
    members[sources + behind, which[sources]] = 1
    last = np.zeros(len(kinds), np.int64)
    last[which] = np.arange(count)  # if indices are equal, NumPy keeps the last
    earlier = (np.arange(count) < last[:, None]) & seen[last]
    known = (earlier @ members > 0)[np.arange(len(kinds)), np.arange(len(kinds))] & plain[last]
    chosen = np.flatnonzero(known)
    chosen = _evenly_spaced(chosen[np.argsort(last[chosen])])
    return _of_sets(weights, last[chosen], earlier[chosen], members[:, chosen], 1)


def _of_surroundings(text: TextFacts, weights: Weights, seen: Bools) -> Evidence:
    """Return the evidence for the keys around a token, itself included.

    An event is a token of the vocabulary, at its last place in the text. For the evidence, a query
    gets what a random event sees around itself.
    """
    count, plain = len(text.queries), ~text.special
    sees = seen & plain & plain[:, None]
    places = np.arange(count)
    near = sees & (np.abs(places[:, None] - places) <= NEAR)
    last = np.zeros(count, bool)
    last[count - 1 - np.unique(np.asarray(text.queries.ids)[::-1], return_index=True)[1]] = True
    chosen = _evenly_spaced(np.flatnonzero(last & (sees.sum(-1) > near.sum(-1))))
    aims = near[chosen].T.astype(np.float64)
    return _of_sets(weights, chosen, sees[chosen], aims, aims.sum(0))


def _of_sets(
    weights: Weights, queries: Ints, before: Bools, aims: Floats, least: Floats | int
) -> Evidence:
    """Return the evidence for events that name a set of keys.

    queries: (event,). before: (event, key), the keys that the query of each may be given. aims:
    (key, event), ones for the keys of each. A random draw gives a query the set of any event of
    which it sees at least ``least`` keys: a number, or one for each event.
    """
    # One head at a time, (event, key): all at once would take the memory of another layer.
    mass = np.stack([np.where(before, head[queries], 0.0) @ aims for head in weights])
    sees = before @ aims >= least  # (event, event), mass (head, event, event)
    hits = np.einsum("hee->he", mass)
    others = np.maximum(sees.sum(0) - 1, 1)
    control = (np.where(sees, mass, 0).sum(1) - hits) / others
    return _evidence_of(hits, control, mass, sees)


def _evenly_spaced(places: Ints) -> Ints:
    if len(places) <= _MOST_EVENTS:
        return places
    return places[np.linspace(0, len(places) - 1, _MOST_EVENTS).astype(np.int64)]


def _evidence_of(hits: Floats, control: Floats, choices: Weights, sees: Bools) -> Evidence:
    """Return the evidence from the attention weights on the keys of events.

    hits, control: (head, event), the weights on the event's key from its query, and from other
        queries. choices: (head, event, key), the weights from which a random draw chooses; ``sees``
        (event, key) says which of them each event has.
    """
    heads, events = hits.shape
    if not events:
        nothing = np.zeros(heads)
        return Evidence(0, nothing, nothing, nothing)
    powers = [_powers(np.where(sees, head, 0.0)) for head in choices]  # (power, event) of each head
    mean, square, cube = np.stack(powers, axis=1) / sees.sum(-1)
    variance = np.maximum(square - mean**2, 0).sum(-1)
    third = (cube - 3 * mean * square + 2 * mean**3).sum(-1)
    above = hits.sum(-1) - mean.sum(-1)
    return Evidence(events, control.mean(-1), hits.mean(-1), upper_deviate(above, variance, third))


def _powers(values: Floats) -> Floats:
    squares = values**2
    return np.stack([values.sum(-1), squares.sum(-1), (squares * values).sum(-1)])


def upper_deviate(above: Floats, variance: Floats, third: Floats) -> Floats:
    """Return the normal deviate with the same upper tail as a gamma distribution.

    above: excess over the mean. variance, third: the second and the third cumulant.
    """
    deviation = np.sqrt(np.maximum(variance, _ROUNDING))
    skew = np.maximum(third / deviation**3, 0.05)  # at this skew nearly a normal distribution
    shape = 4 / skew**2
    ratio = np.maximum(1 + above / deviation / np.sqrt(shape), 0)
    return np.asarray((np.cbrt(ratio) - 1 + 1 / (9 * shape)) * 3 * np.sqrt(shape))
