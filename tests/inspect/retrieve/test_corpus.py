"""``attnviz retrieve`` over a corpus: from any shards to the bit, against sums taken by hand."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest

import attnviz
from attnviz.corpus import Line
from attnviz.errors import UsageError
from attnviz.inspect.retrieve import corpus
from attnviz.inspect.retrieve.haystacks import material, questions, read_sentences, sentences_of
from attnviz.inspect.retrieve.request import RetrieveRequest
from attnviz.measures.bootstrap import student_t
from attnviz.models.bundled import Bundled

from ...conftest import without_times

SENTENCES = [*read_sentences(None)] * 2
LONG = [" ".join(SENTENCES[start : start + 7]) for start in range(0, 42, 3)]
TEXTS = [LONG[0], "One short text.", *LONG[1:]]
"""15 texts, one of which is too short: three whole blocks of four and one of three."""

ASKED = {"lengths": "80", "needle": "The key is|blue rain"}


@pytest.fixture(scope="module", autouse=True)
def _small_blocks():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("attnviz.corpus.BLOCK", 4)
        yield


@pytest.fixture(scope="module")
def report():
    return attnviz.retrieve("tiny", texts=TEXTS, **ASKED)


@pytest.mark.long
def test_merged_shards_are_one_process_to_the_bit(report):
    """Named heads, intervals and both ablations too; of five shards one has no text."""
    shares = [f"{number}/5" for number in range(5)]
    parts = [attnviz.retrieve("tiny", texts=TEXTS, shard=share, **ASKED).record for share in shares]
    merged = attnviz.merge(reversed(parts))
    assert without_times(merged.to_dict()) == without_times(report.to_dict())
    assert str(merged).splitlines() == str(report).splitlines()
    assert list(merged.rows()) == list(report.rows())


@pytest.mark.long
def test_means_and_intervals_are_those_of_the_texts_one_by_one(report):
    """Each text stands alone, at its own place behind texts that are too short."""
    alone = [
        attnviz.retrieve("tiny", texts=[*["One."] * index, text], **ASKED)
        for index, text in enumerate(TEXTS)
        if text in LONG
    ]
    assert (report.texts, report.haystacks, report.questions) == (14, 14, 14)
    assert all(one.haystacks == 1 for one in alone)
    for entry in report.heads:
        own = [next(h for h in one.heads if h.place == entry.place) for one in alone]
        scores = [each.score for each in own]
        mean = statistics.fmean(scores)
        reach = student_t(13) * statistics.stdev(scores) / math.sqrt(14)
        expected = mean, max(mean - reach, 0.0), min(mean + reach, 1.0)
        assert entry[2:5] == pytest.approx(expected, abs=1e-12)
        for name in ("unasked", "shuffled", "near", "written"):
            values = [getattr(each, name) for each in own]
            assert getattr(entry, name) == pytest.approx(statistics.fmean(values), abs=1e-12)
    for name in ("loss", "predicted"):
        values = [getattr(one, name) for one in alone]
        assert getattr(report, name) == pytest.approx(statistics.fmean(values), abs=1e-12)


def test_heads_are_named_above_both_base_rates(report):
    """The scores of one head are the whole of one question, so that each is 0, a half or 1."""
    assert {(1, 0), (1, 2)} <= {one.place for one in report.named}
    assert all(one.score >= 0.1 for one in report.named)
    assert all((one.ci_low or 0.0) > max(one.unasked, one.shuffled) for one in report.named)
    assert set(report.ablated) <= {one.place for one in report.named}


def test_the_loss_is_that_of_a_model_without_the_heads_that_the_first_texts_name(report):
    bundled, request = Bundled(), RetrieveRequest(needle=(ASKED["needle"],), lengths="80")
    removed, rises = bundled.stack.without(list(report.ablated)), []
    for index, text in enumerate(TEXTS):
        if text not in LONG:
            continue
        losses = []
        (asked,) = questions(material(bundled, sentences_of(text), request), 80, index, 0)
        for stack in (bundled.stack, removed):
            logits = stack.logits(np.array(asked.ids)).astype(np.float64)[asked.start - 1 : -1]
            logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            answer = list(asked.ids[asked.start :])
            losses.append(-float(logs[np.arange(len(answer)), answer].mean()))
        rises.append(losses[1] - losses[0])
    assert report.without.value == pytest.approx(statistics.fmean(rises), abs=1e-4)
    reach = student_t(13) * statistics.stdev(rises) / math.sqrt(14)
    assert report.without.ci_low == pytest.approx(report.without.value - reach, abs=1e-3)
    assert report.random is not None
    assert f"first {corpus.FIRST} haystacks" in " ".join(report.notes)


def test_a_text_is_a_haystack_of_each_length_that_it_fills():
    found = attnviz.retrieve("tiny", texts=TEXTS[:5], lengths="64,120", needle=ASKED["needle"])
    makes = corpus._Haystacks(Bundled(), (64, 120), RetrieveRequest(lengths="64,120"))
    numbers = [len(makes.of(index, Line(1, text))) for index, text in enumerate(TEXTS[:5])]
    assert found.haystacks == sum(numbers)
    assert {length for length, _ in found.cells} == {64, 120}
    short = 5 - sum(number == 2 for number in numbers)
    assert f"{short} text" in found.notes[1]
    assert found.notes[0] == "1 text is too short for 64 tokens"


def test_a_haystack_is_of_its_own_text():
    """Six words in a row stand in the text, and none of them in another one."""
    makes = corpus._Haystacks(Bundled(), (64,), RetrieveRequest())
    for index in (3, 4):
        ((asked, *_),) = makes.of(index, Line(1, TEXTS[index]))
        words = "".join(Bundled().vocabulary().texts(asked.ids)).split()
        runs = [" ".join(words[start : start + 6]) for start in range(len(words) - 5)]
        assert any(run in TEXTS[index] for run in runs)
        assert not any(run in TEXTS[10] for run in runs)


def test_other_heads_than_the_named_ones_are_said(report):
    run = {**report.record.run, "ablated": [[0, 0], [0, 1]]}
    changed = corpus.report_of(replace(report.record, run=run))
    assert "without L0H0 and L0H1 the answer's loss" in " ".join(str(changed).split())
    assert "2 random heads" in " ".join(str(changed).split())
    none = corpus.report_of(replace(report.record, run={**run, "ablated": []}))
    assert none.named == report.named


def test_texts_that_are_all_too_short_are_refused():
    with pytest.raises(UsageError, match="no text has 80 tokens, the shortest of --lengths"):
        attnviz.retrieve("tiny", texts=["One short text.", "Another one."], **ASKED)
