"""Nothing that a stranger wrote can act on the terminal, and every label is as wide as it says."""

import io
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from attnviz.draw.blocks import Block, text_line
from attnviz.draw.labels import (
    at_blanks,
    fit,
    split_into_bytes,
    token_label,
    token_labels,
    visible,
    width,
    word_label,
    wrap,
)
from attnviz.measures.words import word_text
from attnviz.records import Tokens

ACTING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
ENCODINGS = ["utf-8", "ascii", "latin-1", "cp1252", "cp437", "euc-kr"]

# Half of what is drawn is the worst there is: controls, bidi marks, joiners, lone surrogates.
worst = st.sampled_from(
    "\x00\x07\x08\t\n\r\x1b\x7f\x80\x85\x9b\x9d\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2028\u2029"
    "\u202a\u202e\u2066\u2069\ufe0e\ufe0f\ufeff\ufff9\ufffe\U000e0001\U000e0041\ud800\udfff\ue000"
    "\u0301\u20e3\u0c4d한漢ｱ👩🏽🚀🇰🇷☠❤[]:/<>0xE2 _"
)
strange = st.text(worst | st.characters(exclude_categories=()), max_size=12)


def acts(text):
    return [
        character
        for character in text
        if unicodedata.category(character) in ACTING or unicodedata.bidirectional(character) in BIDI
    ]


@given(strange, st.sampled_from(ENCODINGS))
@example("\x1b]0;title\x07", "utf-8")
@example("a\u202eb\u2066c", "utf-8")
@example("👩\u200d🚀❤\ufe0f", "utf-8")
@example("\ud83d", "utf-8")
def test_no_label_acts_and_every_label_can_be_written(text, encoding):
    for shown in (visible(text, encoding), token_label(text, encoding), word_label([text])):
        assert not acts(shown)
        assert not set(shown) & set("\n\r\t\x1b")
    visible(text, encoding).encode(encoding)
    token_label(text, encoding).encode(encoding)
    assert width(token_label(text, encoding)) > 0


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (" cat", "cat"),
        ("a b", "a b"),
        (" ", "␣"),
        ("", "∅"),
        ("\n", "⏎"),
        ("\t", "⇥"),
        ("\x1b[31m", "␛[31m"),
        ("\x7f", "␡"),
        ("\x9b", "<U+009B>"),
        ("\u202e", "<U+202E>"),
        ("\u200d", "<U+200D>"),
        ("👩\u200d🚀", "👩🚀"),
        ("\u0301", "◌\u0301"),
        ("🇰🇷", "ＫＲ"),
        ("👍🏽", "👍"),
        ("<0xED>", "<ED>"),
        ("<0xed><0x95>", "<ED 95>"),
        ("<0xZZ>", "<0xZZ>"),
        ("\ud800", "<U+D800>"),
        ("[red]", "[red]"),
    ],
)
def test_token_labels_by_hand(text, label):
    assert token_label(text) == label


def test_what_a_stream_cannot_carry_is_escaped():
    assert token_label("é", "ascii") == r"\xe9"
    assert token_label("é", "latin-1") == "é"
    assert token_label("한", "cp1252") == r"\ud55c"
    assert token_label("🎉", "ascii") == r"\U0001f389"
    assert token_label(" ", "ascii") == r"\u2423"
    assert visible("\U0001f3fb") == "<U+1F3FB>"  # a skin tone without a skin
    assert visible("👍\U0001f3fb") == "👍"


def test_pieces_make_one_word():
    """Bytes become characters again, and those are no less strange than others."""
    assert word_label([" tire", "d"]) == "tired"
    assert word_label(["<0xEC>", "<0x98>", "<0xA4>"]) == "오"
    assert word_label([" ", "<0xEC>", "<0x98>"]) == "<EC 98>"
    assert word_label(["<0x1B>", "[31m"]) == "␛[31m"
    assert word_label(["<0xE2><0x80>", "<0xAE>"]) == "<U+202E>"


def test_names_of_special_tokens_are_cut_and_those_of_the_ends_short():
    tokens = Tokens(
        (0, 1, 2), ("<|im_start|>", " unbelievable", "<s>"), special=(True, False, True)
    )
    assert token_labels(tokens) == ("<|im_st…", "unbelievable", "<s>")
    assert token_labels(tokens, "ascii") == ("<|im_st~", "unbelievable", "<s>")
    for begin, end, shown in (
        ("<|endoftext|>", "<|endoftext|>", "<eos>"),
        ("<|begin_of_text|>", "<|end_of_text|>", "<eos>"),
        ("<｜begin▁of▁sentence｜>", "</s>", "</s>"),
    ):
        texts = (begin, "a", end)
        assert token_labels(Tokens((0, 1, 2), texts, (True, False, True))) == ("<bos>", "a", shown)
        plain = Tokens((0, 1, 2), texts, (False, False, False))  # a text that has them as words
        assert token_labels(plain)[0] == begin


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        ((" <0xEA>", "<0xB0>", "<0x94>"), ("갔 1/3", "갔 2/3", "갔 3/3")),
        (("<0xEB><0x8B>", "<0xA4>", " a"), ("다 1/2", "다 2/2", "a")),
        (("다<0xEA>", "<0xB0><0x94>"), ("다갔 1/2", "갔 2/2")),
        (("<0xF0><0x9F><0x90>", "<0xB1>"), ("🐱 1/2", "🐱 2/2")),
        (("<0xED>", "a", "<0x95>"), ("<ED>", "a", "<95>")),
        (("<0xE2><0x80>", "<0xAE>"), ("<U+202E> 1/2", "<U+202E> 2/2")),
        (("\ud800<0xED>",), ("?<ED>",)),
    ],
)
def test_bytes_are_shown_as_the_character_that_they_are_part_of(texts, labels):
    count = len(texts)
    tokens = Tokens(tuple(range(count)), texts, (False,) * count)
    assert token_labels(tokens) == labels
    told = split_into_bytes(tokens)
    assert bool(told) == any("/" in label for label in labels)


def test_the_advice_on_bytes_names_the_first_word():
    texts = (" a", " <0xEA>", "<0xB0>", "<0x94>", "<0xEB><0x8B>", "<0xA4>", " b")
    told = split_into_bytes(Tokens(tuple(range(7)), texts, (False,) * 7))
    assert told == "this tokenizer splits 갔다 into bytes; a multilingual model shows words"


@given(strange.map(visible), st.integers(0, 12), st.sampled_from(["…", "~"]))
@example("한글", 3, "…")
@example("🎉🎉", 1, "…")
@example("", 4, "…")
def test_fit_is_exactly_as_wide_as_asked(text, cells, ellipsis):
    fitted = fit(text, cells, ellipsis)
    assert cell_len(fitted) == cells
    if cells and cell_len(text) > cells:
        assert fitted.endswith(ellipsis)
    elif cell_len(text) <= cells:
        assert fitted == text + " " * (cells - cell_len(text))


@given(strange.map(visible), st.integers(1, 6), st.integers(1, 4))
def test_pieces_of_a_label_fit_their_column(text, cells, lines):
    pieces = wrap(text, cells, lines)
    assert 1 <= len(pieces) <= lines
    assert all(cell_len(piece) <= cells for piece in pieces)
    whole = wrap(text, cells, len(text) + 1)
    if cells > 1:
        assert "".join(whole) == text
    if len(whole) > lines:
        assert pieces[-1].endswith("…")
        assert pieces[:-1] == whole[: lines - 1]


@given(st.lists(st.text("abcéß", min_size=1, max_size=9), max_size=9), st.integers(4, 20))
def test_lines_broken_at_blanks_hold_every_word_that_fits(words, cells):
    lines = at_blanks(" ".join(words), cells, "  ")
    assert all(width(line) <= cells for line in lines)
    kept = " ".join(lines).split()
    assert len(kept) == len(words)
    for word, shown in zip(words, kept, strict=True):
        assert shown == word or shown.endswith("…")
        assert shown == word or width(word) > cells - 2


def test_markup_stays_literal_on_a_console():
    """On a console with all of rich's readings of text switched on."""
    for text in ("[red]", ":smile:", "[/]", "[bold]x[/bold]", "\\[", "http://a.b"):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=True, color_system="truecolor", width=40)
        console.print(Block((text_line(token_label(text)),), 40), end="")
        assert stream.getvalue() == text + "\n"


def test_letters_that_a_tokenizer_took_apart_are_composed_on_the_screen():
    """BERT's normaliser leaves Korean syllables and accents decomposed; tokens stay as they are."""
    apart = unicodedata.normalize("NFD", "\ub9e4\ud2b8")
    tokens = Tokens((1, 2), (apart, f"##{apart}"), (False, False))
    assert len(apart) > 2
    assert token_label(apart) == "\ub9e4\ud2b8"
    assert word_label([word_text(tokens, range(2))]) == "\ub9e4\ud2b8" * 2
    assert token_labels(tokens) == ("\ub9e4\ud2b8", "\ub9e4\ud2b8")
    assert tokens.texts[0] == apart
