"""What is shown and what is saved says what was done to it, or is refused in words."""

from dataclasses import replace

import numpy as np
import pytest

from attnviz.draw.theme import Theme
from attnviz.engine.capture import Choice
from attnviz.engine.generation import Sampling
from attnviz.inspect.explore import screen
from attnviz.inspect.explore.app import SideSource
from attnviz.inspect.explore.screen import heads_of
from attnviz.inspect.explore.session import LiveSession
from attnviz.models.own import OwnAttention

from .playing import SENTENCE, SESSION, explorer, line, play

THIRTEEN = "one two three four five six seven eight nine ten eleven twelve thirteen"
"""As many tokens of another model as the sentence has of the bundled one."""

# Differences ---------------------------------------------------------------------------------


def own(text, **settings):
    shape = {"d_model": 24, "heads": 4, "causal": True} | settings
    return SideSource(LiveSession(OwnAttention(**shape), Choice(), text), text)


def test_two_models_are_compared_only_over_the_same_tokens():
    played = play(explorer(second=own(THIRTEEN)), "d", "d", size=(200, 60))
    assert len(played.view.against.report.record.queries) == len(
        played.view.frame.report.record.queries
    )
    assert played.view.side == "a"
    assert played.lines[-1] == "no difference: tiny and mha have other tokens"
    assert "No difference: tiny and mha have other tokens" in played.lines[1]
    assert "second less first" not in played.screen


def test_a_causal_model_has_no_difference_to_one_that_is_not():
    first, second = own(SENTENCE), own(SENTENCE, heads=8, causal=False)
    played = play(explorer(session=first.session, second=second), "d", "d")
    assert played.lines[-1] == "no difference: the sides are of other kinds of attention"
    alike = own(SENTENCE, d_model=48)
    same = play(explorer(session=first.session, second=alike), "d", "d").view
    weights = [frame.weights(same.head) for frame in (same.frame, same.other)]
    np.testing.assert_array_equal(same.weights, weights[1] - weights[0])


def test_texts_of_as_many_tokens_are_compared_by_position():
    other = SENTENCE.replace("cat", "dog")
    played = play(explorer(second=SideSource(SESSION, other)), "d", "d", size=(120, 40))
    assert "second less first, by position" in played.screen
    longer = play(explorer(second=SideSource(SESSION, f"{other} So")), "d", "d")
    assert longer.lines[-1] == "no difference: one text has 13 tokens, the other 14 tokens"


# Files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".json", ".svg"])
def test_a_difference_is_not_saved_as_weights(tmp_path, ending):
    path = tmp_path / f"seen{ending}"
    played = play(explorer(), "x", "d", "d", "s", line(str(path)), "enter")
    assert played.lines[-1].startswith("a difference is not saved")
    assert not path.exists()


# While a text is written ----------------------------------------------------------------------


@pytest.mark.parametrize("key", ["x", "X"])
def test_a_text_is_not_shown_with_heads_that_it_was_not_written_with(key):
    before = ["x"] if key == "X" else []
    played = play(explorer(), *before, "g", "up", key)
    assert played.view.written is None
    assert played.lines[-1].startswith("what was written with other heads is gone")
    removed = frozenset({(3, 1)}) if key == "x" else frozenset()
    assert played.view.removed == played.view.frame.removed == removed
    assert played.view.weights.shape == (13, 13)


@pytest.mark.parametrize("key", ["3", "d"])
def test_a_written_text_has_one_side_and_weights_as_they_are(key):
    played = play(explorer(), "x", "2", "d", "g", key, size=(120, 40))
    assert (played.view.mode, played.view.side) == ("raw", "a")
    assert "weights as they are: Esc leaves it" in played.lines[-1]
    assert played.lines[1].startswith("Generating without L3H1, done")
    steps = list(SESSION.generation(SENTENCE, Sampling(tokens=8), frozenset({(3, 1)})))
    np.testing.assert_array_equal(played.view.weights[12, :13], steps[0].rows[3][1])


# Words ---------------------------------------------------------------------------------------


def test_an_ablated_head_is_dark_and_links_nothing():
    before, after = play(explorer()), play(explorer(), "x", size=(80, 24))
    name = f" {after.view.name(after.view.head)}"
    assert any("ablated · object" in each for each in after.lines)
    listed = [each for each in after.lines if "→" in each[:20]]
    assert listed
    assert not any(each.endswith(name) for each in listed)
    assert any(name in each[:40] for each in before.lines if "→" in each[:20])
    whole = play(explorer(), "x", "d")
    assert "whole model · object" in whole.screen
    assert "ablated ·" not in whole.screen
    other = play(explorer(), "x", "]")
    assert "without L3H1" in other.screen
    assert after.view.dark
    assert not whole.view.dark
    part = heads_of(after.view).part
    assert part.crossed == {part.cursor}


def test_a_pair_of_next_tokens_is_whole_or_not_there():
    view = play(explorer(), "x").view
    for columns in range(60, 100):
        lines = screen.finding_lines(view, Theme(), columns, 2)
        told = " ".join("".join(text for text, *_ in line) for line in lines)
        assert told.endswith(".")
        assert ("Next" in told) == ("→ “" in told)
    rare = tuple(each._replace(probability=0.001) for each in view.frame.likely)
    none = replace(view, frame=replace(view.frame, likely=rare))
    said = "".join(text for text, *_ in screen.finding_lines(none, Theme(), 120, 1)[0])
    assert said.endswith(" <.005.")
    both = replace(none, whole=replace(view.whole, likely=rare))
    said = "".join(text for text, *_ in screen.finding_lines(both, Theme(), 120, 1)[0])
    assert said.endswith("nats/token).")
