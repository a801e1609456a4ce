"""The result of a training run as a person reads it, and as programs do.

``ATTNVIZ_GOLDEN=write pytest tests/learn/train`` writes the screens anew.
"""

from dataclasses import replace

import pytest

from attnviz.draw.terminal import first_screen, terminal_block
from attnviz.draw.theme import Theme

from ...first_screens import SIZES

PLAIN = Theme(colour=False)


def train_screen(result, theme, room, hints=False, explain=False):
    return terminal_block(result.document(hints=hints, explain=explain), theme, room)


@pytest.mark.parametrize("room", [60, 100])
def test_the_screen_is_as_it_was(made, golden, room):
    text = train_screen(made, PLAIN, room, hints=True, explain=room == 60).plain
    golden(f"plain_{room}", text)


def test_a_loss_beyond_all_bounds_is_said(made):
    """exp of it is too large for a number."""
    lost = replace(made, valid_loss=3264.0)
    text = " ".join(train_screen(lost, PLAIN, 200).plain.split())
    assert "validation 3264.000 nats per token · " in text
    assert "perplexity" not in text
    assert lost.data()["valid_perplexity"] is None


@pytest.mark.parametrize(("room", "lines"), SIZES)
def test_golden_first_screens(made, golden, room, lines):
    shown = first_screen(made.document(hints=True), PLAIN, room, lines - 1)
    golden(f"first_{room}", shown.plain)


@pytest.mark.parametrize(
    ("steps", "loss", "learnt", "words"),
    [
        (9, 1.0, False, "Did not train: 90 steps (loss 1.00 nats, uniform baseline 8.32)"),
        (10, 6.18, False, "Did not learn: validation loss 6.18 nats, not clearly below token"),
        (
            10,
            6.17,
            True,
            "Validation loss 6.17 nats per token, unigram baseline 6.50; highest induction",
        ),
    ],
)
def test_what_learnt_is_a_rule(made, steps, loss, learnt, words):
    """100 steps, and 5% under a unigram loss of 6.5, which is 6.175."""
    result = replace(made, points=made.points[:steps], valid_loss=loss)
    assert result.learnt is learnt
    assert result.document().finding.startswith(words)
