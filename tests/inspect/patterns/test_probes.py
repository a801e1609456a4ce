"""The texts that ship with the package, and a person's own files, good and bad."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import attnviz
from attnviz.engine.capture import capture
from attnviz.errors import LoadError
from attnviz.inspect.patterns.probes import read_probe_file, shipped_sentences
from attnviz.inspect.patterns.relations import WordPair
from attnviz.inspect.patterns.score import score_patterns
from attnviz.measures.one_text import head_scores
from attnviz.measures.registry import RELATIONS
from attnviz.models.bundled import Bundled
from attnviz.texts import natural_texts


def word(sentence, index: int) -> str:
    place = sentence.words[index]
    return sentence.text[place.start : place.stop]


def test_the_natural_text_is_several_passages() -> None:
    texts = natural_texts()
    assert len(texts) >= 8
    assert all(40 <= len(text.split()) <= 120 for text in texts)


def test_the_shipped_sentences_are_enough() -> None:
    sentences = shipped_sentences()
    assert len(sentences) >= 60
    counts = dict.fromkeys(RELATIONS, 0)
    for sentence in sentences:
        for pair in sentence.pairs:
            counts[pair.relation] += 1
    assert min(counts.values()) >= 30


def test_the_shipped_sentences_pair_words_of_the_right_kind() -> None:
    """A slip of an index would show: determiners and auxiliaries are few, pronouns fewer."""
    words: dict[str, set[str]] = {name: set() for name in RELATIONS}
    for sentence in shipped_sentences():
        for pair in sentence.pairs:
            words[pair.relation].add(word(sentence, pair.dependent).lower())
            near = pair.relation in ("determiner", "adjective")
            assert not near or 0 < pair.head - pair.dependent <= 3
    assert words["determiner"] <= {"the", "a", "an", "every", "some"}
    assert words["coreference"] <= {
        "it", "its", "he", "his", "she", "her", "they", "them", "their",
    }  # fmt: skip
    assert words["auxiliary"] <= {
        "didn't", "did", "has", "have", "had", "been", "will", "would", "is", "are", "was", "were",
        "can", "could", "must", "may", "should",
    }  # fmt: skip


HEADER = "text\tpairs\n"


def write(path: Path, content: str | bytes) -> Path:
    file = path / "own.tsv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    content = "# by me\n\npairs\ttext\nsubject:0>1 case:2>1\tCats eat fish.\n"
    (sentence,) = read_probe_file(write(tmp_path, content))
    assert sentence.pairs == (WordPair("subject", 0, 1), WordPair("case", 2, 1))
    assert [word(sentence, index) for index in range(3)] == ["Cats", "eat", "fish"]
    assert sentence.line == 4


def test_a_language_without_blanks_names_its_words(tmp_path: Path) -> None:
    content = "\ufefftext\twords\tpairs\r\n猫が魚を食べた\t猫 が 魚 を 食べた\tsubject:0>4\r\n"
    (sentence,) = read_probe_file(write(tmp_path, content))
    assert [word(sentence, index) for index in range(5)] == ["猫", "が", "魚", "を", "食べた"]
    assert sentence.pairs == (WordPair("subject", 0, 4),)


def test_the_examples_of_the_documented_format_can_be_read(tmp_path: Path) -> None:
    text = (Path(attnviz.__file__).parent / "data" / "probes" / "README.md").read_text("utf-8")
    examples = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        assert len(read_probe_file(write(tmp_path, example))) == 1


def test_words_of_marks_alone_keep_them(tmp_path: Path) -> None:
    (sentence,) = read_probe_file(write(tmp_path, HEADER + "“Yes” — no\tsubject:0>2\n"))
    assert [word(sentence, index) for index in range(3)] == ["Yes", "—", "no"]


BAD = {
    "a wrong column": ("text\trelation\nx y\ta:0>1\n", 1, "expected the names of the columns"),
    "no column names": ("The cat sat.\tsubject:1>2\n", 1, "expected the names of the columns"),
    "a column twice": ("text\ttext\tpairs\n", 1, "expected the names of the columns"),
    "too few columns": (HEADER + "The cat sat.\n", 2, "expected 2 columns (text, pairs)"),
    "too many columns": (HEADER + "a b\tx:0>1\tmore\n", 2, "got 3"),
    "an index too high": (HEADER + "# x\na b c\tx:1>3\n", 3, "the text has 3 (0 to 2)"),
    "a negative index": (HEADER + "The cat sat.\tsubject:-1>2\n", 2, "such as subject:1>3"),
    "no index": (HEADER + "The cat sat.\tsubject:cat>sat\n", 2, "such as subject:1>3"),
    "a word with itself": (HEADER + "The cat sat.\tsubject:1>1\n", 2, "with itself"),
    "another score's name": (HEADER + "The cat sat.\tprevious:1>2\n", 2, "another score's name"),
    "no pair": (HEADER + "The cat sat.\t \n", 2, "the column pairs is empty"),
    "no text": (HEADER + " \tsubject:0>1\n", 2, "the column text is empty"),
    "words of another text": (
        "text\twords\tpairs\n猫が魚\t猫 犬\tsubject:0>1\n", 2, "'犬' is not in the text",
    ),
    "no UTF-8": (b"text\tpairs\na b\tx:0>1\ncaf\xe9 b\tx:0>1\n", 3, "is not UTF-8: byte 4 is 0xe9"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named_with_its_reason(name: str, tmp_path: Path) -> None:
    content, line, reason = BAD[name]
    with pytest.raises(LoadError, match=rf"own\.tsv,? line {line}\b") as raised:
        read_probe_file(write(tmp_path, content))
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", ["", "# nothing\n", HEADER])
def test_a_file_without_a_sentence(content: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="holds no annotated sentence"):
        read_probe_file(write(tmp_path, content))


def test_texts_that_the_tokenizer_does_not_know_give_no_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All built-in texts go if commas and articles are unknown; random tokens stay."""
    monkeypatch.setattr("attnviz.records.UNKNOWN", (" the", ",", " of", " and", "."))
    model = Bundled()
    report = score_patterns(model, seeds=(0,), examples=False, no_known_labels=True)
    assert "natural text" not in [probe.name for probe in report.probes]
    assert "10 of 10 built-in texts left out" in " ".join(report.notes)
    assert report.not_measured["previous"] == "the tokenizer does not know the built-in texts"
    assert "next" not in report.not_measured
    own = model.encode("The cat, the dog, and the hen, and the fox.")
    alone = score_patterns(model, [own], examples=False, no_known_labels=True)
    assert all(head.label is None for head in alone.heads)
    assert "has a label: more than a tenth of the tokens are unknown" in alone.document().finding
    repeated = capture(model, model.encode("one, two, three, four, five, six, " * 3), kind="self")
    assert not any(head.label.is_finding for head in head_scores(repeated))
    monkeypatch.undo()
    assert any(head.label.is_finding for head in head_scores(repeated))
