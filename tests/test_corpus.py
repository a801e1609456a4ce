"""A corpus is read text by text, and its blocks are shared out whole."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnviz.corpus import BLOCK, Line, Reading, Shard, is_corpus, open_corpus, read_shard
from attnviz.errors import LoadError, UsageError

TEXTS = [f"text number {place}" for place in range(150)]


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_shards_take_every_block_once(shards):
    readings = [Reading(open_corpus(TEXTS), Shard(number, shards)) for number in range(shards)]
    blocks = sorted((block.index, block) for reading in readings for block in reading)
    assert [index for index, _ in blocks] == [0, 1, 2]
    assert [line.text for _, block in blocks for line in block.lines] == TEXTS
    assert [block.first for _, block in blocks] == [0, BLOCK, 2 * BLOCK]
    assert {(reading.texts, reading.digest) for reading in readings} == {(150, readings[0].digest)}


def test_other_texts_have_another_digest():
    digests = set()
    for texts in (["ab", "c"], ["a", "bc"], ["ab", "c", "d"]):
        reading = Reading(open_corpus(texts), Shard())
        assert list(reading)
        digests.add(reading.digest)
    assert len(digests) == 3


def test_a_block_names_the_lines_of_its_file(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n" + "\n\n".join(TEXTS), encoding="utf-8")
    second = list(Reading(open_corpus(path), Shard()))[1]
    assert second.texts.name(0) == f"text {BLOCK + 1} (line {2 * BLOCK + 2})"


def test_files_of_lines(tmp_path):
    for name, content in (
        ("a.jsonl", '{"text": "One."}\n\n{"text": "Two.", "more": 3}\n'),
        ("a.data", '{"text": "One."}\r\n\r\n{"text": "Two."}'),
        ("a.txt", "One.\n\nTwo.\n"),
    ):
        path = tmp_path / name
        path.write_bytes(content.encode())
        corpus = open_corpus(str(path))
        assert list(corpus.lines()) == list(corpus.lines()) == [Line(1, "One."), Line(3, "Two.")]


def test_a_stream_is_read_and_a_file_no_further_than_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"One.\nTwo.\n")))
    assert [line.text for line in open_corpus("-").lines()] == ["One.", "Two."]
    path = tmp_path / "corpus.txt"
    path.write_text("text\n" * 100_000, encoding="utf-8")
    lines = open_corpus(path).lines()
    assert next(lines) == Line(1, "text")
    lines.close()


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "corpus.parquet"
    parquet.write_table(pyarrow.table({"text": TEXTS, "number": range(150)}), path)
    assert [line.text for line in open_corpus(path).lines()] == TEXTS


def test_a_data_set_of_a_hub(monkeypatch):
    asked = []

    def load_dataset(name, *, split, streaming):
        asked.append((name, split, streaming))
        return [{"body": "One."}, {"body": " "}, {"body": "Two."}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    corpus = open_corpus("someone/stories:test:body")
    assert list(corpus.lines()) == [Line(1, "One."), Line(3, "Two.")]
    assert asked == [("someone/stories", "test", True)]
    with pytest.raises(LoadError, match=r"row 1 has no text in 'text': it has body"):
        list(open_corpus("someone/stories").lines())


def test_a_data_set_whose_connection_breaks_or_whose_library_is_not_there(monkeypatch):
    class Broken:
        def __iter__(self):
            yield {"text": "One."}
            raise ConnectionError("the peer\nhung up")

    library = SimpleNamespace(load_dataset=lambda name, **options: Broken())
    monkeypatch.setitem(sys.modules, "datasets", library)
    lines = open_corpus("someone/stories").lines()
    assert next(lines) == Line(1, "One.")
    with pytest.raises(LoadError, match="someone/stories, split train: the peer hung up"):
        next(lines)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LoadError, match=r"no file someone/stories, .*attnviz\[data\]"):
        open_corpus("someone/stories")


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "corpus"
    for content, said in (
        (b"One.\n\xff\xfe\n", "line 2 is not UTF-8"),
        (b'{"text": "One."}\n{"body": 1}\n', "line 2 is damaged"),
        (b"x" * (2**22 + 1), r"line 1 has more than 4,194,304 bytes: cut it"),
    ):
        path.write_bytes(content)
        with pytest.raises(LoadError, match=said):
            list(open_corpus(path).lines())


def test_what_is_no_corpus_and_no_shard(tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n", encoding="utf-8")
    with pytest.raises(UsageError, match="has no text"):
        list(Reading(open_corpus(tmp_path / "empty.txt"), Shard()))
    with pytest.raises(UsageError, match="is a directory"):
        open_corpus(tmp_path)
    with pytest.raises(LoadError, match="no such file"):
        open_corpus(tmp_path / "absent.txt")
    with pytest.raises(UsageError, match="expected at least one text"):
        open_corpus([])
    for typed in ("4/4", "1", "a/b", "-1/4", "1/0", "/", "0/4/2", ""):
        with pytest.raises(UsageError, match="expected K/N"):
            read_shard(typed)


def test_torchrun_gives_the_shard(monkeypatch):
    assert read_shard(None, Path("a.record")) == (Shard(0, 1), Path("a.record"))
    for name, value in (("RANK", "2"), ("WORLD_SIZE", "3"), ("TORCHELASTIC_RUN_ID", "none")):
        monkeypatch.setenv(name, value)
    assert read_shard(None, Path("to/a.record")) == (Shard(2, 3), Path("to/a-2.record"))
    assert read_shard(None) == (Shard(2, 3), None)
    assert read_shard("0/4", Path("a.record")) == (Shard(0, 4), Path("a.record"))


def test_a_large_file_or_a_data_set_is_a_corpus(tmp_path):
    small, large, rows = (tmp_path / name for name in ("a.txt", "b.txt", "c.parquet"))
    small.write_bytes(b"a\n" * 2**21)
    large.write_bytes(b"a\n" * 2**21 + b"a")
    rows.touch()
    assert [is_corpus(file) for file in (small, large, rows)] == [False, True, True]
    named = ("owner/name", "owner/name:train:text", "name", "-", "no/such.txt", "/no/such")
    assert [is_corpus(Path(one)) for one in named] == [True, True, False, False, False, False]
    assert not is_corpus(tmp_path)
