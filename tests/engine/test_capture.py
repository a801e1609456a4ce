"""Capture from models that run in NumPy: a made-up one, and the one that ships."""

import numpy as np
import pytest

from attnviz.engine.capture import capture
from attnviz.errors import UsageError
from attnviz.models.bundled import Bundled
from attnviz.records import ModelInfo, Tokens

from ..small_models import ShowsWeights

SENTENCE = "The cat sat on the mat because it was tired."
CAUSAL = [[1.0, 0.0], [0.25, 0.75]]
BOTH_WAYS = [[0.5, 0.5], [0.25, 0.75]]


class Fake(ShowsWeights):
    """Hands over the given maps, one (head, query, key) array a layer."""

    kinds = ("self",)
    context = None

    def __init__(self, layers):
        self.maps = [np.asarray(layer, np.float32) for layer in layers]
        heads = max(len(layer) for layer in self.maps)
        self.info = ModelInfo(
            "fake", None, "None", "float32", len(layers), heads, heads, 1, notes=("made up",)
        )
        self.asked = []

    def encode(self, text, limit=None):
        words = text.split()[:limit]
        return Tokens(tuple(range(len(words))), tuple(words), (False,) * len(words))

    def notes_for(self, tokens):
        return (f"{len(tokens)} words",)

    def run_rows(self, ids, rows, wants, observe, *, norms=False):
        for layer, weights in enumerate(self.maps):
            self.asked.append(layer)
            if wants(layer):
                observe(layer, 0, weights[None], None)


def record_of(model, text="a b", **choice):
    return capture(model, model.encode(text), kind="self", **choice)


def test_the_record_holds_what_the_model_handed_over():
    record = record_of(Fake([[CAUSAL, BOTH_WAYS], [BOTH_WAYS, CAUSAL]]))
    assert [(at, head) for at, head, _ in record] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    np.testing.assert_array_equal(record.layers[1].weights, np.float32([BOTH_WAYS, CAUSAL]))
    assert record.queries is record.keys
    assert record.kind == "self"


def test_notes_are_joined_and_chosen_heads_alone_are_kept():
    assert record_of(Fake([[CAUSAL]])).model.notes == ("made up", "2 words")
    record = record_of(Fake([[CAUSAL] * 3] * 3), heads={1: {0, 2}})
    assert [(layer.layer, layer.heads) for layer in record.layers] == [(1, (0, 2))]
    model = Fake([[CAUSAL] * 3, [CAUSAL]])
    assert [(at, head) for at, head, _ in record_of(model)] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    kept = record_of(model, heads={0: {2}, 1: {2}})
    assert [(at, head) for at, head, _ in kept] == [(0, 2)]


@pytest.mark.parametrize("heads", [{}, {7: {0}}, {0: {5}}, {0: set()}])
def test_a_choice_that_keeps_nothing_is_refused(heads):
    with pytest.raises(UsageError, match="choose others with --layer or --head"):
        record_of(Fake([[CAUSAL]]), heads=heads)


def test_causal_is_what_every_kept_head_shows():
    model = Fake([[CAUSAL, CAUSAL], [CAUSAL, BOTH_WAYS]])
    assert not record_of(model).causal
    assert record_of(model, heads={0: {0, 1}, 1: {0}}).causal
    assert not record_of(Fake([[[[1.0]]]]), "a").causal


def test_weight_that_goes_to_no_token_is_noted():
    leaking = [[1.0, 0.0], [0.25, 0.25]]
    notes = record_of(Fake([[CAUSAL], [leaking]])).model.notes
    assert notes[-1] == "rows sum to as little as 0.50: the rest goes to no token (a learned sink)"


@pytest.mark.parametrize("least", [0.985, 1.0, 1.01])
def test_rounding_of_short_floats_is_not_noted(least):
    assert record_of(Fake([[[[1.0, 0.0], [0.0, least]]]])).model.notes == ("made up", "2 words")


@pytest.mark.parametrize("everywhere", [True, False])
def test_weights_that_are_no_numbers_are_noted(everywhere):
    """A model that overflows in its dtype gives whole rows of NaN."""
    nan = [[np.nan, np.nan]] * 2 if everywhere else [[1.0, 0.0], [np.nan, np.nan]]
    record = record_of(Fake([[CAUSAL], [nan]]))
    assert record.causal
    assert record.model.notes[2:] == ("some weights are not numbers: their cells stay blank",)


@pytest.fixture(scope="module")
def bundled():
    return Bundled()


def test_later_words_change_nothing_before_them(bundled):
    """Causal for real, not only in the zeros: a prefix alone has the same attention."""
    whole, part = bundled.encode(SENTENCE), bundled.encode(SENTENCE, 7)
    longer, shorter = (capture(bundled, tokens, kind="self") for tokens in (whole, part))
    for (_, _, more), (_, _, less) in zip(longer, shorter, strict=True):
        np.testing.assert_allclose(more[:7, :7], less, atol=1e-5)
