"""Scores in blocks of rows equal those of the whole matrix, and both equal their definitions."""

import math

import numpy as np
import pytest
import torch
import transformers

from attnviz.engine import observe_torch
from attnviz.errors import UsageError
from attnviz.inspect.patterns.measure import SHUFFLES, LayerSums, in_view
from attnviz.inspect.patterns.probes import COPIES, OWN, PREFIX, measures_of
from attnviz.inspect.patterns.score import score_patterns
from attnviz.measures.registry import DESCRIBED, OF_ONE_TEXT, of_family
from attnviz.measures.rows import Conditions, TextFacts, is_punctuation
from attnviz.models.prepare import prepared
from attnviz.records import Input, Tokens

from ...engine.sizes import set_sizes
from ...made_records import measured
from ...small_models import llama_fields

N = 53
RAW = Conditions("self", True, ranked=True)
HEADS = 3
PLACES = [(0, head) for head in range(HEADS)]


def text(n=N, words=61):
    ids = (0, *np.random.default_rng(2).integers(1, words, n - 2).tolist(), 0)
    texts = tuple("." if number % 5 == 1 else f" w{number}" for number in ids)
    return Tokens(ids, texts, tuple(number == 0 for number in ids))


def matrices(causal, n=N, keys=None):
    weights = np.random.default_rng(7).dirichlet(np.full(keys or n, 0.2), size=(HEADS, n))
    if causal:
        weights = np.tril(weights + 1e-4)
        weights /= weights.sum(-1, keepdims=True)
    return weights


def scores(weights, rows, causal, view="raw", kind="self", norms=None):
    tokens = text()
    keys = text(weights.shape[-1], 11) if kind == "cross" else tokens
    attention = Conditions(kind, causal, view, True)
    sums = LayerSums(TextFacts(tokens, keys, attention, SHUFFLES, passing=True))
    for start in range(0, weights.shape[1], rows):
        block = weights[:, start : start + rows]
        if causal:  # what blocks of a causal model may leave out
            block = block[..., : start + block.shape[1]]
        sums.add(in_view(view, block, norms), start)
    found = sums.scores(PLACES)
    return found.scores, {
        name: found.base[name] for name in of_family("identity") if name in found.base
    }


@pytest.mark.parametrize("rows", [1, 7, 52, N])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("view", ["raw", "without-first", "norm-weighted"])
def test_blocks_equal_the_whole(rows, causal, view):
    norms = np.random.default_rng(1).random((HEADS, N))
    whole, shuffled = scores(matrices(causal), N, causal, view, norms=norms)
    blocks, in_blocks = scores(matrices(causal), rows, causal, view, norms=norms)
    assert whole.keys() == blocks.keys()
    for name, values in whole.items():
        assert blocks[name] == pytest.approx(values, abs=1e-12), name
    for name, values in shuffled.items():
        assert in_blocks[name] == pytest.approx(values, abs=1e-12), name


@pytest.mark.parametrize("rows", [5, N])
def test_cross_attention_in_blocks(rows):
    weights = matrices(False, keys=31)
    whole, _ = scores(weights, N, False, kind="cross")
    blocks, _ = scores(weights, rows, False, kind="cross")
    for name, values in whole.items():
        assert blocks[name] == pytest.approx(values, abs=1e-12), name
    centres = (weights * np.arange(31)).sum(-1)
    expected = [np.corrcoef(np.arange(N), row)[0, 1] for row in centres]
    assert whole["monotone"] == pytest.approx(expected)
    for head in range(HEADS):
        near = [
            math.fsum(
                weights[head, i, j] * math.exp(-((i / N - j / 31) ** 2) / (2 * 0.2**2))
                for j in range(31)
            )
            for i in range(N)
        ]
        assert whole["alignment"][head] == pytest.approx(np.mean(near))


@pytest.mark.parametrize("causal", [True, False])
def test_the_sums_are_the_measures(causal):
    weights, tokens = matrices(causal), text()
    found, _ = scores(weights, N, causal)
    expected = {
        name: measured(name, weights, tokens.ids, tokens.special, causal=causal)
        for name in DESCRIBED + OF_ONE_TEXT
        if name in found
    }
    assert ("next" in found, "signed_distance" in found) == (not causal, not causal)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=1e-12), name


def test_marks_and_special_tokens_by_a_loop():
    weights, tokens = matrices(True), text()
    found, _ = scores(weights, 10, True)
    marked = [
        word == "." or special for word, special in zip(tokens.texts, tokens.special, strict=True)
    ]
    for head, matrix in enumerate(weights):
        mass = [sum(w for w, mark in zip(row, marked, strict=True) if mark) for row in matrix]
        assert found["delimiter"][head] == pytest.approx(np.mean(mass))
        assert found["separator"][head] == pytest.approx(matrix[-1, -1])  # only there it is seen


def test_rare_tokens_by_a_loop():
    weights, wide = matrices(True), text(N, 997)
    ids = np.where(wide.special, -1, wide.ids)
    rare = ids >= np.sort(ids)[-int(0.1 * (ids >= 0).sum())]
    facts = TextFacts(wide, wide, RAW)
    assert (facts.rare == rare).all()
    sums = LayerSums(facts)
    sums.add(weights, 0)
    found = sums.scores(PLACES)
    for head, matrix in enumerate(weights):
        gained = [
            matrix[i, rare].sum() - rare[: i + 1].sum() / (i + 1)
            for i in range(N)
            if rare[: i + 1].any()
        ]
        assert found.scores["rare"][head] == pytest.approx(np.mean(gained))
    assert found.base["rare"] == pytest.approx(0, abs=1e-12)


def test_without_the_first_token_by_a_loop():
    weights, tokens = matrices(True), text()
    found, _ = scores(weights, 11, True, "without-first")
    rest = weights[:, :, 1:] / np.maximum(weights[:, :, 1:].sum(-1, keepdims=True), 1e-300)
    previous = [np.mean([matrix[i, i - 2] for i in range(2, N)]) for matrix in rest]
    own = [np.mean([matrix[i, i - 1] for i in range(2, N)]) for matrix in rest]
    assert found["previous"] == pytest.approx(previous)
    assert found["self"] == pytest.approx(own)
    assert "first" not in found
    assert len(tokens) == N


def test_shuffled_tokens_are_the_same_tokens_in_another_order():
    facts = TextFacts(text(), text(), RAW, SHUFFLES)
    assert facts.orders.shape == (1 + SHUFFLES, N)
    for order in facts.orders:
        assert sorted(order) == sorted(text().ids)
        assert order[0] == order[-1] == 0  # special tokens stay
    weights = matrices(True)
    _, shuffled = scores(weights, N, True)
    by_hand = np.mean(
        [measured("duplicate", weights, order.tolist()) for order in facts.orders[1:]], axis=0
    )
    # A mean over all queries of all orders, which here have about as many that count each.
    assert shuffled["duplicate"] == pytest.approx(by_hand, rel=0.05)


def test_only_the_measures_that_a_probe_needs_are_measured():
    found = []
    for names in (None, measures_of(PREFIX)):
        sums = LayerSums(TextFacts(text(), text(), RAW, SHUFFLES), names=names)
        sums.add(matrices(True), 0)
        found.append(sums.scores(PLACES))
    whole, some = found
    assert set(some.scores) == {"induction", "previous", "first", "self", "local"}
    for name, values in some.scores.items():
        assert (values == whole.scores[name]).all(), name
    for name, values in some.base.items():
        assert (values == whole.base[name]).all(), name
    assert "entropy" in measures_of(OWN)
    assert "entropy" not in measures_of(COPIES)


def test_single_precision_is_summed_in_double():
    narrow, _ = scores(matrices(True).astype(np.float32), 9, True)
    wide, _ = scores(matrices(True), N, True)
    for name, values in wide.items():
        assert narrow[name] == pytest.approx(values, abs=1e-5), name


@pytest.mark.parametrize(
    ("mark", "is_mark"),
    [(".", True), (" ,", True), ("。", True), ('."', True), ("a.", False), (" ", False)],
)
def test_what_counts_as_a_delimiter(mark, is_mark):
    assert is_punctuation(mark) == is_mark


def test_norms_weigh_what_is_moved():
    weights = np.array([[[1.0, 0, 0], [0.5, 0.5, 0], [0.5, 0.25, 0.25]]])
    norms = np.array([[0.0, 1.0, 3.0]])
    shown = in_view("norm-weighted", weights, norms)
    assert shown[0].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0.25, 0.75]]
    assert weights[0, 0, 0] == 1  # the weights themselves stay as they are
    with pytest.raises(ValueError, match="norms"):
        in_view("norm-weighted", weights, None)


def words(count):
    return " ".join(f"w{n}" for n in np.random.default_rng(1).integers(0, 97, count))


def llama(window=None):
    torch.manual_seed(3)
    fields = llama_fields(12, 17, 4_096, (6, 2, 4))
    fields |= {"vocab_size": 101, "initializer_range": 1.0}
    if window is None:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    else:
        config = transformers.MistralConfig(**fields, sliding_window=window)
        model = transformers.MistralForCausalLM(config)
    return prepared("made", model, None, torch.device("cpu"))


@pytest.mark.parametrize(
    ("view", "reduce"),
    [("raw", "blocks"), ("raw", "fused"), ("without-first", "blocks"), ("norm-weighted", "blocks")],
)
@pytest.mark.parametrize("window", [None, 23])
def test_every_way_gives_the_same_scores(view, reduce, window):
    model = llama(window)
    text = Input(model.encode(words(211)))
    whole = score_patterns(model, text, view=view, reduce="full")
    other = score_patterns(model, text, view=view, reduce=reduce)
    known = observe_torch._reducible if reduce == "fused" else observe_torch._plain
    assert set(known[model.model].values()) == {True}
    for one, same in zip(whole.heads, other.heads, strict=True):
        assert one.label == same.label
        for values in ("scores", "base_rate", "statistics"):
            for name, score in getattr(one, values).items():
                expected = score if score is None else pytest.approx(score, abs=1e-5, rel=1e-5)
                assert getattr(same, values)[name] == expected, name


def test_what_cannot_be_summed_is_refused():
    model = llama()
    text = Input(model.encode(words(50)))
    with pytest.raises(UsageError, match="as they are"):
        score_patterns(model, text, view="norm-weighted", reduce="fused")


def test_a_gpu_reads_sums_of_short_texts_too_and_of_some_heads_at_a_time(monkeypatch):
    torch.manual_seed(3)
    fields = llama_fields(12, 17, 512, (6, 2, 4)) | {"vocab_size": 101, "initializer_range": 1.0}
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    model = prepared("made", made, None, torch.device("cpu"))
    drawn = np.random.default_rng(1).integers(0, 97, (2, 90))
    rows = drawn[0, :40], drawn[1]
    texts = [Input(model.encode(" ".join(f"w{word}" for word in row))) for row in rows]
    expected = [score_patterns(model, text) for text in texts]
    read, plain = [], LayerSums.add_sums

    def add_sums(sums, *given):
        read.append(len(sums._text.queries))
        return plain(sums, *given)

    monkeypatch.setattr(LayerSums, "add_sums", add_sums)
    set_sizes(monkeypatch, sums_from=64, batch_tokens=512, sum_bytes=2 * 4 * 90 * 60)
    found = [score_patterns(model, text) for text in texts]
    assert set(read) == {90}
    for before, after in zip(expected, found, strict=True):
        for one, same in zip(before.heads, after.heads, strict=True):
            for name, score in one.scores.items():
                near = None if score is None else pytest.approx(score, abs=1e-5)
                assert same.scores[name] == near
