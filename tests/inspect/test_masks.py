"""Base rates and labels under every kind of mask: they count the keys that a query really sees.

A head whose queries are empty looks alike at all that its query sees: every score is then its own
base rate, and nothing names the head. The rates themselves are compared with loops over the masks
that ``masked_models`` writes by hand.
"""

import numpy as np
import pytest

from attnviz.engine.capture import capture
from attnviz.inspect.generate.generate import WritingJob
from attnviz.inspect.generate.report import NAMED
from attnviz.inspect.generate.request import GenerateRequest
from attnviz.inspect.patterns.score import score_patterns
from attnviz.measures.one_text import head_scores
from attnviz.measures.rows import Conditions, TextFacts, base_rates
from attnviz.models.resolve import load
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.work import LoadOptions, Work
from attnviz.texts import natural_texts

from ..masked_models import MASKS, masked_model, without_queries
from ..masked_models import opened as ready
from ..quick import one_in
from ..small_models import word_tokenizer

WORDS = [
    *("<pad>", "<s>", "</s>", "<unk>", ".", ",", "the", "cat", "dog", "sat", "on", "mat", "rug"),
    *("because", "it", "was", "tired", "and", "bird", "branch", "old", "new"),
]
TEXT = "the cat sat on the mat , and the dog sat on the rug , and the bird sat on the branch ."
WRITE = ("causal", "sliding", "sliding, every other layer", "sliding, own attention", "chunked")
IN_NUMPY = ("causal", "sliding")


@pytest.fixture(autouse=True)
def unknown_words_count(monkeypatch):
    """Labels from the built-in texts too, of which these tokenizers know few words."""
    monkeypatch.setattr("attnviz.records.UNKNOWN", ())


def opened(name, *, spread=0.3, seed=0, **sizes):
    return ready(name, WORDS, masked_model(name, len(WORDS), spread=spread, seed=seed, **sizes))


def even(name):
    """Return a model whose heads look alike at all that their queries see."""
    return ready(name, WORDS, without_queries(masked_model(name, len(WORDS), spread=0.3, seed=0)))


@pytest.fixture
def saved(tmp_path):
    """Save a model that looks at everything alike, and its tokenizer."""

    def save(name):
        without_queries(masked_model(name, len(WORDS), spread=0.3, seed=0)).save_pretrained(
            tmp_path
        )
        word_tokenizer(WORDS).save_pretrained(tmp_path)
        return tmp_path

    return save


@pytest.mark.parametrize("name", MASKS)
def test_the_mask_of_each_layer_is_seen(name):
    model = opened(name)
    text = model.encode(TEXT)
    record = capture(model, text, kind=model.kinds[0])
    for layer in record.layers:
        expected = MASKS[name][layer.layer % 2](len(text))
        np.testing.assert_array_equal(record.seen(layer), expected)
        assert not layer.weights[:, ~expected].any()


def mean(rates):
    return sum(rates) / len(rates) if rates else None


@pytest.mark.parametrize("name", MASKS)
def test_base_rates_by_loops(name):
    text = opened(name).encode(TEXT)
    ids, special = text.ids, text.special
    count = len(ids)
    for mask in MASKS[name]:
        seen = mask(count)
        rows = [np.flatnonzero(row) for row in seen]
        causal = not np.triu(seen, 1).any()
        facts = TextFacts(text, text, Conditions("self", causal))

        def at(offset, fewest=1, rows=rows):
            found = [
                1 / len(keys)
                for query, keys in enumerate(rows)
                if query + offset in keys and len(keys) >= fewest
            ]
            return mean(found)

        def on(wanted, rows=rows):
            shares = [
                np.mean([wanted(query, key) for key in keys]) for query, keys in enumerate(rows)
            ]
            return mean([float(share) for share in shares if share])

        expected = {
            "previous": at(-1),
            "self": at(0, fewest=2),
            "first": mean([float(0 in keys) / len(keys) for keys in rows[1:]]),
            "duplicate": on(lambda query, key: key < query and ids[key] == ids[query]),
            "induction": on(lambda query, key: 0 < key < query and ids[key - 1] == ids[query]),
            "separator": on(lambda query, key: special[key] and key > 0),
        }
        if not causal:
            expected["next"] = at(1)
        if not special[0]:
            del expected["separator"]
        found = base_rates(facts, tuple(expected), seen)
        told = {key: found.scores[key] for key in expected}
        assert told == pytest.approx(expected), name


@pytest.mark.parametrize("name", one_in(2, MASKS))
def test_heads_that_look_alike_at_all_they_see_have_no_name(name):
    model = even(name)
    record = capture(model, model.encode(TEXT), kind=model.kinds[0])
    for entry in head_scores(record):
        assert not entry.label.is_finding
        assert entry.label.score == pytest.approx(entry.label.base_rate, abs=1e-6)
    report = score_patterns(model, seeds=range(1))
    for head in report.heads:
        assert head.label is None
        for measure in ("previous", "self", "first", "delimiter", "next"):
            if head.scores.get(measure) is not None:
                assert head.scores[measure] == pytest.approx(head.base_rate[measure], abs=1e-5)


def test_what_few_queries_see_names_no_head():
    """A window shows separators to the last queries alone: the others' attention is unknown."""
    report = score_patterns(opened("sliding both ways", seed=8), seeds=range(1))
    strong = {(1, 1), (1, 2)}
    found = {(head.layer, head.head): head for head in report.heads}
    assert all(
        found[place].strength["separator"] > report.thresholds["separator"] for place in strong
    )
    assert [found[place].label for place in strong] == [None, None]


@pytest.mark.parametrize(("seed", "place", "label"), [(8, (0, 0), None), (11, (0, 0), "delimiter")])
def test_delimiters_are_several_tokens(seed, place, label):
    """A head that attends to one of them says nothing about punctuation."""
    model = opened("both ways", seed=seed)
    report = score_patterns(model, seeds=range(1))
    (head,) = (each for each in report.heads if (each.layer, each.head) == place)
    assert head.strength["delimiter"] > report.thresholds["delimiter"]
    assert head.label == label
    gained = {}
    for text in natural_texts():
        tokens = model.encode(text)
        weights = capture(model, tokens, kind=model.kinds[0]).layers[place[0]].weights[place[1]]
        for key, token in enumerate(tokens.ids):
            if tokens.special[key] or tokens.texts[key].strip() in (".", ",", "'"):
                more = float((weights[:, key] - 1 / len(tokens)).mean())
                gained[token] = gained.get(token, 0.0) + more
    assert (max(gained.values()) > 2 / 3 * sum(gained.values())) == (label is None)


@pytest.mark.parametrize("name", WRITE)
def test_what_is_written_looks_alike_at_all_it_sees(name):
    job = WritingJob.prepare(even(name), TEXT, GenerateRequest(tokens=9))
    shown, early = job.write(lambda: False)
    assert early is None
    assert len(shown.activity) == 6
    for found in shown.activity.values():
        assert found.known or found.name not in NAMED
        assert found.score == pytest.approx(found.uniform, abs=1e-6)


@pytest.mark.parametrize("name", IN_NUMPY)
def test_both_backends_have_the_same_base_rates(name, saved):
    directory = str(saved(name))
    models = [
        load(directory, LoadOptions(backend=backend, work=Work(99)))
        for backend in ("numpy", "torch")
    ]
    assert not isinstance(models[0], TransformersModel)
    heads, patterns = [], []
    for model in models:
        record = capture(model, model.encode(TEXT), kind="self")
        for layer in record.layers:
            expected = MASKS[name][layer.layer % 2](len(record.keys))
            np.testing.assert_array_equal(record.seen(layer), expected)
        heads.append([entry.label.base_rate for entry in head_scores(record)])
        scored = score_patterns(model, seeds=range(1)).heads
        assert not any(head.label for head in scored)
        patterns.append([head.base_rate["previous"] for head in scored])
    assert heads[0] == pytest.approx(heads[1], abs=1e-6)
    assert patterns[0] == pytest.approx(patterns[1], abs=1e-6)
    if name == "sliding":  # .06 to .10 over all earlier keys
        assert min(patterns[0]) > 0.25


@pytest.mark.parametrize("name", one_in(2, reversed(MASKS)))
def test_random_heads_have_no_names(name):
    """A smaller version of ``benchmarks/bench_labels.py``: at most one head in a hundred.

    The quick run has those masks under which no even heads are named above.
    """
    named = heads = 0
    for seed in range(2):
        for spread in (0.02, 0.5):
            model = opened(name, spread=spread, seed=seed, sizes=(4, 6, 48))
            found = head_scores(capture(model, model.encode(TEXT), kind=model.kinds[0]))
            named += sum(entry.label.is_finding for entry in found)
            heads += len(found)
    assert named <= heads / 100


@pytest.mark.parametrize("name", ["causal", "both ways"])
def test_patterns_label_no_head_as_it_is_initialised(name):
    report = score_patterns(opened(name, spread=0.02, sizes=(4, 6, 48)), seeds=range(1))
    assert [head.label for head in report.heads if head.label] == []
