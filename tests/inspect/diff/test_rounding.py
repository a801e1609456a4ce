"""Rounding alone is no change: a model and itself in other numbers, the floor of the coarser one.

``tests/benchmarks/bench_rounding.py`` does the same 200 times by the command.
"""

from itertools import combinations

import pytest

from attnviz.inspect.diff.report import Noise
from attnviz.texts import built_in_texts

from ..forms import loaded, stored
from .planted import floor_of, maps_of, verdict


@pytest.mark.long
@pytest.mark.parametrize(("family", "scale", "step"), [("gpt2", 4.0, 2), ("llama", 8.0, 1)])
def test_a_model_and_itself_in_other_numbers(family, scale, step, tmp_path):
    """Of the 66 pairs of a model's forms, or of every second form's 15, at most 5 % report a head.

    step: the forms that are taken, 1 for all.
    """
    texts = built_in_texts().texts
    maps, noise = {}, {}
    for form, directory in list(stored(tmp_path, family, scale, seed=3).items())[::step]:
        model = loaded(directory, form)
        maps[form] = maps_of(model, texts)
        noise[form] = Noise(floor_of(model, maps[form], texts), str(form))
    pairs = list(combinations(maps, 2))
    reported = [
        (one, other)
        for one, other in pairs
        if verdict(maps[one], maps[other], noise[one].or_more(noise[other]).floor).found
    ]
    assert len(pairs) == {1: 66, 2: 15}[step]
    assert len(reported) <= 0.05 * len(pairs), reported
