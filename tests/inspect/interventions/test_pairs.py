"""Pairs of prompts: which tokens stand against which, and what says nothing of a pair."""

import json

import pytest

from attnviz.errors import UsageError
from attnviz.models.bundled import Bundled
from attnviz.prompts.request import Prompts, read_pairs
from attnviz.prompts.study import TokenPair, control_pairs, encode_pair
from attnviz.records import Tokens

from .make_pairs import FILE, made, written

MODEL = Bundled()


def test_the_built_in_pairs_are_those_that_the_script_makes():
    assert FILE.read_text(encoding="utf-8") == written()
    found = read_pairs(None, None, None)
    assert found.source == "40 built-in pairs"
    assert [pair._replace(name="") for pair in found.prompts] == [Prompts(**row) for row in made()]
    assert found.prompts[2].name == "pair 3 (line 3)"


@pytest.mark.parametrize("row", list(made()), ids=lambda row: row["answer"])
def test_a_built_in_pair_differs_in_one_token(row):
    pair = encode_pair(MODEL, Prompts(**row), None, None)
    (clean,), (corrupt,) = pair.changed
    assert clean == corrupt
    assert pair.clean.texts[clean].strip() == row["answer"]
    assert pair.corrupt.texts[corrupt].strip() == row["foil"]


def words(text):
    return Tokens(tuple(map(ord, text)), tuple(text), (False,) * len(text))


class Letters:
    """A model whose tokens are letters."""

    info, context, vocabulary = MODEL.info, 20, MODEL.vocabulary

    def encode(self, text, limit=None):
        return words(text)


@pytest.mark.parametrize(
    ("clean", "corrupt", "align", "places", "changed"),
    [
        ("abXcd", "abYcd", None, None, ((2,), (2,))),
        ("abXZcd", "abYcd", "start", (0, 1, 2, 4, 5), ((2, 3), (2,))),
        ("abXZcd", "abYcd", "end", (0, 1, 3, 4, 5), ((2, 3), (2,))),
        ("abXcd", "abYZcd", "start", (0, 1, 2, -1, 3, 4), ((2,), (2, 3))),
        ("abXcd", "abYZcd", "end", (0, 1, -1, 2, 3, 4), ((2,), (2, 3))),
        ("abcd", "abYcd", "start", (0, 1, -1, 2, 3), ((), (2,))),
        ("aab", "ab", "start", (0, 2), ((1,), ())),
        ("Xb", "YZb", "end", (-1, 0, 1), ((0,), (0, 1))),
    ],
)
def test_alignment(clean, corrupt, align, places, changed):
    pair = encode_pair(Letters(), Prompts(clean, corrupt), align, None)
    assert pair.places == places
    assert pair.changed == changed
    assert pair.engine.places == places


@pytest.mark.parametrize(
    ("clean", "corrupt", "align", "said"),
    [
        ("ab", "ab", None, "the same tokens"),
        ("abXZcd", "abYcd", None,
         r"have 6 and 5 tokens, expected the same number; they differ in X \| Z \(clean\), "
         r"Y \(corrupt\): .* --align start"),
        ("abXYZVWY", "abY", None, r"differ in X \| Y \| Z \| V \| … \(clean\), nothing"),
        ("abX", "abYZ", "start", r"needs a last token that both .* share, these end in X"),
        ("a" * 21, "b" * 21, None, "a prompt has 21 tokens, 'tiny' takes at most 20"),
    ],
)  # fmt: skip
def test_what_cannot_be_paired(clean, corrupt, align, said):
    with pytest.raises(UsageError, match=said):
        encode_pair(Letters(), Prompts(clean, corrupt), align, None)


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_a_control_has_another_source_and_the_same_base(direction):
    pairs = [encode_pair(MODEL, Prompts(**row), None, None) for row in made()]
    found, drawn = control_pairs(MODEL, pairs, direction, 8, 3)
    assert [place for place, _ in found] == list(range(40))
    assert drawn < 8
    for place, control in found:
        pair = pairs[place]
        bases = [(one.corrupt if direction == "denoise" else one.clean) for one in (pair, control)]
        sources = [
            (one.clean if direction == "denoise" else one.corrupt) for one in (pair, control)
        ]
        assert bases[0] == bases[1]
        (at,) = pair.changed[0]
        assert sources[0].ids[at] != sources[1].ids[at]
    assert (found, drawn) == control_pairs(MODEL, pairs, direction, 8, 3)


def test_the_control_of_one_pair_draws_the_tokens_that_differ():
    pair = encode_pair(MODEL, Prompts(**json.loads(written().splitlines()[0])), None, None)
    found, drawn = control_pairs(MODEL, [pair], "denoise", 8, 0)
    assert (len(found), drawn) == (8, 8)
    (at,) = pair.changed[0]
    for _, control in found:
        assert control.corrupt == pair.corrupt
        assert [
            place
            for place, ids in enumerate(zip(control.clean.ids, pair.clean.ids, strict=True))
            if ids[0] != ids[1]
        ] == [at]


def test_an_aligned_pair_is_its_own_kind_of_control():
    pairs = [
        TokenPair(words("abXZcd"), words("abYcd"), (0, 1, 2, 4, 5)),
        TokenPair(words("efXZgh"), words("efYgh"), (0, 1, 2, 4, 5)),
    ]
    found, drawn = control_pairs(Letters(), pairs, "denoise", 8, 0)
    assert drawn == len(found) == 2  # random tokens where they differ, no other pair's
    for (_, control), pair in zip(found, pairs, strict=True):
        same = [one == other for one, other in zip(control.clean.ids, pair.clean.ids, strict=True)]
        assert same == [True, True, False, False, True, True]
