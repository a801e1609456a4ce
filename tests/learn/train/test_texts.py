"""Text files read as one text, and what is drawn of it: weighted where it can be predicted."""

from collections import Counter

import numpy as np
import pytest

from attnviz.errors import LoadError, UsageError
from attnviz.learn.train.recipe import Phase
from attnviz.learn.train.texts import (
    BEGINNING,
    Sampler,
    encode,
    hold_out,
    make_tokenizer,
    read_corpus,
)

VOCABULARY = 503
TEXT = np.arange(1, 98, dtype=np.int32)


def files(folder, **contents):
    paths = []
    for name, content in contents.items():
        paths.append(folder / f"{name}.txt")
        paths[-1].write_text(content, encoding="utf-8")
    return paths


def test_a_directory_stands_for_its_texts_by_name(tmp_path):
    files(tmp_path, b="two", a="one")
    (tmp_path / "note.md").write_text("no")
    corpus = read_corpus([tmp_path])
    assert (corpus.names, corpus.texts) == (("a.txt", "b.txt"), ("one", "two"))
    assert corpus.digest != read_corpus([tmp_path / "b.txt", tmp_path / "a.txt"]).digest
    assert corpus.bytes == 6


def test_the_same_text_twice_is_refused(tmp_path):
    """The tenth that is held out of one of them would be learned from the other."""
    files(tmp_path, a="one", b="two")
    copy = tmp_path / "copy.txt"
    copy.write_text("one")
    for paths in ([tmp_path / "a.txt"] * 2, [tmp_path]):
        with pytest.raises(UsageError, match=r"holds the same text as .*: name it once"):
            read_corpus(paths)


def test_what_is_no_text_is_named(tmp_path):
    bad, empty = tmp_path / "bad.txt", tmp_path / "empty.txt"
    bad.write_bytes(b"abc\xff")
    empty.write_text(" \n")
    with pytest.raises(LoadError, match=r"bad.txt' is not UTF-8: byte 4 is 0xff"):
        read_corpus([bad])
    with pytest.raises(UsageError, match=r"empty.txt' is empty"):
        read_corpus([empty])
    with pytest.raises(LoadError, match=r"cannot read .*none.txt'"):
        read_corpus([tmp_path / "none.txt"])
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"has no \*.txt files"):
        read_corpus([tmp_path / "folder"])
    with pytest.raises(UsageError, match="no text to learn from"):
        read_corpus([])


@pytest.mark.parametrize("sizes", [(100,), (50, 50), (95, 5), (10, 80, 10), (1, 99)])
def test_the_last_tenth_is_held_out(tmp_path, sizes):
    letters = "abc"
    contents = {letter: letter * size for letter, size in zip(letters, sizes, strict=False)}
    corpus = read_corpus(files(tmp_path, **contents))
    kept, held = hold_out(corpus)
    whole = "".join(corpus.texts)
    assert "".join(kept.texts) + "".join(held.texts) == whole
    assert sum(map(len, held.texts)) == 10
    assert held.held_out
    assert not kept.held_out
    for part in (kept, held):
        assert len(part.names) == len(part.texts)
        assert all(name[0] == text[0] for name, text in zip(part.names, part.texts, strict=True))


def test_texts_become_one_row_with_a_token_between():
    texts = ["low lower lowest " * 20, "new newer newest " * 20]
    tokenizer = make_tokenizer(texts, 260)
    ids = encode(tokenizer, texts, BEGINNING)
    assert list(ids).count(BEGINNING) == 1
    cut = list(ids).index(BEGINNING)
    assert tokenizer.decode(ids[:cut].tolist()) == texts[0]
    assert tokenizer.decode(ids[cut + 1 :].tolist()) == texts[1]


def test_a_tokenizer_has_as_many_tokens_as_asked_and_begins_a_text():
    texts = ["low lower lowest " * 20]
    tokenizer = make_tokenizer(texts, 264)
    assert tokenizer.get_vocab_size() == 264
    assert tokenizer.encode("low").ids[0] == BEGINNING
    assert tokenizer.to_str() == make_tokenizer(texts, 264).to_str()
    assert tokenizer.decode(tokenizer.encode("日本 é\t").ids) == "日本 é\t"  # every byte is there


def sampler(seed=0, tokens=TEXT, beginning=BEGINNING):
    return Sampler(tokens, VOCABULARY, beginning, seed)


def phase(length=23, batch=5, **shares):
    none = {"repeated_tokens": 0.0, "repeated_passages": 0.0}
    period = shares.pop("period", (3, 7))
    return Phase(length=length, batch=batch, period=period, **{**none, **shares})


MIXED = phase(repeated_tokens=0.3, repeated_passages=0.3, recalled_pairs=0.2)


def test_the_same_seed_and_position_give_the_same_batches():
    one, two = sampler(7), sampler(7)
    first = [one.draw(MIXED) for _ in range(5)]
    for batch in first:
        again = two.draw(MIXED)
        assert np.array_equal(batch.ids, again.ids)
        assert np.array_equal(batch.weights, again.weights)
    other = sampler(8).draw(MIXED)
    assert not np.array_equal(other.ids, first[0].ids)


def test_windows_of_plain_text():
    length = 12
    count = len(TEXT) // length  # 8, and one token is left over
    drawn = sampler(3)
    epochs = []
    for _ in range(3):
        rows = [drawn.draw(phase(length, batch=1)).ids[0] for _ in range(count)]
        assert all(row[0] == BEGINNING for row in rows)
        assert all(np.array_equal(np.diff(row[1:]), np.ones(length - 1)) for row in rows)
        starts = sorted(int(row[1]) for row in rows)
        assert np.array_equal(np.diff(starts), np.full(count - 1, length))
        epochs.append([int(row[1]) for row in rows])
    assert len({tuple(epoch) for epoch in epochs}) == 3  # in another order each time
    batch = sampler().draw(phase())
    assert batch.ids.shape == (5, 24)
    assert batch.weights.shape == (5, 23)
    assert np.all(batch.weights == 1)
    assert batch.kinds == Counter(text=5)


@pytest.mark.parametrize("surprise", [0.0, 0.25])
def test_random_tokens_count_where_an_earlier_copy_tells_them(surprise):
    wanted = phase(batch=1, repeated_tokens=1.0, surprise=surprise)
    drawn = sampler()
    periods = set()
    for _ in range(40):
        batch = drawn.draw(wanted)
        ids, weights = batch.ids[0].tolist(), batch.weights[0].tolist()
        period = next(p for p in range(3, 8) if ids[1 : 24 - p] == ids[1 + p :])
        periods.add(period)
        # A token and the next one were there a period before: they tell the next one here.
        told = [
            at > period and ids[at - period :][:2] == ids[at:][:2] for at in range(len(ids) - 1)
        ]
        assert weights == [1.0 if each else surprise for each in told]
        assert BEGINNING not in ids[1:]
        assert batch.kinds == Counter(repeated_tokens=1)
    assert periods == {3, 4, 5, 6, 7}


@pytest.mark.parametrize("surprise", [0.0, 0.25])
def test_pairs_come_again_in_another_order(surprise):
    wanted = phase(length=41, batch=1, recalled_pairs=1.0, surprise=surprise, period=(6, 6))
    drawn = sampler()
    orders = set()
    for _ in range(20):
        batch = drawn.draw(wanted)
        ids, weights = batch.ids[0, 1:].tolist(), batch.weights[0].tolist()
        pairs = list(zip(ids[::2], ids[1::2], strict=False))
        told = dict(pairs[:3])
        assert len(told) == 3
        for start in range(0, 18, 3):
            assert dict(pairs[start : start + 3]) == told
        orders.add(tuple(list(told).index(first) for first, _ in pairs[3:6]))
        # What a pair's first token tells, once the pair has been seen.
        assert weights == [1.0 if at >= 6 and at % 2 else surprise for at in range(41)]
        assert BEGINNING not in ids
        assert batch.kinds == Counter(recalled_pairs=1)
    assert len(orders) > 1


def test_passages_repeat_a_stretch_of_the_text_and_count_everywhere():
    wanted = phase(batch=1, repeated_passages=1.0, period=(6, 6))
    batch = sampler().draw(wanted)
    stretch = batch.ids[0, 1:7]
    assert np.array_equal(np.diff(stretch), np.ones(5))
    assert np.array_equal(batch.ids[0, 1:], np.resize(stretch, 23))
    assert np.all(batch.weights == 1)
