"""One head in several kinds of attention: whole screens, and the words for each kind.

``ATTNVIZ_GOLDEN=write pytest tests/heads`` writes the screens anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attnviz.draw.kind_words import kind_reading, kind_words, variant_names
from attnviz.heads.compared import compare_heads
from attnviz.heads.comparison_screen import compared_heads, comparison_screen
from attnviz.heads.screen import View

from attnviz.draw.theme import Theme
from attnviz.engine.capture import capture
from attnviz.heads.report import heads_report
from attnviz.models.own import OwnAttention
from attnviz.records import HeadsReport

KEYS, QUERIES = "the cat sat on the mat", "vier Wörter der mat"
PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")


def made(text: str = KEYS, target: str | None = None, **options: Any) -> HeadsReport:
    model = OwnAttention(32, **{"heads": 2, **options})
    tokens = model.encode(text)
    asking = None if target is None else model.encode_queries(target, tokens)
    kind = "self" if target is None else "cross"
    return heads_report(capture(model, tokens, kind=kind, target=asking), selected=False)


def drawn(reports: Sequence[HeadsReport], theme: Theme, width: int, **wish: Any) -> str:
    views = [
        View(KEYS, QUERIES if report.record.kind == "cross" else None, **wish) for report in reports
    ]
    return comparison_screen(compare_heads(reports), views, theme, width).plain


SCREENS: dict[str, Callable[[], str]] = {
    "compare_mask_80": lambda: drawn(
        [made(), made(causal=True)], PLAIN, 80, values=True, explain=True
    ),
    "compare_kind_80": lambda: drawn([made(), made(target=QUERIES)], PLAIN, 80, values=True),
    "compare_score_200": lambda: drawn(
        [made(score=score) for score in ("additive", "dot", "scaled-dot")], PLAIN, 200
    ),
    "compare_score_60_ascii": lambda: drawn(
        [made(score=score) for score in ("additive", "dot")], ASCII, 60, explain=True
    ),
}


@pytest.mark.parametrize("name", SCREENS)
def test_screen(name: str, golden: Callable[[str, str], None]) -> None:
    golden(name, SCREENS[name]())


def test_the_last_bits_of_a_weight_change_nothing() -> None:
    """Or the screens would differ between machines."""

    def nudged(report: HeadsReport, factor: float) -> HeadsReport:
        record = dataclasses.replace(
            report.record,
            layers=tuple(
                dataclasses.replace(layer, weights=layer.weights.astype(float) * factor)
                for layer in report.record.layers
            ),
        )
        return heads_report(record, selected=False)

    reports = [made(), made(causal=True), made(score="dot"), made(score="additive")]
    for factor in (1 - 1e-6, 1 + 1e-6):
        moved = [nudged(report, factor) for report in reports]
        assert drawn(moved, PLAIN, 100, values=True) == drawn(reports, PLAIN, 100, values=True)


def test_words_of_each_kind() -> None:
    words = kind_words(made(causal=True, heads=4).record)
    assert words == ["self attention", "causal mask", "scaled-dot score q·k/√8"]
    assert kind_words(made(target=QUERIES, score="additive").record, ascii_only=True) == [
        "cross attention",
        "no mask",
        "additive score v.tanh(q + k)",
    ]
    record = made(heads=4).record
    assert kind_words(record, ascii_only=True)[-1] == "scaled-dot score q.k/sqrt(8)"
    unknown = dataclasses.replace(record, model=dataclasses.replace(record.model, score=None))
    assert kind_words(unknown) == []
    assert kind_words(dataclasses.replace(unknown, kind="encoder")) == ["encoder attention"]
    assert kind_reading([unknown]) == []


def test_names_tell_only_what_differs() -> None:
    records = [made(score="dot").record, made(score="dot", causal=True).record]
    shared, names = variant_names(records)
    assert shared == ["self attention", "dot score q·k"]
    assert names == [["no mask"], ["causal mask"]]


def test_a_sentence_is_said_once() -> None:
    records = [made().record, made(causal=True).record, made(score="dot").record]
    said = kind_reading(records)
    assert [sentence.partition(":")[0] for sentence in said] == [
        "self attention",
        "scaled-dot score q·k/√16",
        "causal mask",
        "dot score q·k",
    ]


def test_long_texts_show_the_telling_heads_of_any_report() -> None:
    text = " ".join(f"{KEYS} {n}" for n in range(4))
    found = compare_heads([made(text, heads=8), made(text, heads=8, causal=True)])
    places = compared_heads(found)
    for report in found.reports:
        assert set(report.telling) <= set(places)
    assert len(set(places)) == len(places) <= 6
    chosen = [dataclasses.replace(report, selected=True) for report in found.reports]
    assert len(compared_heads(compare_heads(chosen))) == 8
