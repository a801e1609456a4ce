"""Characters of a text: windows, what is held out, what counting alone reaches."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from attnviz.learn.sweep.characters import Characters

TEXT = "The quick brown fox jumps over the lazy dog; so it goes on, page by page.\n" * 17


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def spelled(task: Characters, text: str, ids: list[int]) -> str:
    """Ids as characters, by the order of their frequency in what is learned from."""
    order = [one for one, _ in Counter(text[: len(text) - len(text) // 10]).most_common()]
    return "".join(order[number - 2] for number in ids)


def test_windows_are_of_the_text(path: Path) -> None:
    task = Characters(path, length=13)
    samples = task.draw(19, np.random.default_rng(0))
    learned = TEXT[: len(TEXT) - len(TEXT) // 10]
    assert samples.counted.all()
    assert samples.ids.shape == (19, 14)
    assert all(spelled(task, TEXT, row[1:]) in learned for row in samples.ids.tolist())


def test_what_is_held_out_comes_whole_and_in_order(path: Path) -> None:
    task = Characters(path, length=13)
    samples = task.held_out(512, np.random.default_rng(0))
    read = "".join(spelled(task, TEXT, row[1:]) for row in samples.ids.tolist())
    held = TEXT[len(TEXT) - len(TEXT) // 10 :]
    assert held.startswith(read)
    assert len(held) - len(read) < 13
    assert len(task.held_out(2, np.random.default_rng(0)).ids) == 2


def test_references(path: Path) -> None:
    task = Characters(path, length=13)
    samples = task.held_out(512, np.random.default_rng(0))
    learned = TEXT[: len(TEXT) - len(TEXT) // 10]
    different = sorted(set(learned))
    alone, pairs = Counter(learned), Counter(pairwise(learned))
    size = len(different) + 1  # whatever was never seen is one more character
    chance = task.chance()
    assert chance.loss == pytest.approx(math.log(len(different)))
    assert task.best() is None
    by_number, by_pair, right = [], [], []
    for row in samples.ids.tolist():
        window = spelled(task, TEXT, row[1:])
        for before, here in zip([None, *window], window, strict=False):
            by_number.append(-math.log((alone[here] + 1) / (len(learned) + size)))
            if before is None:
                by_pair.append(by_number[-1])
            else:
                total = sum(pairs[before, other] for other in different) + size
                by_pair.append(-math.log((pairs[before, here] + 1) / total))
            right.append(here == " ")
    first, second = task.between(samples)
    assert first.loss == pytest.approx(np.mean(by_number))
    assert first.accuracy == pytest.approx(np.mean(right))
    assert second.loss == pytest.approx(np.mean(by_pair))
    assert second.accuracy > first.accuracy


def test_rare_characters_are_one(tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("ab" * 600 + "".join(map(chr, range(0x4E00, 0x4E00 + 300))) + "ab" * 200)
    task = Characters(path)
    assert task.vocabulary == 126 + 2
    samples = task.draw(31, np.random.default_rng(0))
    assert samples.ids.max() < 128


def test_facts(path: Path) -> None:
    text = Characters(path).text
    assert text is not None
    assert (text.files, text.bytes, text.tokens) == (("story.txt",), len(TEXT), len(TEXT))
    assert len(text.digest) == 12
