"""What each part writes to a logit, worked out by hand on the model's own modules.

A part's writing is taken where its module puts it out: a head's is what the output projection makes
of that head's slice alone, without its bias. From there it goes through the modules between it and
the logit one by one, each linear by the formula of the paper with the scale of the recorded run.
Shares nothing with attnviz: the ways were written from the architectures' modeling files.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Route:
    """Where the parts of an architecture write, by module path with a place for the layer.

    heads: by kind of attention the output projection, and the modules of the same block between it
        and the stream.
    mlp: the same of the feed-forward network.
    norms: those that the stream itself goes through in each block, behind attention and behind mlp.
    ending: modules behind the last block. factor: by which logits are multiplied at the end.
    values: of the plainest layouts, by kind the projection that puts out values.
    """

    heads: dict[str, tuple[str, ...]]
    mlp: tuple[str, ...]
    block: str
    ending: tuple[str, ...]
    norms: tuple[str, ...] = ()
    factor: float = 1.0
    values: dict[str, str] = field(default_factory=dict)


_LAYER = "model.layers.{}."
_LLAMA = Route(
    {"self": (_LAYER + "self_attn.o_proj",)},
    (_LAYER + "mlp",),
    _LAYER.rstrip("."),
    ("model.norm", "lm_head"),
    values={"self": _LAYER + "self_attn.v_proj"},
)
_SANDWICH = Route(
    {"self": (_LAYER + "self_attn.o_proj", _LAYER + "post_attention_layernorm")},
    (_LAYER + "mlp", _LAYER + "post_feedforward_layernorm"),
    _LAYER.rstrip("."),
    ("model.norm", "lm_head"),
    values={"self": _LAYER + "self_attn.v_proj"},
)
_BERT = "bert.encoder.layer.{}."
_T5 = "decoder.block.{}.layer."

ROUTES = {
    "gpt2": Route(
        {"self": ("transformer.h.{}.attn.c_proj",)},
        ("transformer.h.{}.mlp",),
        "transformer.h.{}",
        ("transformer.ln_f", "lm_head"),
    ),
    "llama": _LLAMA,
    "gpt_oss": _LLAMA,
    "cohere": Route(**{**vars(_LLAMA), "factor": 0.0625}),
    "gemma2": _SANDWICH,
    "olmo2": _SANDWICH,
    "gpt_neox": Route(
        {"self": ("gpt_neox.layers.{}.attention.dense",)},
        ("gpt_neox.layers.{}.mlp",),
        "gpt_neox.layers.{}",
        ("gpt_neox.final_layer_norm", "lm_head"),
    ),
    "bert": Route(
        {"self": (_BERT + "attention.output.dense",)},
        (_BERT + "output.dense",),
        _BERT.rstrip("."),
        (
            "cls.predictions.transform.dense",
            "cls.predictions.transform.transform_act_fn",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
        ),
        norms=(_BERT + "attention.output.LayerNorm", _BERT + "output.LayerNorm"),
        values={"self": _BERT + "attention.self.value"},
    ),
    "t5": Route(
        {"decoder": (_T5 + "0.SelfAttention.o",), "cross": (_T5 + "1.EncDecAttention.o",)},
        (_T5 + "2.DenseReluDense",),
        "decoder.block.{}",
        ("decoder.final_layer_norm", "lm_head"),
        factor=23**-0.5,
        values={"decoder": _T5 + "0.SelfAttention.v", "cross": _T5 + "1.EncDecAttention.v"},
    ),
    "bloom": Route(
        {"self": ("transformer.h.{}.self_attention.dense",)},
        ("transformer.h.{}.mlp.dense_4h_to_h",),
        "transformer.h.{}",
        ("transformer.ln_f", "lm_head"),
    ),
}


class Recorded:
    """One run of a model: what went into its modules, and what came out."""

    def __init__(self, model, inputs, **options):
        self.model = model
        self.entered = {}
        self.left = {}

        def keep(name):
            def hook(module, args, kwargs, output):
                given = args[0] if args else kwargs.get("hidden_states")
                if isinstance(given, Tensor):
                    self.entered[name] = given
                self.left[name] = output if isinstance(output, Tensor) else output[0]

            return hook

        with ExitStack() as hooks, torch.no_grad():
            for name, module in model.named_modules():
                handle = module.register_forward_hook(keep(name), with_kwargs=True)
                hooks.callback(handle.remove)
            self.outputs = model(**inputs, **options)

    def through(self, path, written, place):
        """What a module, held, makes of a part (..., width) of its input at one position."""
        module = self.model.get_submodule(path)
        x = self.entered[path][0]
        x = x[place] if x.ndim > 1 else x  # a pooler is given one token alone
        if type(module).__name__ == "Linear":
            return written @ module.weight.T
        if type(module).__name__ == "LayerNorm":
            scale = (x.var(unbiased=False) + module.eps).rsqrt()
            return (written - written.mean(-1, keepdim=True)) * scale * module.weight
        if type(module).__name__ == "CohereLayerNorm":
            scale = (x.var(unbiased=False) + module.variance_epsilon).rsqrt()
            return (written - written.mean(-1, keepdim=True)) * scale * module.weight
        if "RMSNorm" in type(module).__name__ or type(module).__name__ == "T5LayerNorm":
            eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
            weight = module.weight + ("Gemma" in type(module).__name__)
            return written * (x.square().mean() + eps).rsqrt() * weight
        return written * module(x) / x  # an activation


def to_logits(run, route, layers, layer, stage, written, place):
    """From the stream in ``layer`` to the logits; ``stage``: how many of its norms lie behind."""
    norms = [norm.format(at) for at in range(layer, layers) for norm in route.norms][stage:]
    for path in (*norms, *route.ending):
        written = run.through(path, written, place)
    return written * route.factor


def head_written(run, route, layers, kind, layer, merged, place):
    """What a merged output (..., heads · dim) of ``layer`` writes to the logits."""
    projection, *between = (path.format(layer) for path in route.heads[kind])
    module = run.model.get_submodule(projection)
    written = module(merged) - module(torch.zeros_like(merged))
    for path in between:
        written = run.through(path, written, place)
    return to_logits(run, route, layers, layer, 0, written, place)
