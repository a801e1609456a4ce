"""Means and intervals of removals, against values worked out by hand."""

import numpy as np
import pytest

from attnviz.engine.effects import Scores, Variant
from attnviz.inspect.interventions.ablate.ablate import ablation_effects, mean_baseline
from attnviz.measures.bootstrap import bootstrap_interval


def intervals(effect):
    return {name: one.interval for name, one in effect.means.items() if one.interval}


VARIANTS = [Variant(((0, head),)) for head in range(3)]


def piece(text, variants, losses, clean=2.0):
    return Scores(
        text,
        variants,
        {"loss_delta": np.array(losses), "kl": np.array(losses) * 10},
        {"loss": clean},
    )


def test_the_mean_over_texts_in_any_pieces():
    pieces = [piece(1, (2, 0), [0.5, 0.1]), piece(0, (0,), [0.3]), piece(0, (2,), [1.5])]
    first, last = ablation_effects(pieces, VARIANTS, 0)
    assert (first.variant, last.variant) == (VARIANTS[0], VARIANTS[2])
    assert first.value("loss_delta") == pytest.approx(0.2)
    assert last.value("loss_delta") == pytest.approx(1.0)
    assert first.texts == last.texts == 2
    assert intervals(first) == {}


def test_five_texts_or_more_have_an_interval_of_each_metric():
    deltas = [0.1, 0.4, 0.2, 0.3, 0.9]
    pieces = [piece(text, (0, 1), [delta, -delta]) for text, delta in enumerate(deltas)]
    first, second = ablation_effects(pieces, VARIANTS, 3)
    low, high = bootstrap_interval(np.array(deltas)[:, None], 3)
    assert intervals(first)["loss_delta"] == pytest.approx((low[0], high[0]))
    assert intervals(first)["kl"] == pytest.approx((10 * low[0], 10 * high[0]))
    below, above = intervals(second)["loss_delta"]
    assert below < -high[0] * 0.8 < above
    (four,) = ablation_effects(pieces[1:], VARIANTS[:2], 3)[:1]
    assert (four.texts, intervals(four)) == (4, {})
    with pytest.raises(ValueError, match="at least 5 texts, got 4"):
        bootstrap_interval(np.ones((4, 1)), 0)


def test_token_losses_stand_in_the_order_of_the_texts():
    pieces = [
        Scores(text, (0,), {}, {}, token_losses=np.array([[np.nan, float(text)]]))
        for text in (2, 0, 1)
    ]
    (effect,) = ablation_effects(pieces, VARIANTS, 0)
    assert [losses[1] for losses in effect.token_losses] == [0.0, 1.0, 2.0]


def test_standard_errors_of_a_mean():
    pieces = [
        Scores(text, (0,), {"kl": np.array([1.0])}, {}, {"kl": np.array([error])})
        for text, error in enumerate((0.3, 0.4))
    ]
    (effect,) = ablation_effects(pieces, VARIANTS, 0)
    assert effect.means["kl"].error == pytest.approx(0.25)  # sqrt(0.09 + 0.16) / 2


def test_the_baseline_counts_a_text_once():
    pieces = [piece(0, (0,), [0.0], 1.0), piece(0, (1,), [0.0], 1.0), piece(1, (0,), [0.0], 4.0)]
    assert mean_baseline(pieces) == {"loss": 2.5}
