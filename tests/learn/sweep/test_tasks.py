"""The tasks: what counts can be known, by readers that share no code with them; their patterns."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from attnviz.learn.sweep import tasks
from attnviz.learn.sweep.sweep import weight_on

from ...made_records import measured

TOKENS = 11
TEXT = "The quick brown fox jumps over the lazy dog; so it goes on, page by page.\n" * 17
LEARNED, HELD = TEXT[: len(TEXT) - len(TEXT) // 10], TEXT[len(TEXT) - len(TEXT) // 10 :]


def drawn(name, count=97, seed=5):
    task = tasks.TASKS[name]
    samples = task.draw(count, np.random.default_rng(seed))
    assert samples.ids.shape == (count, 1 + task.facts.length)
    assert samples.counted.shape == (count, task.facts.length)
    assert (samples.ids[:, 0] == tasks.BEGINNING).all()
    assert samples.ids[:, 1:].min() > tasks.BEGINNING
    assert samples.ids.max() < task.facts.vocabulary
    return samples


def rows(samples):
    """Each sequence without its beginning, and which of its letters count."""
    return list(zip(samples.ids[:, 1:].tolist(), samples.counted.tolist(), strict=True))


def keys_of(task, name, samples):
    return next(pattern for pattern in task.patterns if pattern.name == name).keys(samples)


def test_what_counts_in_induction_followed_before_and_nothing_else_did():
    for letters, counted in rows(drawn("induction", 23)):
        for strand in range(3):
            own, known = letters[strand::3], counted[strand::3]
            size = next(n for n in range(1, len(own)) if own[n] == own[0])
            assert 3 <= size <= 5
            assert len(set(own[:size])) == size
            for turn, letter in enumerate(own):
                followers = {own[n + 1] for n in range(turn - 1) if own[n] == own[turn - 1]}
                assert known[turn] == bool(turn and followers), (own, turn)
                assert not followers or followers == {letter}


def test_keys_of_induction_hold_the_answer():
    task, samples = tasks.TASKS["induction"], drawn("induction", 11)
    assert task.facts.chance.loss == pytest.approx(math.log(9))
    assert task.facts.chance.accuracy == pytest.approx(1 / 9)
    sizes = []
    for letters, counted in rows(samples):
        strands = [len(set(letters[strand::3])) for strand in range(3)]
        sizes += [strands[at % 3] for at, known in enumerate(counted) if known]
    (rule,) = task.between(samples)
    assert rule.loss == pytest.approx(np.mean(np.log(sizes)))
    assert rule.accuracy == pytest.approx(np.mean(1 / np.array(sizes)))
    keys, ids = keys_of(task, "induction", samples), samples.ids
    for sequence, query, key in zip(*np.nonzero(keys), strict=True):
        assert key < query
        assert ids[sequence, key] == ids[sequence, query + 1]
        # The key follows the last letter of the answer's strand.
        assert (query + 1 - key) % 3 == 0
        assert key > 3
        assert ids[sequence, key - 3] == ids[sequence, query - 2]
    # Where the answer can be known there is a key that holds it, and nowhere else.
    assert (keys.any(-1) == samples.counted).all()


def test_copies_and_their_keys():
    sizes, samples = set(), drawn("copy")
    for letters, counted in rows(samples):
        size = letters.index(9)
        sizes.add(size)
        assert letters[size + 1 : 2 * size + 1] == letters[:size]
        assert set(letters[2 * size + 1 :]) <= {10}
        assert counted == [size < at <= 2 * size for at in range(len(letters))]
        assert max(letters[:size]) <= 8
    assert sizes == set(range(6, 15))
    keys = keys_of(tasks.TASKS["copy"], "copy", samples)
    assert (keys.sum(-1) == samples.counted).all()
    for sequence, query, key in zip(*np.nonzero(keys), strict=True):
        assert samples.ids[sequence, key] == samples.ids[sequence, query + 1]
        assert query - key == samples.counted[sequence].sum()


def test_majorities_and_their_keys():
    samples, shares = drawn("majority"), []
    letters_keys, most_keys = (
        keys_of(tasks.TASKS["majority"], name, samples) for name in ("letters", "majority")
    )
    for sequence, (letters, counted) in enumerate(rows(samples)):
        size = letters.index(5)
        (first, most), *others = Counter(letters[:size]).most_common(2)
        assert letters[size + 1] == first
        assert not others or others[0][1] < most
        assert counted == [at == size + 1 for at in range(len(letters))]
        assert set(letters[size + 2 :]) <= {6}
        shares.append(most / size)
        sign, ids = size + 1, samples.ids[sequence]
        assert set(zip(*np.nonzero(letters_keys[sequence]), strict=True)) == {
            (sign, at) for at in range(1, sign)
        }
        assert set(zip(*np.nonzero(most_keys[sequence]), strict=True)) == {
            (sign, at) for at in range(1, sign) if ids[at] == first
        }
    (rule,) = tasks.TASKS["majority"].between(samples)
    assert rule.loss == pytest.approx(-np.mean(np.log(shares)))
    assert rule.accuracy == pytest.approx(np.mean(shares))


def test_they_are_the_measures_of_heads():
    raw = np.tril(np.random.default_rng(2).uniform(size=(1, 3, TOKENS, TOKENS)) + 0.01)
    weights = raw / raw.sum(-1, keepdims=True)  # (sequence, head, query, key)
    answers = np.random.default_rng(1).integers(1, 5, (1, TOKENS))
    samples = tasks.Samples(answers, np.ones((1, TOKENS), np.bool_))
    ids = samples.queries[0].tolist()
    for pattern, expected in (
        (tasks.back(1), measured("previous", weights[0])),
        (tasks.FIRST, measured("first", weights[0])),
        (tasks.DUPLICATE, measured("duplicate", weights[0], ids)),
        (tasks.INDUCTION, measured("induction", weights[0], ids)),
    ):
        found = weight_on(pattern.keys(samples), weights)
        assert found == pytest.approx(expected), pattern.name


def test_the_mean_is_over_the_queries_that_have_keys():
    keys = np.zeros((2, 3, 3), np.bool_)
    keys[0, 1, 0] = keys[0, 2, 0] = keys[0, 2, 1] = True
    weights = np.zeros((2, 1, 3, 3))
    weights[0, 0] = [[1, 0, 0], [0.25, 0.75, 0], [0.5, 0.25, 0.25]]
    weights[1] = 1 / 3
    assert weight_on(keys, weights) == pytest.approx([(0.25 + 0.75) / 2])


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(TEXT, encoding="utf-8")
    return tasks.characters(path)


def spelled(ids):
    """Ids as characters, by the order of their frequency in what is learned from."""
    order = [character for character, _ in Counter(LEARNED).most_common()]
    return "".join(order[number - 2] for number in ids)


def test_windows_are_of_the_text_and_the_rest_is_held_out(task):
    samples = task.draw(19, np.random.default_rng(0))
    assert samples.counted.all()
    assert samples.ids.shape == (19, 43)
    assert all(spelled(row[1:]) in LEARNED for row in samples.ids.tolist())
    held = task.held_out(512)
    read = "".join(spelled(row[1:]) for row in held.ids.tolist())
    assert HELD.startswith(read)
    assert len(HELD) - len(read) < 42
    assert len(task.held_out(2).ids) == 2
    text = task.facts.text
    assert (text.files, text.bytes, text.tokens) == (("story.txt",), len(TEXT), len(TEXT))


def test_rules_that_count_characters(task):
    samples = task.held_out(512)
    different = sorted(set(LEARNED))
    alone, pairs = Counter(LEARNED), Counter(pairwise(LEARNED))
    size = len(different) + 1  # whatever was never seen is one more character
    assert task.facts.chance.loss == pytest.approx(math.log(len(different)))
    assert task.facts.best is None
    by_number, by_pair, right = [], [], []
    for row in samples.ids.tolist():
        window = spelled(row[1:])
        for before, here in zip([None, *window], window, strict=False):
            by_number.append(-math.log((alone[here] + 1) / (len(LEARNED) + size)))
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


def test_rare_characters_are_one(tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("ab" * 600 + "".join(map(chr, range(0x4E00, 0x4E00 + 300))) + "ab" * 200)
    task = tasks.characters(path)
    assert task.facts.vocabulary == 126 + 2
    assert task.draw(31, np.random.default_rng(0)).ids.max() < 128
