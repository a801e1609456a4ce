"""``params`` on every causal class of transformers, against models that the library runs.

The oracles know nothing of our counting: the parameters of the class itself on torch's meta
device, and the bytes of the tensors in the cache that a real model hands out after a pass.
"""

import pytest
import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache
from transformers.utils import logging

from ...every_causal import causal_kinds, small_config

TOKENS = 10
"""More than the window of four that small configs have."""

QUICK = {"bamba", "deepseek_v3", "falcon", "gemma2", "qwen3_next"}
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
