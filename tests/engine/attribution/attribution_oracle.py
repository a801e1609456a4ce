"""What each part writes to a logit, worked out by hand on the model's own modules.

A part's writing is taken where its module puts it out: a head's is what the output projection makes
of that head's slice alone, without its bias. From there it goes through the modules between it and
the logit one by one, each linear by the formula of the paper with the scale of the recorded run.
Shares nothing with attnviz: the ways were written from the architectures' modeling files.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml
from torch import Tensor

_TABLE = Path(__file__).with_name("routes.yaml").read_text(encoding="utf-8")


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


ROUTES = {name: Route(**row) for name, row in yaml.safe_load(_TABLE).items()}


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
