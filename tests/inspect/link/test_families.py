"""``attnviz link`` of checkpoints of other families.

They stand apart from the bundled model so that one worker alone imports torch for them.
"""

import re

import pytest

import attnviz
from attnviz.draw.grid import names_width
from attnviz.draw.labels import width
from attnviz.inspect.link.screen import pair_grid

from .test_link import of


def test_a_decoder_has_a_bias_by_distance(run, checkpoint):
    words = ("link", "the cat sat on the mat", "--model", str(checkpoint("t5")), "--kind")
    found = run(*words, "decoder", "--target", "the cat sat", "--controls", "2", "--json").document
    distance = of(found, "key", "distance")
    assert distance["weight_without"] is not None
    parts = [one["lead"] for one in found["parts"] if one["side"] == "query"]
    assert sum(parts) + distance["lead"] == pytest.approx(found["sum"], abs=1e-4)
    refused = run(*words, "cross", "--target", "the cat sat")
    assert refused.code == 5
    assert "written by the encoder, which cannot be followed" in refused.err


def test_a_cross_head_is_said_to_read_from_a_word_of_the_encoders_text(run, checkpoint):
    """Its source is an index into a text that is longer than the decoder's."""
    words = "the cat sat on the mat because the cat sat tired"
    asked = ("--kind", "decoder", "--target", "the cat", "--controls", "0", "--head", "L1H1")
    result = run("link", words, "--model", str(checkpoint("t5")), *asked)
    named = re.findall(r"L0H\d cross.* (\S+) \((\d+)\)$", result.out, re.MULTILINE)
    assert named
    tokens = ["<s>", *words.split(), "</s>"]
    for word, place in named:
        assert tokens[int(place)] == word


@pytest.mark.parametrize("room", [60, 80, 120])
def test_each_column_of_the_grid_has_its_name(checkpoint, room):
    """Parts with long names, such as position, take fewer columns instead of losing them."""
    report = attnviz.link(str(checkpoint("bert")), "the cat sat on the mat", controls=0)
    grid = pair_grid(report, 4, room, scaled=False)
    assert "position" in grid.rows
    cell = (room - names_width(grid.rows)) // len(grid.columns)
    assert all(width(name) < cell for name in grid.columns)
