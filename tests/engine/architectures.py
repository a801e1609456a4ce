"""Tiny random models of many architectures; sizes are primes where the architecture permits."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)
from transformers.models.gptj import modeling_gptj

from attnviz.engine.forward_pass import plan_pass, wanted_kinds
from attnviz.engine.observe_torch import observe_pass

from ..small_models import (
    GPT_OSS,
    QWEN3_NEXT,
    SPECIAL,
    bart_fields,
    bert_fields,
    deepseek_fields,
    gpt_fields,
    llama_fields,
    t5_fields,
)

_AUTO = {
    "decoder": AutoModelForCausalLM,
    "encoder": AutoModelForMaskedLM,
    "both": AutoModelForSeq2SeqLM,
}

_LLAMA = llama_fields(24, 37, 31, (6, 2, 4), layers=3)
_BERT = bert_fields(21, 37, 31, layers=3)
_BART = bart_fields(22, 37, 31, (2, 3), (2, 2)) | {
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
_SIZES = {"num_hidden_layers": 3, "num_attention_heads": 3, "max_position_embeddings": 31}
_GPT = gpt_fields(24, 31, layers=3)
_GPTJ_LOOKS_UP = hasattr(modeling_gptj, "ALL_ATTENTION_FUNCTIONS")
"""GPT-J and CodeGen use transformers' attention interface since transformers 5.24."""


@dataclass(frozen=True)
class Architecture:
    """A configuration and what is to be expected of it.

    stack: which auto class opens it.
    config: sizes; the rest is the architecture's default.
    layers: the true index of each layer that has attention (decoder's in an encoder–decoder).
    registered: whether it uses transformers' attention interface.
    """

    stack: str
    config: dict[str, Any] = field(default_factory=dict)
    layers: tuple[int, ...] = (0, 1, 2)
    registered: bool = True


ARCHITECTURES = {
    "gpt2": Architecture("decoder", _GPT),
    "llama": Architecture("decoder", _LLAMA),
    "mistral": Architecture("decoder", _LLAMA | {"sliding_window": 5}),
    "qwen2": Architecture("decoder", _LLAMA),
    "qwen3": Architecture("decoder", _LLAMA),
    "gemma2": Architecture(
        "decoder", _LLAMA | {"attn_logit_softcapping": 0.5, "sliding_window": 5}
    ),
    "gpt_oss": Architecture("decoder", _LLAMA | GPT_OSS),
    "deepseek_v3": Architecture("decoder", deepseek_fields(layers=3)),
    "phi": Architecture(
        "decoder", _LLAMA | {"num_key_value_heads": 6, "partial_rotary_factor": 0.5}
    ),
    "gpt_neox": Architecture("decoder", _LLAMA),
    "cohere": Architecture("decoder", _LLAMA),
    "olmo2": Architecture("decoder", _LLAMA),
    "stablelm": Architecture("decoder", _LLAMA | {"partial_rotary_factor": 0.5}),
    "opt": Architecture(
        "decoder",
        dict(_SIZES, hidden_size=22, word_embed_proj_dim=22, ffn_dim=37, num_attention_heads=2),
    ),
    "qwen3_next": Architecture(
        "decoder",
        dict(
            _LLAMA | QWEN3_NEXT,
            num_hidden_layers=4,
            layer_types=["linear_attention", "full_attention"] * 2,
        ),
        layers=(1, 3),
    ),
    "bert": Architecture("encoder", _BERT),
    "roberta": Architecture("encoder", _BERT),
    "electra": Architecture("encoder", _BERT | {"embedding_size": 11}),
    "albert": Architecture("encoder", _BERT | {"embedding_size": 11}),
    "distilbert": Architecture(
        "encoder",
        {"dim": 21, "hidden_dim": 37, "n_layers": 3, "n_heads": 3, "max_position_embeddings": 31},
    ),
    "modernbert": Architecture(
        "encoder",
        dict(
            _BERT | {"hidden_size": 24, "local_attention": 6, "global_attn_every_n_layers": 3},
            cls_token_id=1,
            sep_token_id=2,
        ),
    ),
    "t5": Architecture("both", t5_fields(23, 5, 37, layers=(2, 3))),
    "bart": Architecture("both", _BART),
    "marian": Architecture("both", _BART),
    "gptj": Architecture("decoder", _GPT | {"rotary_dim": 4}, registered=_GPTJ_LOOKS_UP),
    "codegen": Architecture(
        "decoder", _GPT | {"n_head": 4, "rotary_dim": 4}, registered=_GPTJ_LOOKS_UP
    ),
    "bloom": Architecture(
        "decoder", {"hidden_size": 21, "n_layer": 3, "n_head": 3}, registered=False
    ),
    "falcon": Architecture(
        "decoder",
        dict(_SIZES, hidden_size=24, multi_query=True, new_decoder_architecture=False),
        registered=False,
    ),
    "gpt_neo": Architecture(
        "decoder",
        {
            "hidden_size": 21,
            "num_layers": 3,
            "num_heads": 3,
            "window_size": 5,
            "attention_types": [[["global", "local", "global"], 1]],
            "max_position_embeddings": 31,
        },
        registered=False,
    ),
    "mpt": Architecture(
        "decoder", {"d_model": 24, "n_heads": 3, "n_layers": 3, "max_seq_len": 31}, registered=False
    ),
    "xglm": Architecture(
        "decoder",
        {"d_model": 22, "attention_heads": 2, "num_layers": 3, "ffn_dim": 37},
        registered=False,
    ),
    "deberta-v2": Architecture(
        "encoder",
        _BERT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        registered=False,
    ),
    "fsmt": Architecture(
        "both",
        {key: value for key, value in _BART.items() if key != "forced_eos_token_id"}
        | {"src_vocab_size": 97, "tgt_vocab_size": 97},
        registered=False,
    ),
}


QUICK = ("gpt2", "llama", "gemma2", "gpt_oss", "qwen3_next", "bert", "albert", "t5", "bloom")
"""Fused and grouped projections, caps, sinks, windows, gates, layers without attention or that
share weights, both stacks, distances, and attention that a model computes by itself."""


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
