"""Maps and effects on Matplotlib's axes: the numbers that are drawn are those of the report."""

import matplotlib as mpl
import numpy as np
import pytest

import attnviz
from attnviz.errors import UsageError

TEXT = "The cat sat on the mat."


def drawn(axes):
    (image,) = axes.get_images()
    return np.ma.filled(image.get_array(), np.nan)


def test_what_is_plotted_is_what_is_indexed():
    mpl.use("agg")
    from matplotlib import pyplot

    _, (left, right) = pyplot.subplots(1, 2)
    found = attnviz.heads("tiny", TEXT)
    assert found.plot("L1H2", ax=left) is left
    np.testing.assert_array_equal(drawn(left), found["L1H2"])
    assert [tick.get_text() for tick in left.get_xticklabels()][1:3] == ["The", "cat"]
    maps = attnviz.capture("tiny", TEXT)
    assert [*found] == [*maps]
    assert np.array_equal(found[(1, 2)], maps["L1H2"])
    with pytest.raises(UsageError, match="names 24 heads: name one"):
        maps.plot()
    effects = attnviz.ablate("tiny", TEXT, layer=1)
    effects.plot(ax=right)
    assert [*effects] == [(1, head) for head in range(4)]
    for layer, head in effects:
        value = effects[f"L{layer}H{head}"].value("loss_delta")
        assert drawn(right)[layer, head] == value == effects[layer, head].value("loss_delta")
    assert np.isnan(drawn(right)[0]).all()
    with pytest.raises(UsageError, match="L0H0 was not ablated alone here: expected one of L1H0"):
        effects["L0H0"]
    pyplot.close("all")
