"""What is said of heads: which attention it is, what a head does, how to read the maps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from attnviz.draw.provenance import share
from attnviz.inspect.heads.report import compare_heads
from attnviz.inspect.heads.words import (
    explanation,
    kind_reading,
    name_words,
    score_words,
    variant_names,
)
from attnviz.measures.registry import label_named
from attnviz.records import AttentionRecord, HeadsRecord

Reports = Callable[..., HeadsRecord]


@pytest.fixture
def record(reports: Reports) -> Callable[..., AttentionRecord]:
    """A record of a model whose attention can be chosen."""

    def make(score: str | None = "scaled-dot", **options: object) -> AttentionRecord:
        made = reports(**{"causal": False, **options}).record
        return dataclasses.replace(made, model=dataclasses.replace(made.model, score=score))

    return make


def test_words_of_each_kind(record: Callable[..., AttentionRecord]) -> None:
    def words(found: AttentionRecord) -> list[str]:
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
    assert kind_reading([unknown]) == []


def test_names_tell_only_what_differs(record: Callable[..., AttentionRecord]) -> None:
    shared, names = variant_names([record("dot"), record("dot", causal=True)])
    assert shared == ["self attention", "dot score q·k"]
    assert names == [["no mask"], ["causal mask"]]


def test_a_sentence_is_said_once(record: Callable[..., AttentionRecord]) -> None:
    said = kind_reading([record(), record(causal=True), record("dot")])
    assert [sentence.partition(":")[0] for sentence in said] == [
        "self attention",
        "scaled-dot score q·k/√8",
        "causal mask",
        "dot score q·k",
    ]


def test_titles_say_group_trait_and_what_is_sorted_by(reports: Reports) -> None:
    report = reports(kv_heads=1, index_base=1, sorted_by="distance")
    entry = report.heads[0]
    name = report.name(entry.layer, entry.head)
    assert name_words(report, entry) == [(name, True), ("key/value head 1", False)]
    words = score_words(report, entry)
    assert words[0] == f"{entry.label.name} {share(entry.label.score)}"
    assert f"entropy {entry.scores['entropy']:.2f} nats" in words
    assert f"distance {entry.scores['distance']:.2f}" in words
    assert "-0.00" not in " ".join(words)


def test_a_title_without_measures(reports: Reports) -> None:
    nan = np.full((1, 3, 3), np.nan, np.float32)
    report = reports(["a", "b", "c"], weights=[nan], sorted_by="previous")
    words = score_words(report, report.heads[0])
    assert "previous token not measured" in words
    assert "nan" not in " ".join(words)


def test_the_reading_explains_what_is_shown(reports: Reports) -> None:
    report = reports(heads=(4, 4))
    said = " ".join(explanation(compare_heads([report])))
    assert "that half is blank" in said
    for name in {entry.label.name for entry in report.heads}:
        strongest = max(
            (e for e in report.heads if e.label.name == name), key=lambda e: e.label.score
        )
        best = report.name(strongest.layer, strongest.head)
        where = f"{share(strongest.label.score)} ({best})."
        label = label_named(name)
        opening = f"{label.said} ({label.short}): {label.meaning}"
        assert f"{opening}; highest score {where}" in said
    assert "moved:" not in said
    assert "moved:" in " ".join(explanation(compare_heads([report, report])))


def test_an_encoder_has_no_blank_half(reports: Reports) -> None:
    assert "blank" not in " ".join(explanation(compare_heads([reports(causal=False)])))
