"""Token texts follow the tokenizer's decoder and lose no byte of the text."""

import re
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from attnviz.models.pieces import as_spelled, reader_by, special_ids, token_texts, tokens_of, undone
from attnviz.records import Tokens

METASPACE = ("▁The", "▁", "cat", "<0xE2>", "Ġ"), (" The", " ", "cat", "<0xE2>", "Ġ")
LLAMA = (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse())
OTHERS = ("walk", "##ing", "cat</w>", "Ġcat", "▁cat")


def tokenizer_with(decoder):
    tokenizer = Tokenizer(models.BPE())
    if decoder is not None:
        tokenizer.decoder = decoder
    return tokenizer


@cache
def byte_level():
    """Trained on a little Korean and emoji, so that characters are split in many places."""
    tokenizer = tokenizer_with(decoders.ByteLevel())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=307,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["나는 오늘 학교에 갔다 .", "the cat sat 🐈🐈‍⬛ on the mat"], trainer
    )
    return tokenizer


def test_byte_level_pieces_become_text_with_their_space():
    pieces = ["The", "Ġcat", "Ċ", "Ã©", "Ġí", "ķ", "ľê", "ê°Ģí"]
    assert token_texts(byte_level(), pieces) == (
        *("The", " cat", "\n", "é", " <0xED>", "<0x95>", "<0x9C><0xEA>", "가<0xED>"),
    )


@settings(max_examples=200)
@given(
    st.text(
        st.characters(exclude_categories=("Cs",))
        | st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3)
        | st.sampled_from("🐈‍⬛👩🏽\u200d🚀 \n")
    ).filter(lambda text: "<0x" not in text and "<|" not in text)
)
def test_byte_level_texts_give_back_every_byte(text):
    tokenizer = byte_level()
    pieces = tokenizer.encode(text).tokens
    parts = enumerate(re.split(r"<0x(..)>", "".join(token_texts(tokenizer, pieces))))
    back = [bytes.fromhex(part) if at % 2 else part.encode() for at, part in parts]
    assert b"".join(back) == text.encode()


def test_special_and_added_tokens_stay_verbatim():
    tokenizer = tokenizer_with(decoders.ByteLevel())
    tokenizer.add_special_tokens(["<|Ġend|>"])
    tokenizer.add_tokens([AddedToken("한국"), AddedToken("▁▁")])
    pieces = ["<|Ġend|>", "한국", "▁▁", "Ġend"]
    assert token_texts(tokenizer, pieces) == ("<|Ġend|>", "한국", "▁▁", " end")


def sequence(*parts):
    return decoders.Sequence([*parts])


@pytest.mark.parametrize(
    ("decoder", "pieces", "texts"),
    [
        (decoders.Metaspace(), *METASPACE),
        (sequence(*LLAMA, decoders.Strip(" ", 1, 0)), *METASPACE),
        (sequence(sequence(decoders.ByteLevel()), LLAMA[2]), ("Ġcat", "▁cat"), (" cat", "▁cat")),
        (decoders.WordPiece(), OTHERS, OTHERS),
        (None, OTHERS, OTHERS),
        (decoders.Replace(Regex("a+"), "b"), ("aa",), ("aa",)),  # no business of a single piece
    ],
)
def test_spaces_are_those_of_the_decoder_and_other_pieces_stay(decoder, pieces, texts):
    assert token_texts(tokenizer_with(decoder), [*pieces]) == texts


def test_a_decoder_written_in_python_tells_no_rules():
    class Shout:
        def decode_chain(self, tokens):
            return [token.upper() for token in tokens]

    decoder = decoders.Decoder.custom(Shout())
    assert token_texts(tokenizer_with(decoder), ["Ġcat"]) == ("Ġcat",)


# Marks that no decoder undoes piece by piece


def test_the_end_of_a_word_is_a_blank_behind_it():
    tokenizer = tokenizer_with(decoders.BPEDecoder(suffix="</w>"))
    tokenizer.add_special_tokens(["<s>"])
    assert token_texts(tokenizer, ["<s>", "c", "at</w>", ".</w>"]) == ("<s>", "c", "at ", ". ")
    clip = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    clip.decoder = decoders.ByteLevel()
    assert token_texts(clip, ["cafÃ©</w>", "!</w>"]) == ("café ", "! ")


@pytest.mark.parametrize(
    ("vocabulary", "pieces", "texts"),
    [
        (("c@@", "at", "<s>"), ("c@@", "at", "sat"), ("c", "at ", "sat ")),
        (("at</w>", "c"), ("c", "at</w>"), ("c", "at ")),
        (("▁c", "at"), ("▁c", "at", "a@@"), (" c", "at", "a@@")),
        (tuple(map(chr, range(256))), ("a", "ë", "\x82"), ("a", "<0xEB>", "<0x82>")),
        (("Ġ", "Ã©"), ("Ã©", "Ġat"), ("é", " at")),
    ],
)
def test_a_tokenizer_in_python_is_told_by_its_vocabulary(vocabulary, pieces, texts):
    read = reader_by(vocabulary, {"at@@"})
    assert tuple(map(read, ("<s>", "at@@", *pieces))) == ("<s>", "at@@", *texts)


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ("<s> The Ġcat Ċ ĠÃ©t", ("<s>", "The", " cat", "\n", " ét")),
        ("ëĤĺ ëĬĶ", ("나", "는")),
        ("ë \x82 \x98", ("<0xEB>", "<0x82>", "<0x98>")),
        ("[CLS] ▁The ▁c at", ("[CLS]", " The", " c", "at")),
        ("the</w> c at</w>", ("the ", "c", "at ")),
        ("cafÃ©</w> c at</w>", ("café ", "c", "at ")),
        ("the c@@ at", ("the ", "c", "at ")),
        ("the play ##ing [SEP]", ("the", "play", "##ing", "[SEP]")),
        ("Ġorġ café naïve 나는 @@ a@@b", ("Ġorġ", "café", "naïve", "나는", "@@", "a@@b")),
    ],
)
def test_pieces_of_an_unknown_tokenizer_bear_its_marks(pieces, texts):
    assert undone(pieces.split(" ")) == texts


def test_an_added_token_that_the_text_spells_is_not_doubled():
    tokens = Tokens((1, 1, 5, 2, 2), ("[CLS]", "[CLS]", "a", "[SEP]", "[SEP]"), (False,) * 5)
    kept = as_spelled(tokens, (1, 0, 0, 0, 1), {1, 2})
    assert (kept.ids, kept.special) == ((1, 5, 2), (True, False, True))
    pair = Tokens((1, 5, 3, 2, 2, 6, 2), ("",) * 7, (False,) * 7)  # RoBERTa's, a typed </s>
    kept = as_spelled(replace(pair, ids=(1, 5, 2, 2, 2, 6, 2)), (1, 0, 0, 1, 1, 0, 1), {1, 2})
    assert (kept.ids, kept.kept) == ((1, 5, 2, 2, 6, 2), (0, 1, 2, 4, 5, 6))
    alone = Tokens((1, 5), ("<s>", "a"), (False, False))
    assert as_spelled(alone, (1, 0), {1}).ids == (1, 5)


def test_a_letter_that_a_model_does_not_read_is_shown_as_unknown():
    """The encoding itself has the letter."""
    known = [("<unk>", 0.0), ("a", -1.0), ("b", -1.0)]
    tokenizer = Tokenizer(models.Unigram(known, unk_id=0))
    found = tokenizer.encode("aEb")
    assert found.tokens == ["a", "E", "b"]
    assert tokens_of("a model", tokenizer, found, 3, ()).texts == ("a", "<unk>", "b")


def test_tokens_of_words_are_not_special():
    texts = ("<s>", "<unk>", "<mask>", "<extra_id_0>", "<|end|>")
    added = {at: AddedToken(text, special=True) for at, text in enumerate(texts)}
    assert special_ids(added, {"mask": 2, "unk": 4}) == {0}
    assert special_ids(added, {"mask": 2, "unk": 4, "eos": 4}) == {0, 4}
