"""Every spelling of a choice of heads, against choices written out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnviz.engine.selection import choose_heads
from attnviz.errors import UsageError

LAYERS, HEADS = 5, 7
EVERY = list(range(HEADS))


def chosen(*heads, layers=None, base=0):
    found = choose_heads(layers, heads, LAYERS, HEADS, base)
    return {layer: sorted(kept) for layer, kept in found.items()}


def test_without_a_choice_nothing_is_left_out():
    assert choose_heads(None, (), LAYERS, HEADS, 0) is None


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("L2H5", {2: [5]}),
        ("l2h5", {2: [5]}),
        ("2.*", {2: EVERY}),
        ("*.2", {layer: [2] for layer in range(LAYERS)}),
        ("*", dict.fromkeys(range(LAYERS), EVERY)),
        ("0-3.1,4", {layer: [1, 4] for layer in range(4)}),
        ("0-1.1-3,6", {0: [1, 2, 3, 6], 1: [1, 2, 3, 6]}),
        ("-1", {layer: [6] for layer in range(LAYERS)}),
        ("-1.-1", {4: [6]}),
        ("L-1H-2", {4: [5]}),
        ("-3--2.0", {2: [0], 3: [0]}),
        ("L1H2,L0H3", {0: [3], 1: [2]}),
        ("1.2,3.4,5", {1: [2], 3: [4, 5]}),
        ("L1H2 L0H3", {0: [3], 1: [2]}),
        ("1.2,2,2", {1: [2]}),
        ("4.0-6", {4: EVERY}),
    ],
)
def test_spellings(choice, expected):
    assert chosen(choice) == expected


def test_repeated_choices_add_up():
    assert chosen("L2H5", "2.1", "0.0") == {0: [0], 2: [1, 5]}


@pytest.mark.parametrize(
    ("layers", "expected"),
    [("2", [2]), ("0-3", [0, 1, 2, 3]), ("0,4", [0, 4]), ("-1", [4]), ("*", [0, 1, 2, 3, 4])],
)
def test_layers_alone_keep_all_their_heads(layers, expected):
    assert chosen(layers=layers) == dict.fromkeys(expected, EVERY)


def test_layers_bound_what_heads_name_and_come_in_order():
    assert chosen("3", layers="1,4") == {1: [3], 4: [3]}
    assert chosen("0-2.3", layers="1-4") == {1: [3], 2: [3]}
    with pytest.raises(UsageError, match="names no head of --layer 4"):
        chosen("L1H2", layers="4")
    assert list(chosen("4.0", "1.0", "2.0")) == [1, 2, 4]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("L1H1", {0: [0]}),
        ("7", {layer: [6] for layer in range(LAYERS)}),
        ("2-3.1", {1: [0], 2: [0]}),
        ("-1.-1", {4: [6]}),
    ],
)
def test_counting_from_one(choice, expected):
    assert chosen(choice, base=1) == expected


@pytest.mark.parametrize(
    ("choice", "base", "line"),
    [
        ("L5H0", 0, "no layer 5: this model has layers 0 to 4 (or -5 to -1 from the end)"),
        ("-6.0", 0, "no layer -6: this model has layers 0 to 4 (or -5 to -1 from the end)"),
        ("7", 0, "no head 7: this model has heads 0 to 6 (or -7 to -1 from the end)"),
        ("0-9.1", 0, "no layer 9: this model has layers 0 to 4 (or -5 to -1 from the end)"),
        ("L0H1", 1, "no layer 0: this model has layers 1 to 5 (or -5 to -1 from the end)"),
        ("L1H8", 1, "no head 8: this model has heads 1 to 7 (or -7 to -1 from the end)"),
        ("3-1.0", 0, "the range 3-1 of layers runs backwards"),
        ("-1--3", 0, "the range -1--3 of heads runs backwards"),
    ],
)
def test_what_the_model_does_not_have_names_the_range(choice, base, line):
    with pytest.raises(UsageError) as error:
        chosen(choice, base=base)
    assert str(error.value) == line


@pytest.mark.parametrize(
    "choice",
    ["", ",", "1,", "x", "L2", "H3", "LH", "2.", ".2", "1.2.3", "1..2", "1-", "²", "1.5e3"],
)
def test_what_is_no_choice(choice):
    with pytest.raises(UsageError, match="expected a number, a range such as 0-3"):
        chosen(choice)


@pytest.mark.parametrize("layers", ["", "x", "L2", "1.2", "0-"])
def test_what_are_no_layers(layers):
    with pytest.raises(UsageError, match="as a layer"):
        chosen(layers=layers)


@settings(max_examples=20)
@given(st.text(max_size=8), st.text(max_size=8))
@pytest.mark.long
def test_any_text_is_read_or_refused(layers, head):
    try:
        found = choose_heads(layers, [head], LAYERS, HEADS, 0)
    except UsageError:
        return
    assert found
    assert set(found) <= set(range(LAYERS))
    assert all(kept and kept <= set(range(HEADS)) for kept in found.values())
