"""Where a text comes from, or many of them, or rows of a file, and what is none."""

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from attnviz.corpus import Reading, Shard, open_corpus
from attnviz.errors import LoadError, UsageError
from attnviz.texts import (
    BUILT_IN_TEXT,
    as_utf8,
    empty_note,
    natural_texts,
    read_rows,
    read_text,
    read_texts,
    read_texts_file,
)

ROWS = ["The cat, sat.", 'A "quoted"\nword.', "나는 오늘"]
JSON = '{"a": "one, \\"two\\"", "b": "3"}\n\n{"b": "é", "a": "x", "c": null}\n'
CSV = '\ufeffb,a\r\n3,"one, ""two"""\r\n\r\né,x\r\n'


def type_in(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "ascii"))


def test_a_text_is_taken_as_it_is(tmp_path, monkeypatch):
    """With its line ends, as UTF-8 whatever the stream and the locale say, without a mark."""
    path, text = tmp_path / "text.txt", " 나는 오늘\n학교에 갔다 .\r\n\n"
    path.write_bytes(text.encode())
    assert read_text(None, path) == read_text(text, None) == text
    path.write_bytes(b"\xef\xbb\xbfThe cat\n")
    assert read_text(None, path) == "The cat\n"
    mangled = "갔다".encode().decode("ascii", "surrogateescape")
    assert read_text(mangled, None) == "갔다"
    assert as_utf8(mangled, "--token") == "갔다"
    type_in(monkeypatch, "나는 오늘\n".encode())
    assert read_text("-", None) == "나는 오늘\n"
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        read_text("-", None)


def test_nothing_to_read(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    for text in ("", " ", "\t\n", "\r\n", "\u3000"):
        path.write_bytes(text.encode())
        type_in(monkeypatch, text.encode())
        for argument, file in ((text, None), (None, path), ("-", None)):
            with pytest.raises(UsageError, match="the text is empty: expected at least one word"):
                read_text(argument, file)


def test_one_text_that_can_be_read_is_expected(tmp_path):
    with pytest.raises(UsageError, match="--file PATH, or - to read standard input"):
        read_text(None, None)
    with pytest.raises(UsageError, match="give TEXT or --file, not both"):
        read_text("The cat", Path("text.txt"))
    for path, said in (
        (tmp_path / "absent.txt", r"cannot read .*: No such file or directory"),
        (tmp_path, r"cannot read .*: Is a directory"),
        (Path("a\x1bb"), "cannot read a␛b: No such file"),
    ):
        with pytest.raises(LoadError, match=said):
            read_text(None, path)


def test_what_is_not_utf8_names_the_byte(tmp_path, monkeypatch):
    path = tmp_path / "latin.txt"
    path.write_bytes("Das Mädchen".encode("latin-1"))
    with pytest.raises(LoadError, match=r"latin\.txt is not UTF-8: byte 6 is 0xe4; convert"):
        read_text(None, path)
    path.write_bytes(gzip.compress(b"A text."))
    with pytest.raises(LoadError, match="packed by gzip: unpack it first"):
        read_text(None, path)
    type_in(monkeypatch, b"\xff\xfea\x00")
    with pytest.raises(LoadError, match="standard input is not UTF-8: byte 1 is 0xff"):
        read_text("-", None)
    with pytest.raises(UsageError, match="the text is not UTF-8: byte 2 is 0x80"):
        read_text("a\udc80", None)


# Many texts


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


def test_the_built_in_texts_are_the_first_sentences_of_each_passage():
    texts = read_texts(None, None, None)
    assert texts.source == "10 built-in texts"
    assert len(set(texts.texts)) == 10
    for text, passage in zip(texts.texts, natural_texts(), strict=True):
        assert passage.startswith(text)
        assert text[-1] in '.?!"'
        assert 26 <= len(text.split()) <= 50
    assert 300 <= sum(len(text.split()) for text in texts.texts) <= 400
    for name in ("Captain Alder", "Mary", "Margaret"):
        assert BUILT_IN_TEXT.count(name) == 3


def test_one_text_names_its_source(tmp_path, monkeypatch):
    texts = read_texts("A text.", None, None)
    assert (texts.texts, texts.source, texts.name(0)) == (("A text.",), "", "the text")
    texts = read_texts(None, written(tmp_path, "one.txt", b"First line.\nSecond line.\n"), None)
    assert texts.texts == ("First line.\nSecond line.\n",)
    assert texts.source.endswith("one.txt")
    type_in(monkeypatch, b"From a pipe.\n")
    assert read_texts("-", None, None).source == "standard input"
    type_in(monkeypatch, b"one\ntwo\n")
    texts = read_texts_file(Path("-"), "--texts")
    assert (texts.texts, texts.source) == (("one", "two"), "standard input")


def test_one_text_a_line(tmp_path):
    path = written(tmp_path, "many", "one\r\n\n  \nzwei Löwen\n".encode())
    texts = read_texts(None, None, path)
    assert texts.texts == ("one", "zwei Löwen")
    assert texts.lines == (1, 4)
    assert texts.name(1) == "text 2 (line 4)"


def test_json_lines(tmp_path):
    """A brace in a file of another ending than theirs, which says so, is text."""
    for name in ("many.jsonl", "many.ndjson", "many"):
        path = written(tmp_path, name, b'{"text": "one", "id": 7}\n\n{"text": "t\\u00e9o"}\n')
        assert read_texts_file(path, "--texts").texts == ("one", "téo")
    path = written(tmp_path, "texts.jsonl", b'"one"\n"two"\n')
    assert read_texts_file(path, "--texts").texts == ("one", "two")
    path = written(tmp_path, "many.txt", b"{curly} start\nnext\n")
    assert read_texts_file(path, "--texts").texts == ("{curly} start", "next")


def test_a_damaged_line_is_named(tmp_path):
    for line in ('{"text": "cut', '{"words": "no text"}', '{"text": 3}', '["text"]'):
        path = written(tmp_path, "many.jsonl", f'{{"text": "one"}}\n\n{line}\n'.encode())
        with pytest.raises(LoadError, match=r"many\.jsonl line 3 is damaged: expected"):
            read_texts_file(path, "--texts")
    path = written(tmp_path, "many.txt", b"fine\nbad \xff byte\n")
    with pytest.raises(LoadError, match="line 2 is not UTF-8: byte 5 is 0xff"):
        read_texts_file(path, "--texts")


def test_a_file_without_a_text_and_two_sources_are_refused(tmp_path):
    for content in (b"", b"\n \n"):
        path = written(tmp_path, "none.txt", content)
        with pytest.raises(UsageError, match=r"--reference .*none\.txt has no text"):
            read_texts_file(path, "--reference")
    with pytest.raises(UsageError, match="one source"):
        read_texts("A text.", None, tmp_path / "many")
    with pytest.raises(UsageError, match="one text"):
        read_texts("A text.", tmp_path / "one", None)


# Tables


@pytest.mark.parametrize(
    ("name", "content", "numbers"),
    [
        (
            "t.csv",
            'id,text\n1,"The cat, sat."\n\n2,"A ""quoted""\nword."\n3,나는 오늘\n',
            (2, 4, 6),
        ),
        ("t.csv", 'text;id\nThe cat, sat.;1\n"A ""quoted""\nword.";2\n나는 오늘;3\n', (2, 3, 5)),
        (
            "t.tsv",
            'id\ttext\n1\tThe cat, sat.\n2\t"A ""quoted""\nword."\n3\t나는 오늘\n',
            (2, 3, 5),
        ),
        ("t.json", json.dumps(ROWS, indent=1), (1, 2, 3)),
        ("t", json.dumps([{"id": 1, "text": row} for row in ROWS]), (1, 2, 3)),
    ],
)
def test_a_table_is_its_column_of_texts(tmp_path, name, content, numbers):
    path = written(tmp_path, name, content.encode())
    texts = read_texts_file(path, "--texts")
    assert (list(texts.texts), texts.lines) == (ROWS, numbers)
    assert [line.text for line in open_corpus(path).lines()] == ROWS


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "id,text\n1,One.\n2,\n\n3, \n4,Two.\n"),
        ("t.csv", 'text\nOne.\n""\n \nTwo.\n\n'),
        ("t.json", '["One.", null, "", "Two."]'),
        ("t.json", '[{"text": "One."}, {"text": NaN}, {"text": " "}, {"text": "Two."}]'),
        ("t.jsonl", '{"text": "One."}\n{"text": null}\n\n{"text": ""}\n{"text": "Two."}\n'),
    ],
)
def test_rows_without_a_text_are_left_out_and_counted(tmp_path, name, content):
    path = written(tmp_path, name, content.encode())
    texts, reading = read_texts_file(path, "--texts"), Reading(open_corpus(path), Shard())
    assert [len(block.lines) for block in reading] == [2]
    assert (texts.texts, texts.notes) == (("One.", "Two."), empty_note(reading.empty))
    assert "2 rows" in texts.notes[0]


def test_another_column_is_chosen_and_named(tmp_path):
    path = written(tmp_path, "t.csv", b"body,text\nthis,that\n")
    texts = read_texts_file(path, "--texts", "body")
    assert (texts.texts, texts.source) == (("this",), f"{path}, column body")
    assert open_corpus(path).source == f"{path}, column text"


@pytest.mark.parametrize(
    ("name", "content", "column", "said"),
    [
        ("t.csv", "id,body\n1,x\n", None, "row 2 has no text in 'text': it has id, body; name"),
        ("t.json", '[{"body": "x"}]', "text", "row 1 has no text in 'text': it has body"),
        ("t.json", "[1]", None, "row 1 is neither a text nor an object"),
        ("t.json", '"x"', None, "is neither a JSON array nor JSON lines"),
        ("t.csv", 'text\n"x\n', None, "line 2 is not CSV"),
        ("t.txt", "x\n", "text", "has one text per line and no columns: leave out --column"),
    ],
)
def test_a_table_that_is_unclear_is_refused(tmp_path, name, content, column, said):
    with pytest.raises((LoadError, UsageError), match=said):
        read_texts_file(written(tmp_path, name, content.encode()), "--texts", column)


def test_a_bracket_begins_a_text_that_is_no_array(tmp_path):
    path = written(tmp_path, "t", b"[CLS] The cat\n[1] A note\n")
    assert read_texts_file(path, "--texts").texts == ("[CLS] The cat", "[1] A note")


def test_prompts_are_a_column_beside_others(tmp_path):
    path = written(tmp_path, "t.csv", b"id,text,answer\n1,The cat,sat\n")
    for column in (None, "text"):
        rows = read_rows(path, "--texts", ("prompt",), ("answer", "foil"), column)
        assert rows.rows == ({"prompt": "The cat", "answer": "sat"},)


@pytest.mark.parametrize(
    ("name", "content"), [("r.jsonl", JSON), ("r", JSON), ("r.csv", CSV), ("r.txt", CSV)]
)
def test_json_lines_and_csv_are_the_same(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode())
    found = read_rows(path, "--rows", ["a"], ["b", "c"])
    assert found.rows == ({"a": 'one, "two"', "b": "3"}, {"a": "x", "b": "é"})
    assert found.lines == ((1, 3) if content is JSON else (2, 4))
    assert found.source == str(path)


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ("", UsageError, "is empty: expected rows with a"),
        ('{"a": "x"}\n{"a": \n', LoadError, "line 2 is not JSON: fix or remove"),
        ('{"a": "x", "d": "y"}\n', UsageError, "line 1 has 'd': expected a, b and nothing else"),
        ('{"a": 0.3}\n', UsageError, "line 1: 'a' is no text"),
        ('{"b": "x"}\n', UsageError, "line 1 has no a: expected a"),
        ("a,b\nx\n", LoadError, "line 2 has 1 column, the first line names 2"),
        ('a\n"x\n', LoadError, "line 2 is not CSV"),
        ("a,a\nx,y\n", LoadError, "line 1 names a column twice"),
        ("a\nx\n\xff", LoadError, "not UTF-8"),
    ],
)
def test_what_cannot_be_read(tmp_path, content, kind, said):
    path = tmp_path / "rows"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(kind, match=said):
        read_rows(path, "--rows", ["a"], ["b"])
    with pytest.raises(LoadError, match="cannot read"):
        read_rows(tmp_path / "gone", "--rows", ["a"])
