"""Annotated sentences: those that ship, files good and bad, words in tokens, and hits by hand."""

import re
from pathlib import Path

import numpy as np
import pytest

import attnviz
from attnviz.errors import LoadError
from attnviz.inspect.patterns import probes
from attnviz.inspect.patterns.score import score_patterns
from attnviz.measures.registry import RELATIONS
from attnviz.measures.sinks import visible_keys
from attnviz.records import Input, Tokens

from .conftest import ScriptedModel, even

HEADER = "text\tpairs\n"
SUBJECT, OBJECT = probes.WordPair("subject", 0, 1), probes.WordPair("object", 2, 1)
EVERY, EARLIER = visible_keys(6, 6, False), visible_keys(6, 6, True)
ANIMAL = "The animal didn't sleep."
IN_PIECES = ((0,), (1, 2), (3, 4), (5,))


def word(sentence, index):
    place = sentence.words[index]
    return sentence.text[place.start : place.stop]


def test_the_shipped_sentences_are_enough():
    sentences = probes.shipped_sentences()
    assert len(sentences) >= 60
    counts = dict.fromkeys(RELATIONS, 0)
    for sentence in sentences:
        for pair in sentence.pairs:
            counts[pair.relation] += 1
    assert min(counts.values()) >= 30


def test_the_shipped_sentences_pair_words_of_the_right_kind():
    """A slip of an index would show: determiners and auxiliaries are few, pronouns fewer."""
    words = {name: set() for name in RELATIONS}
    for sentence in probes.shipped_sentences():
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


def write(path, content):
    file = path / "own.tsv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_a_file_of_ones_own(tmp_path):
    content = "# by me\n\npairs\ttext\nsubject:0>1 case:2>1\tCats eat fish.\n"
    (sentence,) = probes.read_probe_file(write(tmp_path, content))
    assert sentence.pairs == (probes.WordPair("subject", 0, 1), probes.WordPair("case", 2, 1))
    assert [word(sentence, index) for index in range(3)] == ["Cats", "eat", "fish"]
    assert sentence.line == 4


def test_a_language_without_blanks_names_its_words(tmp_path):
    content = "\ufefftext\twords\tpairs\r\n猫が魚を食べた\t猫 が 魚 を 食べた\tsubject:0>4\r\n"
    (sentence,) = probes.read_probe_file(write(tmp_path, content))
    assert [word(sentence, index) for index in range(5)] == ["猫", "が", "魚", "を", "食べた"]
    assert sentence.pairs == (probes.WordPair("subject", 0, 4),)


def test_the_examples_of_the_documented_format_can_be_read(tmp_path):
    text = (Path(attnviz.__file__).parent / "data" / "probes" / "README.md").read_text("utf-8")
    examples = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        assert len(probes.read_probe_file(write(tmp_path, example))) == 1


def test_words_of_marks_alone_keep_them(tmp_path):
    (sentence,) = probes.read_probe_file(write(tmp_path, HEADER + "“Yes” — no\tsubject:0>2\n"))
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
def test_a_bad_line_is_named_with_its_reason(name, tmp_path):
    content, line, reason = BAD[name]
    with pytest.raises(LoadError, match=rf"own\.tsv,? line {line}\b") as raised:
        probes.read_probe_file(write(tmp_path, content))
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", ["", "# nothing\n", HEADER])
def test_a_file_without_a_sentence(content, tmp_path):
    with pytest.raises(LoadError, match="holds no annotated sentence"):
        probes.read_probe_file(write(tmp_path, content))


def test_weight_to_a_word_is_the_sum_and_from_it_the_mean():
    """Three tokens, the last two of them one word."""
    weights = np.array([[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.2, 0.6]]])
    by_word = probes.word_weights(weights, [[0], [1, 2]])
    assert by_word[0] == pytest.approx(np.array([[1, 0], [0.35, 0.65]]))
    assert by_word.sum(-1) == pytest.approx(1)


def sentence(*pairs):
    text = "cats eat fish ."
    return probes.AnnotatedSentence(text, (range(4), range(5, 8), range(9, 13)), pairs, 2)


TOKENS = Tokens(
    (0, 1, 2, 3, 4, 5),
    ("<s>", "ca", "ts", " eat", " fish", " ."),
    (True, False, False, False, False, False),
)


def looks(**at):
    weights = np.eye(6)
    for query, key in at.items():
        weights[int(query[1:])] = np.eye(6)[key]
    return weights[None]


def hits(view, weights, seen=EVERY):
    found, _ = view.find(weights, seen)
    return {relation: float(found[at][0]) for at, (relation, _, _) in enumerate(view.pairs)}


def test_pairs_are_read_from_the_dependent_to_its_head():
    view = probes.WordView(sentence(SUBJECT, OBJECT), TOKENS, causal=False)
    assert view.units == [[1, 2], [3], [4], [5]]  # the mark is a word of its own
    assert hits(view, looks(q1=3, q2=3, q4=3)) == {"subject": 1, "object": 1}
    assert hits(view, looks(q1=3, q2=3, q4=5)) == {"subject": 1, "object": 0}


def test_a_causal_model_reads_pairs_backwards_where_it_must():
    view = probes.WordView(sentence(SUBJECT, OBJECT), TOKENS, causal=True)
    assert view.pairs == [("subject", 1, 0), ("object", 2, 1)]
    assert hits(view, looks(q3=2, q4=3), EARLIER) == {"subject": 1, "object": 1}


@pytest.mark.parametrize(
    ("row", "share"),
    [
        ([0.5, 0, 0, 0.1, 0.4, 0], 1),  # most on <s>, then on itself, then on the verb
        ([0.6, 0, 0, 0, 0.4, 0], 0),  # nothing is left: no hit
        ([0, 0.25, 0.25, 0.5, 0, 0], 0.5),  # words that tie
    ],
)
def test_the_diagonal_and_special_tokens_are_left_out(row, share):
    weights = np.zeros((1, 6, 6))
    weights[0, 4] = row
    view = probes.WordView(sentence(OBJECT), TOKENS, causal=True)
    assert hits(view, weights, EARLIER) == {"object": share}


def test_the_best_fixed_offset_or_even_attention_is_the_base_rate():
    assert probes.relation_base_rate([-1, -1, -2], [0, 0, 0]) == pytest.approx(2 / 3)
    assert probes.relation_base_rate([-1, -2, -3], [0.9, 0.9, 0]) == pytest.approx(0.6)
    assert probes.relation_base_rate([], []) == 0


def test_even_attention_prefers_words_of_many_tokens():
    view = probes.WordView(sentence(SUBJECT), TOKENS, causal=True)
    _, chance = view.find(np.ones((1, 6, 6)) / 6, EARLIER)
    assert chance[0] == 1
    view = probes.WordView(sentence(OBJECT), TOKENS, causal=False)
    _, chance = view.find(np.ones((1, 6, 6)) / 6, EVERY)
    assert chance[0] == 0  # the cats have two tokens


def test_words_out_of_a_window_are_no_pair_and_no_chance():
    view = probes.WordView(sentence(SUBJECT, OBJECT), TOKENS, causal=True)
    near = EARLIER & ~np.tri(6, k=-2, dtype=bool)  # itself and the token before
    _, chance = view.find(np.ones((1, 6, 6)) / 6, near)
    assert [chance[0][0], chance[1][0]] == [1, 1]
    for values in view.find(np.ones((1, 6, 6)) / 6, np.eye(6, dtype=bool)):
        assert all(np.isnan(own).all() for own in values.values())


def test_words_that_the_tokens_do_not_show():
    other = Tokens((1, 2), ("x", "y"), (False, False))
    assert not probes.WordView(sentence(SUBJECT), other, causal=True).fits


def test_a_head_of_a_persons_own_relation_is_named():
    """Each text is ``a x b y``: the last word belongs to the first."""
    letters = "abcdefghijklmnop"
    own = [
        probes.AnnotatedSentence(
            f"{letters[i]} x b y" + " z" * (i % 3),
            (range(1), range(2, 3), range(4, 5), range(6, 7)),
            (probes.WordPair("frame", 3, 0), probes.WordPair("frame", 2, 1)),
            i + 2,
        )
        for i in range(len(letters))
    ]

    def framing(tokens):
        weights = np.tril(np.ones((len(tokens),) * 2))
        weights[4, 1] = weights[3, 2] = 100
        return weights / weights.sum(1, keepdims=True)

    model = ScriptedModel([[framing, even]])
    text = Input(model.encode("one two three four"))
    report = score_patterns(model, text, sentences=own)
    head, other = report.heads
    assert head.label == "frame"
    assert head.scores["frame"] == 1
    assert head.base_rate["frame"] == 0.5
    assert head.measured["frame"] == 2 * len(letters)
    assert other.label is None
    assert report.labels[-1] == "frame"


def test_weights_that_are_no_numbers_are_no_miss():
    view = probes.WordView(sentence(OBJECT), TOKENS, causal=True)
    assert np.isnan(hits(view, np.full((1, 6, 6), np.nan))["object"])


def tokens(*texts, special=()):
    marked = tuple(place in special for place in range(len(texts)))
    return Tokens(tuple(range(len(texts))), texts, marked)


def ranges(text, *words):
    return [range(text.index(word), text.index(word) + len(word)) for word in words]


@pytest.mark.parametrize(
    ("text", "texts", "special", "expected"),
    [
        (ANIMAL, ("The", " ani", "mal", " didn", "'t", " sleep", "."), (), IN_PIECES),
        (ANIMAL, ("[CLS]", "the", "ani", "##mal", "didn", "'", "t", "sleep", ".", "[SEP]"), (0, 9),
         ((1,), (2, 3), (4, 5, 6), (7,))),
        (ANIMAL, (" The", " anim", "al", " did", "n't", " sleep", "."), (), IN_PIECES),
        (ANIMAL, ("The", "[UNK]", "didn't", "sleep."), (), ((0,), (1,), (2,), (3,))),
        (ANIMAL, ("The", "animal", "[UNK]", "sleep", "."), (), ((0,), (1,), (2,), (3,))),
        (ANIMAL, ("[UNK]", "animal", "didn't", "[UNK]"), (), ((0,), (1,), (2,), (3,))),
        ("Élève fatigué", ("eleve", "fat", "##igue"), (), ((0,), (1, 2))),
        ("New York is big", ("New York", " is", " big"), (), ((0,), (), (1,), (2,))),
        ("The animal", ("one", "two", "three"), (), None),
        ("The animal", ("The",), (), None),
    ],
)  # fmt: skip
def test_words_of_a_sentence(text, texts, special, expected):
    words = ranges(text, *re.findall(r"[\w']+", text))
    assert probes.word_pieces(tokens(*texts, special=special), text, words) == expected


def test_bytes_that_are_no_characters_alone():
    text = "猫が寝た"
    words = ranges(text, "猫", "が", "寝た")
    found = probes.word_pieces(
        tokens("<0xE7><0x8C>", "<0xAB>", "が", "寝", "<0xE3><0x81>", "<0x9F>"), text, words
    )
    assert found == ((0, 1), (2,), (3, 4, 5))
