"""The families that NumPy runs are described twice, for two questions; the two must agree.

``attention/families.py`` has the stored tensors and every field that matters, ``families.toml`` the
defaults and the parts that ``params`` counts. They share no code: here the one's tensors have as
many numbers as the other's parameters, whatever the sizes.
"""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnviz.attention.families import FAMILIES
from attnviz.attention.family_reading import _sizes
from attnviz.attention.family_tensors import expected_tensors
from attnviz.count.params.families import families, spec_from_config

SWITCHES = ("attention_bias", "mlp_bias")


def bare(family):
    """The class without a head that predicts; an encoder's has a pooler."""
    return next(name for name in family.heads if name.endswith("Model"))


@st.composite
def configs(draw, family):
    """Fields of a config by the names that the description of the tensors has for them."""
    heads, width = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 6))
    small = st.integers(1, 9)
    sizes = {
        "layers": draw(st.integers(1, 3)),
        "heads": heads,
        "kv_heads": draw(st.sampled_from([one for one in (1, 2, 4) if one <= heads])),
        "d_model": heads * width,
        "head_dim": draw(small),
    }
    fields: dict[str, Any] = {"model_type": family.model_types[0]}
    for ours, said in family.sizes.items():
        field, _, otherwise = said.partition("=")
        if not otherwise or draw(st.booleans()):
            fields[field.removesuffix("?")] = sizes.get(ours) or draw(small)
    if family.window == "window_size":
        fields["attention_types"] = [[["global"], sizes["layers"]]]
    return fields | {name: draw(st.booleans()) for name in SWITCHES}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_types[0])
@settings(max_examples=25)
@given(data=st.data())
def test_both_describe_the_same_tensors(family, data):
    fields = data.draw(configs(family))
    sizes, name = _sizes(family, fields, set()), bare(family)
    _, shapes = expected_tensors(family, fields, sizes)
    stored = sum(map(math.prod, shapes.values()))
    for said in family.heads[name].values():
        words = said.removeprefix("?").rpartition(": ")[2].split()
        stored += math.prod(sizes.get(word) or int(word) for word in words)
    spec = spec_from_config(fields, architecture=name)
    assert spec is not None
    assert spec.total == stored


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_types[0])
def test_both_know_the_same_classes(family):
    counted = families()[family.model_types[0]].classes
    assert counted.keys() <= family.heads.keys()
