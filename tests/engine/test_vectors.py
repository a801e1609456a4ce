"""What a page needs besides the weights is there, or a note says why it is not."""

import numpy as np
import pytest

import attnviz
from attnviz.engine import vectors

TEXT = "the cat saw the dog ."


def found(model, **options):
    report = attnviz.heads(str(model), TEXT, vectors=True, **options).first
    assert report.vectors is not None
    return report.vectors


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_queries_and_keys_make_the_weights(checkpoint, name):
    given, maps = found(checkpoint(name)), attnviz.capture(str(checkpoint(name)), TEXT)
    assert given.notes == ()
    for layer, head in maps:
        weights = maps[layer, head]
        scores = given.queries[layer][head] @ given.keys[layer][head].T * given.factor
        powers = np.exp(scores) * (weights > 0)
        assert powers / powers.sum(-1, keepdims=True) == pytest.approx(weights, abs=1e-5)


def test_what_is_missing_is_said(checkpoint, monkeypatch):
    (note,) = found(checkpoint("t5"), kind="encoder").notes
    assert note.startswith("Without query × key: the weights of ")
    assert note.endswith("alone (a soft cap, a sink or a bias of its own).")
    assert found("tiny", ablate=["L1H2"]).notes == (
        "Without query × key: heads were ablated, which changes those of later layers.",
    )
    monkeypatch.setattr(vectors, "_MOST", 100)
    (note,) = found("tiny").notes
    assert "more than 100 numbers" in note
