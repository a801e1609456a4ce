"""The table of the sorts of sites agrees with the types that list them, and decides the help."""

from typing import get_args

from attnviz.engine.patching import ATTENDED, SITES, WHOLE_LAYER, Hook, What
from attnviz.inspect.interventions.patch.request import PatchRequest
from attnviz.options import options_of


def test_the_table_has_a_row_for_each_sort():
    assert tuple(SITES) == get_args(What)
    assert {sort.hook for sort in SITES.values()} == set(get_args(Hook))
    assert {what for what, sort in SITES.items() if sort.hook == "input"} == set(ATTENDED)
    assert {"mlp", "residual"} == WHOLE_LAYER
    assert {what for what, sort in SITES.items() if sort.shared} == {"key", "value"}


def test_the_help_lists_every_sort():
    words = options_of(PatchRequest)["what"].field.metadata["help"]
    heads, layers = words.split(";")
    assert "output, query, key, value or pattern (attention weights)" in heads
    assert "mlp or residual stream." in layers
