"""Tiny random models of many architectures; sizes are primes where the architecture permits."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)
from transformers.models.gptj import modeling_gptj

from attnviz.engine.forward_pass import plan_pass, wanted_kinds
from attnviz.engine.observe_torch import observe_pass

from ..small_models import SPECIAL

_AUTO = {
    "decoder": AutoModelForCausalLM,
    "encoder": AutoModelForMaskedLM,
    "both": AutoModelForSeq2SeqLM,
}
_GPTJ_LOOKS_UP = hasattr(modeling_gptj, "ALL_ATTENTION_FUNCTIONS")
"""GPT-J and CodeGen use transformers' attention interface since transformers 5.24."""
_TABLE = Path(__file__).with_name("architectures.yaml").read_text(encoding="utf-8")
QUICK = ("gpt2", "llama", "gemma2", "gpt_oss", "qwen3_next", "bert", "albert", "t5", "bloom")
"""Fused and grouped projections, caps, sinks, windows, gates, layers without attention or that
share weights, both stacks, distances, and attention that a model computes by itself."""


@dataclass
class Architecture:
    """A configuration and what is to be expected of it.

    stack: which auto class opens it.
    config: sizes; the rest is the architecture's default.
    output: by kind of attention the output projection, with a place for the layer.
    layers: the true index of each layer that has attention (decoder's in an encoder–decoder).
    registered: whether it uses transformers' attention interface.
    """

    stack: str
    config: dict[str, Any]
    output: dict[str, str] = field(default_factory=dict)
    layers: tuple[int, ...] = (0, 1, 2)
    registered: bool = True


ARCHITECTURES = {
    name: Architecture(**row) for name, row in yaml.safe_load(_TABLE)["architectures"].items()
}
for _name in ("gptj", "codegen"):
    ARCHITECTURES[_name].registered = _GPTJ_LOOKS_UP


def quick_or_long(names):
    """Return parameters for a test: architectures that are not among ``QUICK`` are marked long."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in names]


def small_model(name, attention=None, seed=0):
    """The architecture's model with random weights, in evaluation mode."""
    architecture = ARCHITECTURES[name]
    vocabulary = {} if name == "fsmt" else {"vocab_size": 97}
    config = AutoConfig.for_model(name, **vocabulary, **SPECIAL, **architecture.config)
    torch.manual_seed(seed)
    model = _AUTO[architecture.stack].from_config(config, attn_implementation=attention).eval()
    # Initial weights near zero give rows so even that little could go wrong with them.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def state_of(model):
    """All that observing and ablating must leave as it was, module by module."""
    return [
        (
            module.training,
            set(vars(module)),
            len(module._forward_hooks) + len(module._forward_pre_hooks),
            [parameter.requires_grad for parameter in module.parameters(recurse=False)],
            getattr(getattr(module, "config", None), "_attn_implementation", None),
        )
        for module in model.modules()
    ]


def inputs_of(name, source=11, target=7):
    """Random token ids, without special ones, for one text."""
    generator = torch.Generator().manual_seed(3)
    inputs = {"input_ids": torch.randint(3, 97, (1, source), generator=generator)}
    if ARCHITECTURES[name].stack == "both":
        inputs["decoder_input_ids"] = torch.randint(3, 97, (1, target), generator=generator)
    return inputs


def eager_attentions(name, **inputs):
    """What transformers itself reports for the same weights, by kind and layer: the oracle."""
    model = small_model(name, attention="eager")
    with torch.inference_mode():
        outputs = model(**inputs, output_attentions=True)
    architecture = ARCHITECTURES[name]
    if architecture.stack != "both":
        return {
            ("self", layer): weights
            for layer, weights in zip(architecture.layers, outputs.attentions, strict=True)
        }
    return {
        (kind, layer): weights
        for kind in ("encoder", "decoder", "cross")
        for layer, weights in enumerate(outputs[f"{kind}_attentions"])
    }


@torch.inference_mode()
def observe_transformers(model, observer, input_ids, *, cells=None, **texts):
    """Run once and hand ``observer`` each wanted layer's weights; see ``observe_pass``."""
    forward = plan_pass(model, wanted_kinds(observer, model), input_ids, **texts)
    observe_pass(forward, observer, cells=cells)
