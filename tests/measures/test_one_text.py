"""Hand-made heads whose name is known."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from attnviz.measures.bootstrap import share_interval, student_interval, student_t
from attnviz.measures.labels import KnownLabel, KnownLabels
from attnviz.measures.one_text import FEWEST_EVENTS, head_scores, notable_heads
from attnviz.measures.one_text import evidence as evidence_of
from attnviz.measures.registry import OF_ONE_TEXT, label_named
from attnviz.measures.rows import Conditions, TextFacts
from attnviz.measures.sinks import uniform_weights, visible_keys
from attnviz.records import AttentionRecord, HeadLabel, HeadScores, LayerWeights, ModelInfo, Tokens

from .conftest import make_record

N = 7
LONG = (0, *range(4, 14), *range(4, 14))
"""The first token, ten others, and these once more."""
M = len(LONG)
PERFECT = ("previous", "first", "self", "duplicate", "induction", "spread")
IDS = (0, *(3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3), 0)


def looking_at(*keys, size=N):
    """A head whose query i puts all of its weight on keys[i]."""
    weights = np.zeros((len(keys), size))
    weights[np.arange(len(keys)), keys] = 1
    return weights


def perfect(name):
    """A head that does nothing but what its name says, over ``LONG``."""
    early = range(11)
    keys = {
        "previous": [0, *range(M - 1)],
        "first": [0] * M,
        "self": range(M),
        "duplicate": [*(0 for _ in early), *range(1, 11)],
        "induction": [*(0 for _ in early), *range(2, 12)],
    }
    return uniform_weights(M, M, True) if name == "spread" else looking_at(*keys[name], size=M)


@pytest.mark.parametrize("name", PERFECT)
def test_a_perfect_head_has_its_name(name):
    label = head_scores(make_record([perfect(name)], LONG))[0].label
    measure = label_named(name)
    assert (label.name, label.letter) == (name, measure.letter)
    assert (label.short, label.said) == (measure.short, measure.said)
    assert label.score == pytest.approx(1)
    assert label.source == ("none" if name in ("first", "spread") else "text")
    assert label.is_finding == (label.source == "text")


@pytest.mark.parametrize("name", PERFECT)
def test_random_weights_get_no_name_but_are_described(name):
    record = make_record([perfect(name)], LONG)
    drawn = replace(record, model=replace(record.model, weights="random", seed=0))
    label = head_scores(drawn)[0].label
    assert not label.is_finding
    assert label.name in ("first", "spread", "peaked")


def test_what_was_measured_before_names_a_head():
    heads = [perfect("previous"), perfect("previous"), perfect("first"), perfect("self")]
    labels = {
        (0, 0): KnownLabel("induction", 0.87),
        (0, 1): KnownLabel(None, math.nan),
        (0, 2): KnownLabel("object", 0.9),
    }
    found = head_scores(make_record(heads, LONG), KnownLabels("card", labels))
    first, second, third, fourth = (entry.label for entry in found)
    assert (first.name, first.source, first.score) == ("induction", "card", 0.87)
    assert (first.on_text, first.events) == (0, 10)  # it attends to none of these keys here
    assert (second.name, second.source) == ("peaked", "none")
    assert (third.name, third.score, third.events) == ("object", 0.9, 0)
    assert math.isnan(third.on_text)
    assert not fourth.is_finding  # a head that nobody measured


def test_a_head_measured_as_a_sink_is_one_here_only_where_it_rests():
    heads = [perfect("first"), perfect("previous")]
    labels = {(0, 0): KnownLabel("first", 0.9), (0, 1): KnownLabel("first", 0.9)}
    found = head_scores(make_record(heads, LONG), KnownLabels("patterns", labels))
    first, second = (entry.label for entry in found)
    assert (first.name, first.source, first.score) == ("first", "none", 1)  # of this text alone
    assert (second.name, second.source) == ("peaked", "none")


def test_a_next_token_head_needs_to_see_the_future():
    ahead = looking_at(*range(1, M), M - 1, size=M)
    scores = head_scores(make_record([ahead], LONG, causal=False))[0]
    assert (scores.label.name, scores.label.score) == ("next", 1)
    assert scores.label.base_rate == pytest.approx(1 / M)
    causal = head_scores(make_record([perfect("first")], LONG))[0]
    assert causal.scores["next"] is None


@pytest.mark.parametrize("size", [7, 8, 9])
def test_eight_events_name_a_head(size):
    """``size`` tokens before which the first token is special: as many that attend to another."""
    count = size + 2
    keys = [0, *range(count - 1)]
    entry = head_scores(make_record([looking_at(*keys, size=count)], range(count)))[0]
    assert (entry.label.name == "previous") == (size >= 8)


def test_what_is_no_pattern():
    ids = [0, *[4, 5] * 10]
    head = looking_at(*[0, *range(len(ids) - 1)], size=len(ids))
    assert not head_scores(make_record([head], ids))[0].label.is_finding
    # One cell of a column of .9 stands for induction; others attend to the same key as much.
    weights = 0.1 * perfect("spread")
    weights[2:, 2] += 0.9
    entry = head_scores(make_record([weights], LONG))[0]
    assert not entry.label.is_finding
    scattered = looking_at(0, 0, 1, 1, 2, 1, 2)
    scattered[3:] = looking_at(1, 2, 1, 2)
    trait = head_scores(make_record([scattered], range(N)))[0].label
    assert trait.name == "peaked"
    assert trait.score == 1


@pytest.mark.parametrize(("share", "name"), [(0.15, "spread"), (0.35, "previous")])
def test_a_name_needs_a_fifth_of_what_it_could_gain(share, name):
    mixed = share * perfect("previous") + (1 - share) * perfect("spread")
    assert head_scores(make_record([mixed], range(M)))[0].label.name == name


def test_one_token_that_comes_again_does_not_name_a_head_that_rests():
    ids = (0, 4, 5, 6, 4, 7, 8)
    weights = looking_at(*[0] * N)
    weights[4] = (looking_at(0, size=N)[0] + looking_at(2, size=N)[0]) / 2
    entry = head_scores(make_record([weights], ids))[0]
    assert (entry.label.name, entry.scores["induction"]) == ("first", 0.5)


def test_the_base_rate_is_uniform_attention():
    label = head_scores(make_record([perfect("previous")], LONG))[0].label
    assert label.base_rate == pytest.approx(np.mean([1 / (i + 1) for i in range(1, M)]))
    label = head_scores(make_record([perfect("duplicate")], LONG))[0].label
    assert label.base_rate == pytest.approx(np.mean([1 / (i + 1) for i in range(11, M)]))


def test_every_measure_has_its_place_and_order():
    record = make_record([perfect(name) for name in PERFECT], LONG)
    found = head_scores(record)
    assert [(entry.layer, entry.head) for entry in found] == [(0, h) for h in range(len(PERFECT))]
    for entry in found:
        assert tuple(entry.scores) == OF_ONE_TEXT
        assert all(value is None or type(value) is float for value in entry.scores.values())


def test_what_cannot_be_scored_is_left_out():
    scores = head_scores(make_record([looking_at(*[0] * N)], range(N)))[0].scores
    assert scores["duplicate"] is None
    assert scores["induction"] is None
    # Queries and keys are different texts: position i of one says nothing of the other.
    record = make_record([looking_at(0, 1, 2, 3, size=6)], causal=False, kind="cross")
    scores = head_scores(record)[0].scores
    known = {name for name, value in scores.items() if value is not None}
    assert known == {"first", "entropy", "normalised_entropy", "confidence"}
    for causal in (True, False):
        entry = head_scores(make_record([np.ones((1, 1))], causal=causal))[0]
        assert entry.label.name in ("spread", "peaked")
        assert entry.scores["previous"] is None
    entry = head_scores(make_record([np.full((N, N), np.nan)]))[0]
    assert set(entry.scores.values()) == {None}


def _entry(head, name, score, base=0.2):
    return HeadScores(0, head, {}, HeadLabel(name, label_named(name).letter, score, base))


def test_notable_heads_show_each_trait_before_a_second_of_one():
    heads = [
        _entry(0, "first", 0.99),
        _entry(1, "first", 0.98),
        _entry(2, "previous", 0.6),
        _entry(3, "self", 0.7),
        _entry(4, "spread", 0.9, 1.0),
        _entry(5, "peaked", 0.8),
    ]
    chosen = [head for _, head in notable_heads(heads, 6)]
    assert chosen == [2, 3, 5, 0, 1, 4]  # sinks after what is peaked, the most even last
    assert notable_heads(heads, 2) == ((0, 2), (0, 3))


def test_notable_heads_weigh_the_gain_and_are_no_more_than_there_are():
    heads = [_entry(0, "next", 0.75, 0.7), _entry(1, "previous", 0.7, 0.1)]
    assert notable_heads(heads, 1) == ((0, 1),)
    assert notable_heads([_entry(0, "first", 0.5)], 3) == ((0, 0),)
    assert notable_heads([], 3) == ()


SENTENCES = (
    "the cat sat on the mat because it was tired",
    "When Mary and John went to the shop , John gave a drink to Mary",
    "the trophy does not fit in the suitcase because the suitcase is too small",
    "the cat sat on the mat and the dog sat on the rug and the bird sat on the branch",
    "one two three four five six seven eight nine ten one two three four five six seven eight nine",
)


def facts(ids, causal):
    """Id 0 is a special token."""
    tokens = Tokens(tuple(ids), ("a",) * len(ids), tuple(number == 0 for number in ids))
    return TextFacts(tokens, tokens, Conditions("self", causal))


def evidence(text, weights):
    """Of attention that is causal, or sees everything."""
    return evidence_of(text, weights, visible_keys(*weights.shape[1:], text.attention.causal))


def random_rows(count, causal, seed):
    weights = np.random.default_rng(seed).dirichlet(np.full(count, 0.2), count)
    weights = np.tril(weights) + 1e-9 * np.tri(count) if causal else weights
    return weights / weights.sum(-1, keepdims=True)


def known_mean(values):
    known = [value for value in values if value is not None]
    return sum(known) / max(len(known), 1)


def by_loops(name, ids, weights, causal):
    """Number of events, mean score, mean control: what the definitions say, cell by cell."""
    count = len(ids)

    def sees(query, key):
        return bool(ids[query] and ids[key]) and (not causal or key <= query)

    if name in ("duplicate", "induction"):
        behind = int(name == "induction")

        def mass(query, token):
            keys = [
                key
                for key in range(behind, query)
                if ids[key - behind] == token and ids[key] and ids[key - behind]
            ]
            return sum(weights[query, key] for key in keys) if keys else None

        last = {token: place for place, token in enumerate(ids) if token}
        events = [token for token, place in last.items() if mass(place, token) is not None]
        scores = [mass(last[token], token) for token in events]
        controls = []
        for token in events:
            others = [mass(last[other], token) for other in events if other != token]
            controls.append(known_mean(others))
        return len(events), np.mean(scores), np.mean(controls)
    if name == "local":

        def around(query, token):
            """The weight on what ``token`` sees around itself; None if ``query`` sees less."""
            keys = [key for key in range(count) if abs(key - token) <= 2 and sees(token, key)]
            if all(sees(query, key) for key in keys):
                return sum(weights[query, key] for key in keys)
            return None

        last = {token: place for place, token in enumerate(ids) if token}
        far = [key for key in range(count) if ids[key]]
        events = [at for at in last.values() if any(sees(at, k) for k in far if abs(at - k) > 2)]
        scores = [around(place, place) for place in events]
        controls = []
        for place in events:
            others = [around(other, place) for other in events if other != place]
            controls.append(known_mean(others))
        return len(events), np.mean(scores), np.mean(controls)
    offset = {"previous": -1, "self": 0, "next": 1}[name]
    seen, scores, controls = set(), [], []
    for query in range(int(causal), count):
        key = query + offset
        if not 0 <= key < count or not (ids[query] and ids[key]):
            continue
        if (ids[key], ids[query]) in seen:
            continue
        seen.add((ids[key], ids[query]))
        scores.append(weights[query, key])
        others = [weights[each, key] for each in range(count) if each != query and sees(each, key)]
        controls.append(np.mean(others) if others else 0.0)
    return len(scores), np.mean(scores), np.mean(controls)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["previous", "self", "next", "duplicate", "induction", "local"])
def test_events_scores_and_controls_are_those_of_the_definitions(name, causal):
    maps = np.stack([random_rows(len(IDS), causal, seed) for seed in range(3)])
    found = evidence(facts(IDS, causal), maps)
    assert (name in found) == (name != ("next" if causal else "induction"))
    if name in found:
        one = found[name]
        for head in range(3):
            told = (one.events, one.score[head], one.control[head])
            assert told == pytest.approx(by_loops(name, IDS, maps[head], causal))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("count", [12, 20, 60])
def test_the_tail_of_peaked_rows_is_that_of_independent_draws(causal, count):
    """A row with all weight on one key hits by chance with one over the keys that it sees."""
    ids = range(1, count + 1)
    queries = range(1, count)
    terms = np.ones(1)  # by how many hits: what independent events give
    for query in queries:
        chance = 1 / (query + 1 if causal else count)
        terms = np.convolve(terms, [1 - chance, chance])
    for hits in range(1, count):
        weights = np.zeros((1, count, count))
        weights[0, :, 0] = 1
        for query in range(count - 1, count - 1 - hits, -1):  # 0 is the key before the first query
            weights[0, query] = np.eye(count)[query - 1]
        true = terms[hits + (hits < count - 1) :].sum()  # the row of query 1 hits key 0
        deviation = evidence(facts(ids, causal), weights)["previous"].deviations[0]
        if 1e-7 < true < 0.02:
            ratio = NormalDist().cdf(-deviation) / true
            assert 0.5 < ratio < 15
            assert ratio > 0.8 or true > 1e-4  # where names are decided it is rather too careful


def named(record):
    return sum(entry.label.is_finding for entry in head_scores(record))


def as_checkpoint(ids, maps, causal):
    """Weights of which nobody says that they were drawn."""
    heads = len(maps)
    info = ModelInfo("made", None, "None", "float32", 1, heads, heads, 8, weights="checkpoint")
    tokens = facts(ids, causal).queries
    layer = LayerWeights(0, tuple(range(heads)), maps)
    return AttentionRecord(info, "self", causal, tokens, tokens, (layer,))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("peak", [3.0, 30.0])
def test_peaked_random_attention_gets_no_names(causal, peak):
    """Random queries and keys of tokens, whose products are made as large as you please."""
    rng = np.random.default_rng(int(peak))
    found = heads = 0
    for sentence in SENTENCES:
        words = sentence.split()
        ids = [words.index(word) + 1 for word in words]
        count = len(ids)
        for _ in range(10):
            width = 16
            content = (
                rng.standard_normal((40, width))[ids] + rng.standard_normal((count, width)) / 2
            )
            queries, keys = (rng.standard_normal((12, width, 8)) for _ in range(2))
            scores = (content @ queries) @ (content @ keys).transpose(0, 2, 1)
            scores *= peak / scores.std()
            scores[:, np.triu_indices(count, 1)[0], np.triu_indices(count, 1)[1]] -= 1e9 * causal
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            found += named(as_checkpoint(ids, weights, causal))
            heads += 12
    assert found <= heads / 100


def test_what_is_no_evidence():
    for count in (1, 2, 7):
        assert evidence(facts(range(1, count + 1), True), np.eye(count)[None]) == {}
    found = evidence(facts(range(1, 10), True), np.eye(9)[None])
    assert found["self"].events == FEWEST_EVENTS
    found = evidence(facts(range(1, 401), True), np.eye(400)[None])
    assert (found["self"].events, found["self"].score[0]) == (256, 1)
    assert found["self"].control[0] == 0
    assert found["self"].deviations[0] > 20
    ids = [0, *range(1, 11), 0]
    assert evidence(facts(ids, False), np.eye(12)[None])["previous"].events == 9
    uniform = np.tri(30) / np.tri(30).sum(-1, keepdims=True)
    for one in evidence(facts(range(1, 31), True), uniform[None].astype(np.float32)).values():
        assert abs(one.deviations[0]) < 1.5


def test_a_random_model_is_never_asked():
    record = as_checkpoint(range(1, 21), np.eye(20)[None].repeat(2, 0), True)
    assert named(record) == 2
    assert named(replace(record, model=replace(record.model, weights="random", seed=1))) == 0


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (9, 2.262), (10, 2.228), (11, 2.201), (29, 2.045), (120, 1.980)],
)
def test_quantiles_are_those_of_a_printed_table(freedom, quantile):
    assert student_t(freedom) == pytest.approx(quantile, abs=1.5e-3)


def test_intervals_of_a_mean_and_of_a_share():
    # Of 1, 2 and 3 tenths: ± 4.303 · .1 / √3.
    low, high = student_interval([0.1, 0.2, 0.3]) or (math.nan, math.nan)
    assert (low, high) == pytest.approx((0.2 - 0.24843, 0.2 + 0.24843), abs=1e-4)
    assert student_interval([0.5]) is None
    assert student_interval([1.0, 1.0]) == (1.0, 1.0)
    # Agresti & Coull 1998: of 10 of 10 Wilson's interval is [.722, 1]; of 9 of 10 [.596, .982].
    assert share_interval(1.0, 10) == pytest.approx((0.722, 1.0), abs=1e-3)
    assert share_interval(0.9, 10) == pytest.approx((0.596, 0.982), abs=1e-3)
    assert share_interval(0.5, 0) is None
