"""``attnviz.heatmap``: any array of weights; its colours, notes and scores, worked out by hand."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import attnviz
from attnviz.errors import UsageError
from attnviz.inspect.heads.head_maps import as_numpy, weight_matrices

TWO_HEADS = [
    [[1, 0, 0], [1, 0, 0], [0.1, 0.8, 0.1]],
    [[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]],
]
WEIGHTS = np.array([[0.25, 0.75], [1.0, 0.0]])


def test_a_screen(golden):
    # Sink weight: the mean of 1 and 0.1, and of 1/2 and 1/3. Entropy over queries:
    # (0 + 0 + 0.639) / 3 and (0 + ln 2 + ln 3) / 3.
    golden("heatmap", f"{attnviz.heatmap(TWO_HEADS, 'The cat sat')}\n")


def test_numbers_and_names():
    maps = attnviz.heatmap(TWO_HEADS, ["The", "cat", "sat"])
    assert maps.tokens == maps.key_tokens == ("The", "cat", "sat")
    assert np.array_equal(maps["H1"], TWO_HEADS[1])
    assert np.array_equal(maps[0], TWO_HEADS[0])
    assert maps.scores("H0").scores["previous"] == pytest.approx(0.9)
    assert list(maps) == [(0, 0), (0, 1)]
    assert repr(maps) == "<HeadMaps of attention weights: H0, H1, 3 tokens>"
    assert maps.limit == 1
    assert maps.report.record.causal


def test_places_stand_for_missing_tokens(rows):
    maps = attnviz.heatmap(rows(3, 5))
    assert maps.tokens == ("0", "1", "2")
    assert maps.key_tokens == ("0", "1", "2", "3", "4")
    assert "text" not in str(maps)
    assert "3 queries, 5 keys" in repr(maps)


def test_two_texts(rows):
    maps = attnviz.heatmap(rows(2, 3), "look at", ["these", "three", "words"])
    assert (maps.tokens, maps.key_tokens) == (("look", "at"), ("these", "three", "words"))
    assert maps.report.record.kind == "cross"
    assert not maps.report.record.causal
    assert maps.scores("H0").scores["previous"] is None
    with pytest.raises(UsageError, match="2 queries and 3 keys: give key_tokens as well"):
        attnviz.heatmap(rows(2, 3), "a b")


def test_equal_tokens_are_equal():
    weights = np.eye(4)
    weights[2] = [1, 0, 0, 0]  # the second "a" looks at the first
    maps = attnviz.heatmap(weights, "a b a c")
    assert maps.scores("H0").scores["duplicate"] == 1.0
    assert attnviz.heatmap(weights).scores("H0").scores["duplicate"] is None


def test_rows_that_do_not_sum_to_one_are_shares_of_the_largest_and_kept(tmp_path):
    """They are drawn as shares, scored as if they summed to one, and saved as they are."""
    given = ((2.0, 0.0), (1.0, 4.0))
    maps = attnviz.heatmap(given, "a b")
    assert maps.limit == 4.0
    assert np.array_equal(maps["H0"], given)
    drawn = str(maps.view(values=True))
    assert "\n.50  a\n.25 1.0  b\n" in drawn
    assert "rows sum to 2 to 5, not to one" in drawn
    assert "the legend's 1 is 4" in drawn
    scores = maps.scores("H0").scores
    assert scores["self"] == pytest.approx(4 / 5)
    assert scores["entropy"] == pytest.approx(-(0.2 * np.log(0.2) + 0.8 * np.log(0.8)) / 2)
    for ending in ("json", "npz", "svg"):
        maps.save(tmp_path / f"maps.{ending}")
    document = json.loads((tmp_path / "maps.json").read_text())
    assert document["heads"][0]["weights"] == [[2.0, 0.0], [1.0, 4.0]]
    assert document["model"]["layers"] is None
    assert document["model"]["weights"] == "given"
    with np.load(tmp_path / "maps.npz") as arrays:
        assert np.array_equal(arrays["weights"][0], given)
    assert "the legend&#x27;s 1 is 4" in (tmp_path / "maps.svg").read_text()


def test_a_scale_of_their_own():
    given = ((2.0, 0.0), (1.0, 4.0))
    assert attnviz.heatmap(given, scale=8).limit == 8
    assert "shares of 8" in str(attnviz.heatmap(given, scale=8))
    assert "shares" not in str(attnviz.heatmap(given, scale=1))
    for scale in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="expected a scale above 0"):
            attnviz.heatmap(given, scale=scale)


def test_rows_of_zeros_are_told_and_nothing_else_changes():
    maps = attnviz.heatmap([[0, 0], [0.5, 0.5]])
    assert maps.limit == 1
    assert "1 of 2 rows are nothing but zeros" in str(maps)
    assert "not to one" not in str(maps)
    assert "2 of 2 rows" in str(attnviz.heatmap(np.zeros((2, 2))))


def test_sixteen_bits_round():
    weights = torch.softmax(torch.randn(5, 31, 31, generator=torch.manual_seed(0)), -1)
    maps = attnviz.heatmap((weights.to(torch.bfloat16),))
    assert maps.limit == 1
    assert maps.report.record.model.notes == ()


def test_causal_weights_are_found_and_may_be_denied(rows):
    full = rows(3, 3)
    assert not attnviz.heatmap(full).report.record.causal
    assert attnviz.heatmap(np.tril(full)).report.record.causal
    assert not attnviz.heatmap([[1.0]]).report.record.causal  # one token says nothing
    assert "0 ██····" in str(attnviz.heatmap(np.eye(3), causal=False))
    with pytest.raises(UsageError, match="weights above the diagonal: leave causal out"):
        attnviz.heatmap(rows(3, 3), causal=True)
    with pytest.raises(UsageError, match="2 queries and 3 keys"):
        attnviz.heatmap(rows(2, 3), causal=True)


def test_tokens_are_any_sequence_that_fits(rows):
    expected = ("a", "b", "c")
    for tokens in (np.array(expected), iter(expected), " a  b\nc "):
        assert attnviz.heatmap(rows(3, 3), tokens).tokens == expected
    for given, keys, said in (
        ("a b", None, "tokens has 2 tokens, the weights have 3 along their query axis"),
        (["a"], None, "tokens has 1 token, the weights"),
        ("a b c", "a b", "key_tokens has 2 tokens, the weights have 3 along their key axis"),
        ([1, 2, 3], None, r"expected tokens as texts, got 1 at \[0\]: token ids are turned"),
        (["a", b"b", "c"], None, r"got b'b' at \[1\]"),
    ):
        with pytest.raises(UsageError, match=said):
            attnviz.heatmap(rows(3, 3), given, keys)


def test_strange_tokens_do_nothing(rows):
    tokens = ["[red]", "</td><script>", "\x1b[31m", "\u202e"]
    maps = attnviz.heatmap(rows(4, 4), tokens, title="[/]\x1b]0;t\x07<b>")
    for drawn in (str(maps), repr(maps)):
        assert "\x1b" not in drawn
        assert "\u202e" not in drawn
    assert "[red]" in str(maps)
    page = maps._repr_html_()
    assert "<script" not in page
    assert "&lt;/td&gt;&lt;script" not in page  # inside the frame it is escaped once more
    assert "\\u003c/td>\\u003cscript>".replace(">", "&gt;") in page


class TestWhatTransformersReturns:
    def layers(self, rows, count=6):
        """Causal weights of two layers of three heads, (text, head, query, key) each."""
        lower = np.tril(np.stack([rows(1, 3, count, count) for _ in range(2)]))
        return tuple(lower / lower.sum(-1, keepdims=True))

    def test_a_tuple_of_layers_becomes_maps_by_layer(self, rows):
        layers = self.layers(rows)
        held = (layers, list(layers), np.stack(layers), tuple(np.stack(layers)[:, 0]))
        for given in (*held, SimpleNamespace(attentions=layers)):
            maps = attnviz.heatmap(given, "a b c d e f")
            assert [*maps][-1] == (1, 2)
            assert np.array_equal(maps["L1H2"], layers[1][0, 2])
            assert "L1H2" in str(maps)
        assert attnviz.heatmap(layers).data()["model"]["layers"] == 2

    def test_a_layer_that_does_not_attend_is_left_out(self, rows):
        first, second = self.layers(rows)
        maps = attnviz.heatmap((first, None, second))
        assert {layer for layer, _ in maps} == {0, 2}

    @pytest.mark.parametrize("cache", ["whole", "last three keys", "room for more", "none"])
    def test_steps_of_generate_are_rows(self, rows, cache):
        layers = self.layers(rows)
        if cache == "last three keys":
            layers = tuple(np.triu(layer, -2) for layer in layers)
            layers = tuple(layer / layer.sum(-1, keepdims=True) for layer in layers)
        steps = []
        for begin, end in ((0, 4), (4, 5), (5, 6)):
            keys = {"last three keys": slice(end - 3, end), "room for more": slice(0, None)}
            seen = keys.get(cache, slice(0, end)) if begin or cache == "room for more" else slice(4)
            read = slice(0 if cache == "none" else begin, end)
            steps.append(tuple(layer[:, :, read, seen] for layer in layers))
        maps = attnviz.heatmap(tuple(steps), "a b c d e f g")
        for (layer, head), found in maps.weights.items():
            assert np.array_equal(found, layers[layer][0, head])
        assert maps.tokens == tuple("abcdef")
        assert "the last token was written, not read: it has no row" in str(maps)

    def test_steps_of_cross_attention_have_all_keys(self, rows):
        steps = [(rows(1, 2, 1, 4),) for _ in range(3)]
        maps = attnviz.heatmap(steps, "<s> a b", "w x y z")
        assert np.array_equal(maps["H1"], np.stack([step[0][0, 1, 0] for step in steps]))
        assert maps.report.record.kind == "cross"

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ((), 'got none: transformers returns them .* attn_implementation="eager"'),
            ((None, None), "expected attention weights, got none"),
            ((np.ones((1, 2, 3, 3)), np.ones((1, 2, 2, 2))), "equally many heads, queries and"),
            ((np.ones((2, 2, 3, 3)),) * 2, "several texts or layers"),
            (np.ones((2, 4, 3, 3)), r"axis of \(2, 4, 3, 3\) texts or layers[?] batch=0 shows"),
        ],
    )
    def test_what_is_no_attention_of_one_text(self, given, said):
        with pytest.raises(UsageError, match=said):
            attnviz.heatmap(given)
        if said.startswith("axis"):
            assert "axis, of 2, is read as layers" in str(attnviz.heatmap(given / 3, "a b c"))


def test_pieces_become_text_and_special_ones_are_sinks():
    maps = attnviz.heatmap(np.eye(4) / 2 + 1 / 8, ["[CLS]", "The", "ĠcafÃ©", "[SEP]"])
    assert maps.tokens == ("[CLS]", "The", " café", "[SEP]")
    assert maps.text == "[CLS]The café[SEP]"
    assert maps.report.record.queries.special == (True, False, False, True)


class TestBatch:
    """A batch of two texts is not two heads."""

    weights = np.random.default_rng(0).dirichlet(np.ones(4), (2, 3, 4))

    @pytest.mark.parametrize("text", [0, 1, -1])
    def test_a_text_of_a_batch(self, text):
        maps = attnviz.heatmap(self.weights, "a b c d", batch=text)
        np.testing.assert_array_equal(np.asarray(maps), self.weights[text])
        averaged = attnviz.heatmap(self.weights.mean(1), "a b c d", batch=text)
        np.testing.assert_array_equal(averaged["H0"], self.weights[text].mean(0))
        layers = attnviz.heatmap((self.weights, self.weights), batch=text)
        np.testing.assert_array_equal(layers["L1H2"], self.weights[text, 2])
        stack = attnviz.heatmap(np.stack([self.weights, 0.5 * self.weights]), batch=text)
        np.testing.assert_array_equal(stack["L1H2"], 0.5 * self.weights[text, 2])
        one = attnviz.heatmap(self.weights[None], batch=text)
        np.testing.assert_array_equal(np.asarray(one), self.weights[text])

    def test_a_note_says_what_the_first_axis_is(self):
        notes = attnviz.heatmap(self.weights.mean(1)).report.record.model.notes
        assert notes == ("the first axis of (2, 4, 4) is read as heads; texts: batch=0",)

    def test_a_misspelt_keyword_is_named(self):
        with pytest.raises(TypeError, match=r"'token': did you mean tokens\?"):
            attnviz.heatmap(self.weights, token="a b c d")

    def test_another_text_is_refused(self):
        with pytest.raises(UsageError, match="batch=2 is the index of a text in weights"):
            attnviz.heatmap(self.weights, batch=2)


class OffersArray:
    """As a JAX array does: ``__array__`` and nothing else of NumPy's."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array if dtype is None else self._array.astype(dtype)


class OffersDlpack:
    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize(
    "given",
    [
        WEIGHTS,
        WEIGHTS.tolist(),
        tuple(map(tuple, WEIGHTS.tolist())),
        list(WEIGHTS),
        torch.tensor(WEIGHTS),
        torch.tensor(WEIGHTS, requires_grad=True),
        list(torch.tensor(WEIGHTS, requires_grad=True)),
        OffersArray(WEIGHTS),
        OffersDlpack(WEIGHTS),
        [OffersDlpack(row) for row in WEIGHTS],
        np.asfortranarray(WEIGHTS),
    ],
    ids=lambda given: type(given).__name__,
)
def test_one_array_in_many_clothes(given):
    found = as_numpy(given)
    assert type(found) is np.ndarray
    assert found.dtype == np.float64
    assert np.array_equal(found, WEIGHTS)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.eye(2, dtype=np.float16), np.float32),
        (np.eye(2, dtype=np.float32), np.float32),
        (torch.eye(2, dtype=torch.bfloat16), np.float32),
        (torch.eye(2, dtype=torch.float16, requires_grad=True), np.float32),
        (np.eye(2, dtype=np.int8), np.float64),
        (np.eye(2, dtype=bool), np.float64),
        ([[1, 0], [0, 1]], np.float64),
    ],
)
def test_types_are_kept_or_widened(given, dtype):
    found = as_numpy(given)
    assert found.dtype == dtype
    assert np.array_equal(found, np.eye(2))


def test_a_type_of_another_library():
    ml_dtypes = pytest.importorskip("ml_dtypes")  # JAX's bfloat16, brought by keras
    found = as_numpy(OffersArray(WEIGHTS.astype(ml_dtypes.bfloat16)))
    assert found.dtype == np.float32
    assert np.array_equal(found, WEIGHTS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("weights", "expected an array of real numbers"),
        ([["a", "b"]], "expected an array of real numbers"),
        (object(), "expected an array of real numbers"),
        (np.eye(2) * 1j, "expected an array of real numbers, got complex128"),
        ([[0.5, 0.5], [1.0]], "cannot read a list as an array of numbers"),
        ([], "expected"),
        (np.zeros(2, dtype="V4"), "expected an array of real numbers"),
        (1.0, r"got \(\)"),
        (np.ones(3), r"weights of shape \(query, key\) or \(head, query, key\), got \(3,\)"),
        (np.ones((2, 5, 3, 3)), r"got \(2, 5, 3, 3\) \(several texts or layers\? choose one, such"),
        (np.ones((2, 1, 5, 3, 3)), "several texts or layers"),
        (np.ones((0, 3)), "at least one head, query and key"),
        (np.ones((2, 0, 3)), "at least one head, query and key"),
        (np.ones((2, 3, 0)), r"got the shape \(2, 3, 0\)"),
    ],
)
def test_what_is_no_array_of_weights(given, said):
    with pytest.raises(UsageError, match=said):
        weight_matrices(given)


def test_shapes_that_are_taken():
    """The given array is left alone."""
    for shape in ((2, 3), (1, 2, 3), (5, 2, 3), (1, 5, 2, 3), (1, 1, 1, 2, 3)):
        weights = np.random.default_rng(0).random(shape)
        before = weights.copy()
        weights.flags.writeable = False
        found = weight_matrices(weights)
        assert found.shape == (shape[-3] if len(shape) > 2 else 1, 2, 3)
        assert np.array_equal(found, before.reshape(found.shape))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.nan, r"got nan at \[1, 0, 2\]$"),
        (np.inf, r"got inf at \[1, 0, 2\]"),
        (-np.inf, "are these scores"),
        (-0.25, r"got -0.25 at \[1, 0, 2\]: are these scores\? their softmax is the attention"),
    ],
)
def test_numbers_that_are_no_weights(value, said):
    weights = np.full((2, 3, 3), 1 / 3)
    weights[1, 0, 2] = value
    with pytest.raises(UsageError, match=said):
        weight_matrices(weights)
    with pytest.raises(ValueError, match=r"at \[0, 2\]"):
        weight_matrices(weights[1])
