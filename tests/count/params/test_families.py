"""The arithmetic against the library, which builds each claimed class on the meta device."""

import pytest
import torch
import transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache
from transformers.utils import logging
from transformers.utils import logging as transformers_logging

from attnviz.count.params.find_spec import families, spec_from_config
from attnviz.count.params.meta_count import count_on_meta
from attnviz.count.params.specs import total

from ...every_causal import causal_kinds, small_config
from ...quick import one_in
from .small_configs import COMPLETED, DECODER, ODD, SLIDING

transformers_logging.set_verbosity_error()

CLASSES = [(kind, name) for kind, adapter in families().items() for name in adapter.classes]
DECODERS = families("decoder")
SWITCHED = {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 2}
TOKENS = 10
"""More than the window of four that small configs have."""
QUICK = {"bamba", "deepseek_v3", "falcon", "gemma2", "qwen3_next"}

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


SLIDES = [
    kind
    for kind, adapter in DECODERS.items()
    if any(read.keywords.get("slides") for read in adapter.classes.values())
]


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


KEPT = {
    *("gpt_neo", "mamba2", "mixtral", "falcon_h1", "gpt2", "granitemoehybrid"),
    *("jamba", "llama", "mamba", "nemotron_h", "zamba2"),
}
NOT_MADE = {
    "cohere_compass_text": "its own default names no rotation of its full layers",
    "dory": "its numbers of layers hang together",
    "dots3_note_text": "has sizes of its own in each layer",
    "gemma3n": "asks for timm",
    "gemma4_assistant": "refuses its own default",
    "gemma4_unified_assistant": "refuses its own default",
    "qwen4_exp_text": "its own default lacks the sizes of its index",
    **dict.fromkeys(
        [
            *("dots3_note", "emu3", "llama4", "musicgen"),
            *("musicgen_melody", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
        ],
        "holds several models",
    ),
}
"""What no small config can be made of, and why."""

SLOW = sorted(
    KEPT | {*[kind for kind in sorted(causal_kinds()) if kind not in NOT_MADE][::2]} - QUICK
)
"""Every second of the others: many are copies of one another."""


def held(cache):
    """Bytes of a cache; a full window counts the token that is dropped before the next step."""
    total = 0
    for layer in cache.layers:
        window = getattr(layer, "sliding_window", None)
        for name in ("keys", "values", "indexer_keys"):
            tensor = getattr(layer, name, None)
            if tensor is not None:
                tokens = TOKENS if window is None else min(window, TOKENS)
                total += tensor.nbytes // tensor.shape[-2] * tokens
        for name in ("conv_states", "recurrent_states"):
            states = getattr(layer, name, {}).values()
            total += sum(state.nbytes for state in states if state is not None)
    return total


def kept(config):
    """Bytes that a random model of this config keeps; None where no cache of the library's own."""
    torch.manual_seed(0)
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval()
    with torch.no_grad():
        output = model(torch.arange(4, 4 + TOKENS)[None], use_cache=True)
    caches = [value for value in output.values() if isinstance(value, DynamicCache)]
    return held(caches[0]) if caches else None


@pytest.mark.parametrize(
    "kind", [*sorted(QUICK), *(pytest.param(kind, marks=pytest.mark.long) for kind in SLOW)]
)
def test_params_counts_what_the_library_builds_and_keeps(kind, run, tmp_path):
    logging.set_verbosity_error()
    config = small_config(kind)
    config.save_pretrained(tmp_path / "m")
    arguments = ("--tokens", str(TOKENS), "--dtype", "float32", "--json")
    document = run("params", str(tmp_path / "m"), *arguments).document
    with torch.device("meta"):
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
    assert document["total"] == sum(weight.numel() for weight in model.parameters())
    if document["kv_cache"] is not None:  # null: it says that the cache is not told
        assert document["kv_cache"]["bytes"] == kept(config)
    assert document["kv_cache"] is not None or kind not in QUICK | KEPT
