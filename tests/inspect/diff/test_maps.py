"""Models compared over long texts: by some rows, which are those of the whole maps."""

import numpy as np
import pytest
import torch

import attnviz
from attnviz.engine import observer
from attnviz.engine.capture import open_probing
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.diff import compare
from attnviz.inspect.diff.compare import model_maps
from attnviz.models.prepare import prepared
from attnviz.records import Input

from ...engine.architectures import small_model

TEXT = " ".join(f"w{number * number % 37}" for number in range(60))


def made(name, changed=False):
    model = small_model(name)
    if changed:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
    return prepared(name, model, None, torch.device("cpu"))


def read(model, reduce, stride=None):
    given = Input(model.encode(TEXT, 30))
    return model_maps(open_probing(model), [given], stride, reduce=reduce)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "bert"])
def test_rows_outputs_and_predictions_equal_those_of_whole_maps(name, monkeypatch):
    """With grouped heads, windows, learned sinks and an encoder."""
    model = made(name)
    monkeypatch.setattr(compare, "MOST_BYTES", 30_000)
    some = read(model, "fused")
    whole = read(model, "full", some.stride)
    assert some.stride > 1
    (one,), (other,) = some.texts, whole.texts
    assert one.kept.tolist() == other.kept.tolist()
    for part in ("rows", "outputs"):
        found, expected = getattr(one, part), getattr(other, part)
        assert found.keys() == expected.keys() != set()
        for layer, values in expected.items():
            assert np.abs(found[layer] - values).max() < 1e-5, (part, layer)
    assert (one.predictions is None) == (other.predictions is None) == (name == "bert")
    if one.predictions is not None:
        assert np.abs(one.predictions - other.predictions).max() < 1e-4


@pytest.mark.long
def test_a_comparison_by_rows_gives_the_same_numbers(monkeypatch):
    one, other = made("llama"), made("llama", changed=True)
    found = [
        attnviz.diff(one, other, TEXT, noise_floor=0.01, truncate=True, reduce=reduce)
        for reduce in ("full", "fused")
    ]
    for a, b in zip(found[0].changes, found[1].changes, strict=True):
        assert [b.js, b.no_sink, b.output] == pytest.approx([a.js, a.no_sink, a.output], abs=1e-5)
    assert found[1].predictions.kl == pytest.approx(found[0].predictions.kl, abs=1e-5)
    monkeypatch.setattr(observer, "_LONG", 20)
    monkeypatch.setattr(observer, "_LARGE", 20)
    monkeypatch.setattr(compare, "MOST_BYTES", 4_000)
    with pytest.raises(UsageError, match="8 rows of attention take more than 4,000 bytes: shorten"):
        attnviz.diff(one, other, TEXT, noise_floor=0.01, truncate=True)


def test_what_has_no_rows_is_refused():
    with pytest.raises(UnsupportedError, match="leave out --reduce fused"):
        read(made("t5"), "fused")
