"""The arithmetic against the library, which builds each claimed class on the meta device."""

import pytest
import transformers
from transformers.utils import logging as transformers_logging

from attnviz.count.params.find_spec import families, spec_from_config
from attnviz.count.params.meta_count import count_on_meta
from attnviz.count.params.specs import total

from ...quick import one_in
from .small_configs import COMPLETED, DECODER, ODD, SLIDING

transformers_logging.set_verbosity_error()

CLASSES = [(kind, name) for kind, adapter in families().items() for name in adapter.classes]

# What the default config of the library itself lacks to build a model.


def compare(kind, architecture, fields):
    """Count once by arithmetic from the fields alone, and once from the library's own model."""
    config = {"model_type": kind, "architectures": [architecture], **fields}
    built = count_on_meta(config, name=kind)
    spec = spec_from_config(config, name=kind)
    assert (spec.total, total(spec.buffers)) == (built.total, built.buffers)
    return spec


def test_at_least_25_architectures_are_claimed():
    assert len(families()) >= 50
    assert set(ODD) == set(families())


@pytest.mark.parametrize(("kind", "architecture"), one_in(2, dict(CLASSES).items()))
def test_default_sizes(kind, architecture):
    compare(kind, architecture, COMPLETED.get(kind, {}))


@pytest.mark.parametrize(
    ("kind", "architecture", "fields"),
    one_in(
        2,
        [
            (kind, name, fields)
            for kind, name in CLASSES
            for fields in (ODD[kind] if dict(CLASSES)[kind] == name else ODD[kind][:1])
        ],
    ),
)
def test_odd_sizes(kind, architecture, fields):
    """Of every class the first fields, and of the last class of a kind all of them.

    Half of them in the quick run: the default sizes are of every second class there, too.
    """
    spec = compare(kind, architecture, fields)
    # What the library writes into a config.json reads as the same design.
    written = transformers.AutoConfig.for_model(kind, **fields).to_diff_dict()
    again = spec_from_config({**written, "architectures": [architecture]}, name=kind)
    assert again == spec


DECODERS = families("decoder")
SLIDES = [
    kind
    for kind, adapter in DECODERS.items()
    if any(read.keywords.get("slides") for read in adapter.classes.values())
]
SWITCHED = {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 2}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        *((kind, COMPLETED.get(kind, {})) for kind in DECODERS),
        *((kind, fields) for kind in DECODERS for fields in ODD[kind]),
        *((kind, {**ODD[kind][0], **SWITCHED}) for kind in SLIDES),
        ("smollm3", {**DECODER, **SWITCHED, "no_rope_layers": [1, 0, 0, 1, 0]}),
        ("gemma2", {**DECODER, **SLIDING, "layer_types": ["full_attention"] * 5}),
    ],
)
def test_the_same_layers_slide(kind, fields):
    config = transformers.AutoConfig.for_model(kind, **fields)
    cache = transformers.DynamicCache(config=config)
    slides = [getattr(layer, "sliding_window", None) for layer in cache.layers]
    spec = spec_from_config({"model_type": kind, **fields})
    windows = {}
    for group in spec.main.groups:
        attention = group.layer.attentions[0]
        indices = range(group.repeat) if group.indices is None else group.indices
        windows |= dict.fromkeys(indices, attention.window)
    assert [windows[layer] for layer in range(spec.main.depth)] == slides
