"""Scores over a corpus: the means of those of its texts, to the bit from any number of shards."""

import math
import statistics

import pytest

import attnviz
from attnviz.engine.capture import open_probing
from attnviz.errors import UsageError
from attnviz.inspect.patterns.measure import measure
from attnviz.inspect.patterns.probes import OWN, ProbeText
from attnviz.measures.bootstrap import student_t
from attnviz.measures.labels import THRESHOLD
from attnviz.measures.rows import Conditions
from attnviz.records import Input
from attnviz.texts import natural_texts

from ...conftest import without_times

WORDS = " ".join(natural_texts()).split()
TEXTS = [" ".join(WORDS[start : start + 5 + start % 7]) for start in range(0, 40, 2)]
"""20 texts: two whole blocks of eight and one of four."""
KNOWN = ["the cat sat on the mat because the cat"] * 3
"""Texts of words that the small checkpoints know."""


@pytest.fixture(scope="module", autouse=True)
def _blocks_of_eight():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("attnviz.corpus.BLOCK", 8)
        yield


@pytest.fixture(scope="module")
def report():
    return attnviz.patterns(texts=TEXTS, control="random-weights")


def shards(count, **options):
    reports = [attnviz.patterns(texts=TEXTS, shard=f"{k}/{count}", **options) for k in range(count)]
    return [each.record for each in reports]


def test_a_score_is_the_mean_of_the_texts(report):
    """The scores of single texts, added up by a loop that knows no exact sum."""
    model = attnviz.load("tiny")
    probing = open_probing(model)
    texts = [ProbeText(OWN, Input(model.encode(text))) for text in TEXTS]
    conditions = Conditions(probing.kind, probing.causal, "raw", probing.ranked)
    results = [measure(probing, [text], conditions, None)[0] for text in texts]
    compared = 0
    for entry in report.heads:
        at = results[0].places.index(entry.place)
        for name in ("previous", "first", "delimiter", "induction", "rare"):
            scores = [float(result.scores[name][at]) for result in results]
            bases = [float(result.base[name][at]) for result in results]
            known = [place for place, score in enumerate(scores) if not math.isnan(score)]
            compared += 1
            if not known:
                assert entry.scores[name] is entry.base_rate[name] is None
                continue
            scores, bases = [scores[n] for n in known], [bases[n] for n in known]
            middle, count = statistics.fmean(scores), len(known)
            assert entry.measured[name] == count
            assert entry.scores[name] == pytest.approx(middle, abs=1e-6)
            assert entry.base_rate[name] == pytest.approx(statistics.fmean(bases), abs=1e-6)
            reach = student_t(count - 1) * statistics.stdev(scores) / math.sqrt(count)
            assert entry.intervals[name] == pytest.approx(
                (middle - reach, middle + reach), abs=1e-5
            )
            if entry.label == name:
                agree = [
                    (score - base) / (1 - base) >= THRESHOLD
                    for score, base in zip(scores, bases, strict=True)
                ]
                assert entry.agreement == pytest.approx(statistics.fmean(agree))
        entropies = [float(result.scores["entropy"][at]) for result in results]
        assert entry.statistics["entropy"] == pytest.approx(statistics.fmean(entropies), abs=1e-5)
    assert compared == 5 * 24
    assert {entry.label for entry in report.heads} > {"previous", "first"}


def test_merged_shards_are_one_process_to_the_bit(report):
    """Labels, intervals and the control too; of five shards two have no text."""
    parts = shards(5, control="random-weights")
    merged = attnviz.merge(reversed(parts))
    assert without_times(merged.to_dict()) == without_times(report.to_dict())
    assert list(merged.rows()) == list(report.rows())
    added = parts[1] + parts[0]
    for rest in parts[2:]:
        added = rest + added
    assert attnviz.merge([added]).to_dicts() == report.to_dicts()


def test_a_shard_says_that_it_is_one(report):
    part = attnviz.patterns(texts=TEXTS, shard="1/2")
    assert part.probes[0].texts == 8
    assert "1 of 2 shards: 0/2 is missing" in part.notes[0]
    assert not report.notes
    empty = attnviz.patterns(texts=TEXTS, shard="4/5")
    assert empty.heads == ()
    assert "No text was measured." in str(empty)


def test_short_texts_are_left_out_and_counted():
    found = attnviz.patterns(texts=["a", *TEXTS[:9], "b"])
    assert found.notes == ("2 texts of fewer than 4 tokens left out",)
    assert found.probes[0].texts == 9
    with pytest.raises(UsageError, match="no text has 4 tokens"):
        attnviz.patterns(texts=["a", "b"])


def test_some_heads_in_another_view():
    found = attnviz.patterns(texts=TEXTS[:11], layer=1, head=2, without_first=True)
    assert [(entry.layer, entry.head) for entry in found.heads] == [(1, 2)]
    assert found.not_measured["first"]
    (alone,) = attnviz.patterns(texts=TEXTS[:11], without_first=True, head="L1H2").heads
    assert alone == found.heads[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "x"}, "--target is not for a corpus"),
        ({"watch": "nonsense"}, "no label 'nonsense'"),
        ({"text": "One text."}, "one source of texts"),
        ({"shard": "2/2"}, "expected K/N"),
    ],
)
def test_what_is_not_for_a_corpus(options, said):
    with pytest.raises(UsageError, match=said):
        attnviz.patterns(texts=TEXTS, **options)


def test_a_random_twin_of_a_checkpoint_is_drawn_by_torch(checkpoint):
    found = attnviz.patterns(str(checkpoint("gpt2")), texts=KNOWN, control="random-weights")
    assert found.model.backend == "torch"
    assert found.control is not None
