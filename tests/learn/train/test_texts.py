"""Text files read as one text."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from attnviz.errors import LoadError, UsageError
from attnviz.learn.train.texts import BEGINNING, encode, hold_out, make_tokenizer, read_corpus


def files(folder: Path, **contents: str) -> list[Path]:
    paths = []
    for name, content in contents.items():
        paths.append(folder / f"{name}.txt")
        paths[-1].write_text(content, encoding="utf-8")
    return paths


def test_a_directory_stands_for_its_texts_by_name(tmp_path: Path) -> None:
    files(tmp_path, b="two", a="one")
    (tmp_path / "note.md").write_text("no")
    corpus = read_corpus([tmp_path])
    assert (corpus.names, corpus.texts) == (("a.txt", "b.txt"), ("one", "two"))
    assert corpus.bytes == 6


def test_digests_tell_files_and_their_order_apart(tmp_path: Path) -> None:
    corpus = read_corpus(files(tmp_path, a="één"))
    assert list(corpus.files) == [("a.txt", 5, hashlib.sha256("één".encode()).hexdigest()[:12])]
    one, two = files(tmp_path, a="one", b="two")
    digests = {read_corpus(paths).digest for paths in ([one, two], [two, one], [one], [two])}
    assert len(digests) == 4


def test_a_mark_of_byte_order_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "marked.txt"
    path.write_bytes(b"\xef\xbb\xbfabc")
    corpus = read_corpus([path])
    assert corpus.texts == ("abc",)
    assert corpus.files[0][1:] == (6, hashlib.sha256(path.read_bytes()).hexdigest()[:12])


def test_what_has_no_end_is_no_text() -> None:
    with pytest.raises(UsageError, match="is a device, which has no end"):
        read_corpus([Path(os.devnull)])


def test_the_same_text_twice_is_refused(tmp_path: Path) -> None:
    """The tenth that is held out of one of them would be learned from the other."""
    files(tmp_path, a="one", b="two")
    copy = tmp_path / "copy.txt"
    copy.write_text("one")
    for paths in ([tmp_path / "a.txt"] * 2, [tmp_path]):
        with pytest.raises(UsageError, match=r"holds the same text as .*: name it once"):
            read_corpus(paths)


def test_a_file_that_is_cut_is_listed_as_it_lies_there(tmp_path: Path) -> None:
    content = "line\n" * 100
    (path,) = files(tmp_path, a=content)
    kept, held = hold_out(read_corpus([path]))
    assert kept.texts[0] + held.texts[0] == content
    assert kept.files == held.files == read_corpus([path]).files


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    bad, empty = tmp_path / "bad.txt", tmp_path / "empty.txt"
    bad.write_bytes(b"abc\xff")
    empty.write_text(" \n")
    with pytest.raises(LoadError, match=r"bad.txt' is no UTF-8 text: byte 3 cannot"):
        read_corpus([bad])
    with pytest.raises(UsageError, match=r"empty.txt' is empty"):
        read_corpus([empty])
    with pytest.raises(LoadError, match=r"cannot read .*none.txt'"):
        read_corpus([tmp_path / "none.txt"])
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"has no \*.txt files"):
        read_corpus([tmp_path / "folder"])
    with pytest.raises(UsageError, match="no text to train on"):
        read_corpus([])


@pytest.mark.parametrize("sizes", [(100,), (50, 50), (95, 5), (10, 80, 10), (1, 99)])
def test_the_last_tenth_is_held_out(tmp_path: Path, sizes: tuple[int, ...]) -> None:
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


def test_the_cut_lies_where_a_line_ends_and_needs_two_letters(tmp_path: Path) -> None:
    text = "\n".join(["a line of text"] * 20)
    kept, held = hold_out(read_corpus(files(tmp_path, a=text)))
    assert kept.texts[0].endswith("\n")
    assert held.texts[0].startswith("a line")
    with pytest.raises(UsageError, match="too short to hold out"):
        hold_out(read_corpus(files(tmp_path, a="a")))


def test_texts_become_one_row_with_a_token_between() -> None:
    texts = ["low lower lowest " * 20, "new newer newest " * 20]
    tokenizer = make_tokenizer(texts, 260)
    ids = encode(tokenizer, texts, BEGINNING)
    assert list(ids).count(BEGINNING) == 1
    cut = list(ids).index(BEGINNING)
    assert tokenizer.decode(ids[:cut].tolist()) == texts[0]
    assert tokenizer.decode(ids[cut + 1 :].tolist()) == texts[1]


def test_a_tokenizer_has_as_many_tokens_as_asked_and_begins_a_text() -> None:
    texts = ["low lower lowest " * 20]
    tokenizer = make_tokenizer(texts, 264)
    assert tokenizer.get_vocab_size() == 264
    assert tokenizer.encode("low").ids[0] == BEGINNING
    assert tokenizer.to_str() == make_tokenizer(texts, 264).to_str()
    assert tokenizer.decode(tokenizer.encode("日本 é\t").ids) == "日本 é\t"  # every byte is there


def test_a_vocabulary_larger_than_the_text_allows() -> None:
    with pytest.raises(UsageError, match=r"5,000 is larger .* for 2\d\d tokens"):
        make_tokenizer(["low lower lowest " * 20], 5000)
    assert make_tokenizer(["low lower lowest " * 20], None).get_vocab_size() < 300
