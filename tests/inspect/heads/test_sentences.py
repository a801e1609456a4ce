"""What is said of heads: which attention it is, what a head does, how to read the maps."""

import dataclasses

import numpy as np
import pytest

from attnviz.draw.provenance import share
from attnviz.inspect.heads.report import compare_heads
from attnviz.inspect.heads.sentences import name_words, score_words, variant_names
from attnviz.measures.registry import label_named
from attnviz.records import NO_LABEL, SINKS


@pytest.fixture
def record(reports):
    """A record of a model whose attention can be chosen."""

    def make(score="scaled-dot", **options):
        made = reports(**{"causal": False, **options}).record
        return dataclasses.replace(made, model=dataclasses.replace(made.model, score=score))

    return make


def test_words_of_each_kind(record):
    def words(found):
        return variant_names([found])[0]

    assert words(record(causal=True)) == [
        "self attention",
        "causal mask",
        "scaled-dot score q·k/√8",
    ]
    crossed = record("additive", texts=["a"], keys=["b"], kind="cross")
    assert words(crossed) == ["cross attention", "no mask", "additive score v·tanh(q + k)"]
    unknown = record(None)
    assert words(unknown) == []
    assert words(dataclasses.replace(unknown, kind="encoder")) == ["encoder attention"]


def test_names_tell_only_what_differs(record):
    shared, names = variant_names([record("dot"), record("dot", causal=True)])
    assert shared == ["self attention", "dot score q·k"]
    assert names == [["no mask"], ["causal mask"]]


def test_titles_say_group_trait_and_what_is_sorted_by(reports):
    report = reports(kv_heads=1, index_base=1, sorted_by="distance")
    entry = report.heads[0]
    name = report.name(entry.layer, entry.head)
    assert name_words(report, entry) == [(name, True), ("key/value head 1", False)]
    words = score_words(report, entry)
    assert words[0] == f"{entry.label.name} {share(entry.label.score)}"
    assert f"entropy {entry.scores['entropy']:.2f} nats" in words
    assert f"distance {entry.scores['distance']:.2f}" in words
    assert "-0.00" not in " ".join(words)


def test_a_title_without_measures(reports):
    nan = np.full((1, 3, 3), np.nan, np.float32)
    report = reports(["a", "b", "c"], weights=[nan], sorted_by="previous")
    words = score_words(report, report.heads[0])
    assert "previous token not measured" in words
    assert "nan" not in " ".join(words)


def test_the_explanation_has_the_labels_that_are_there(reports):
    report = reports(heads=(4, 4))
    said = compare_heads([report]).document(explain=True).explain
    assert (
        said.measured
        == "all attention weights come from one forward pass over this text alone (7 tokens)."
    )
    names = {entry.label.name for entry in report.heads} - {*SINKS, NO_LABEL.name}
    expected = {
        ((label.short, label.said), f"{label.meaning}.") for label in map(label_named, names)
    }
    assert {tuple(term) for term in said.terms} == expected
