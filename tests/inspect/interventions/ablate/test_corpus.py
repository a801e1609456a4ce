"""Ablations over a corpus: those of the same texts in one list, to the bit from any shards."""

import functools
import json
import math
import operator
import statistics
from dataclasses import replace

import numpy as np
import pytest

import attnviz
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.inspect.interventions.ablate import corpus
from attnviz.measures.bootstrap import student_t
from attnviz.models.bundled import Bundled
from attnviz.texts import natural_texts

from ....conftest import without_times

WORDS = " ".join(natural_texts()).split()
TEXTS = [" ".join(WORDS[start : start + 4 + start % 3]) for start in range(0, 40, 2)]
"""20 texts: two whole blocks of eight and one of four."""

HEADS = ("L1H1", "L1H2")


@pytest.fixture(scope="module", autouse=True)
def _blocks_of_eight():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("attnviz.corpus.BLOCK", 8)
        yield


@pytest.fixture(scope="module")
def report():
    return attnviz.ablate("tiny", TEXTS, head=[*HEADS], shard="0/1")


def shards(count, **options):
    given = {"head": [*HEADS], **options}
    shares = [f"{number}/{count}" for number in range(count)]
    return [attnviz.ablate("tiny", TEXTS, shard=share, **given).record for share in shares]


def test_the_effects_are_those_of_one_list(report):
    """Value, interval and p; the control is of the first block, in a list of all texts."""
    (listed,) = [attnviz.ablate("tiny", TEXTS, head=[*HEADS])]
    for one, other in zip(report.effects, listed.effects, strict=True):
        assert (one.variant, one.texts) == (other.variant, 20)
        for name, mean in other.means.items():
            found = one.means[name]
            assert found.value == pytest.approx(mean.value, abs=1e-9)
            assert found.interval == pytest.approx(mean.interval, abs=1e-9)
            assert found.adjusted == mean.adjusted
    assert report.baseline["loss"] == pytest.approx(listed.baseline["loss"])
    assert (report.text_count, report.token_count) == (20, listed.token_count)
    assert {head: label.name for head, label in report.labels.items()} == {
        head: label.name for head, label in listed.labels.items()
    }


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [(("labels", 0, 2, 0), "owl", "its labels is"), (("tokens", 0, 0), -1, "its tokens is")],
)
def test_a_forged_record_is_refused_by_name(report, path, value, said):
    record, shown = report.record, json.loads(json.dumps(report.record.shown))
    functools.reduce(operator.getitem, path[:-1], shown)[path[-1]] = value
    with pytest.raises(LoadError, match=said):
        replace(record, shown=shown).check(corpus.FORM, "part")


def test_merged_shards_are_one_process_to_the_bit(report):
    """Labels, intervals and the control too; of five shards two have no text."""
    merged = attnviz.merge(reversed(shards(5)))
    assert without_times(merged.to_dict()) == without_times(report.to_dict())
    assert str(merged).splitlines() == str(report).splitlines()


def test_more_texts_than_are_kept(report, monkeypatch):
    """Mean and error are of all texts; the kept ones give the quantiles alone."""
    kept = [
        values.view(np.float64)
        for name, values in report.record.tallies.sums.items()
        if name.startswith("kept.")
    ]
    losses = np.concatenate(kept)[:, :, 0]
    monkeypatch.setattr(corpus, "_KEPT", 8)
    parts = shards(3)
    found = attnviz.merge(parts)
    alone = attnviz.ablate("tiny", TEXTS, head=[*HEADS], shard="0/1")
    assert without_times(found.to_dict()) == without_times(alone.to_dict())
    for place, effect in enumerate(found.effects):
        mean = effect.means["loss_delta"]
        own = losses[:, place].tolist()
        assert effect.texts == 20
        assert mean.value == pytest.approx(statistics.fmean(own), abs=1e-12)
        error = statistics.stdev(own) / math.sqrt(20)
        low, high = mean.interval or (0.0, 0.0)
        for reach in (mean.value - low, high - mean.value):
            assert 0.99 * student_t(7) < reach / error < 2.01 * student_t(7)


def test_a_mean_from_references():
    options = {"mode": "mean", "reference": TEXTS[:5], "head": "L1H1"}
    both = (attnviz.ablate("tiny", TEXTS[:11], shard=shard, **options) for shard in ("0/1", None))
    one, other = (report.effects[0].value("loss_delta") for report in both)
    assert one == pytest.approx(other, abs=1e-9)


def test_a_run_goes_on_from_its_file(tmp_path, report):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(["The", *TEXTS]), encoding="utf-8")
    part = tmp_path / "part.record"
    for _ in range(2):
        found = attnviz.ablate("tiny", path, head=[*HEADS], shard="0/1", resume=part)
        assert "1 text of one token left out: a loss needs two" not in found.notes
        assert found.text_count == 21
    with pytest.raises(UsageError, match="its removals are"):
        attnviz.ablate("tiny", path, head="L0H0", shard="0/1", resume=part)


def test_a_shard_without_a_text_says_so():
    empty = attnviz.ablate("tiny", TEXTS[:8], head="L1H1", shard="1/2")
    assert empty.effects == ()
    assert "No text was measured." in str(empty)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "mean"}, "--mode mean without --reference FILE is not for a corpus"),
        ({"by_token": True}, "--by-token is not for"),
        ({"method": "gradient"}, "--method gradient is not for"),
        ({"budget": "3 heads"}, "--budget is not for"),
    ],
)
def test_what_is_not_for_a_corpus(options, said):
    with pytest.raises(UsageError, match=said):
        attnviz.ablate("tiny", TEXTS, shard="0/2", **options)


def test_an_encoder_decoder_is_refused(monkeypatch):
    monkeypatch.setattr(Bundled, "kinds", ("encoder", "decoder", "cross"))
    with pytest.raises(UnsupportedError, match="writes a target for each text"):
        attnviz.ablate("tiny", TEXTS, shard="0/2")


@pytest.mark.long
def test_a_large_file_needs_no_shard(run, tmp_path, monkeypatch):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS), encoding="utf-8")
    asked = ("ablate", "--texts", str(file), "--head", "L1H2", "--json")
    one = run(*asked, "--shard", "0/1").document
    monkeypatch.setattr("attnviz.corpus.TEXT_BYTES", 100)
    assert without_times(run(*asked).document) == without_times(one)
    assert "--by-token is not for a corpus: leave it out" in run(*asked, "--by-token").err
