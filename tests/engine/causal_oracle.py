"""What a causal model's weights and removals are, worked out without attnviz.

Weights are what transformers itself reports under its eager attention. A head is removed in a copy
of the model whose files' own eager functions are replaced, or by a hook on the output projection.
"""

import re
import sys
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

_CLASS = re.compile(r"Attention|SelfOutput")
_NAME = re.compile(r"(o_proj|out_proj|c_proj|dense|out_lin|Wo|wo|o)")


@torch.inference_mode()
def runs(model, ids, **options):
    """One run, without a cache where the model's layers do not fit the library's."""
    try:
        return model(input_ids=ids, **options)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, KeyError):
        return model(input_ids=ids, use_cache=False, **options)


def reported(model, ids):
    """The weights (head, query, key) of every layer that reports any; none where all are silent."""
    found = getattr(runs(model, ids, output_attentions=True), "attentions", None) or ()
    return [weights[0] for weights in found if isinstance(weights, Tensor)]


def loss_of(model, ids):
    logits = runs(model, ids).logits[0].float()
    return float(functional.cross_entropy(logits[:-1], ids[0, 1:]))


@contextmanager
def removed(model, call, calls, head, heads):
    """While this is open, one head of the ``call``-th of so many attentions puts out zero.

    The model runs under its eager attention. Fails where another number of calls is seen.
    """
    seen = {"function": 0, "hook": 0}
    turns = []

    def due(way):
        at = seen[way] % calls
        seen[way] += 1
        if at == call:
            turns.append(way)
        return at == call

    def function(plain):
        def attend(*args, **kwargs):
            output, weights = plain(*args, **kwargs)
            if due("function"):
                output = output.clone()
                output[:, :, head] = 0
            return output, weights

        return attend

    def hook(module, args):
        merged = args[0]
        if due("hook"):
            merged = merged.clone()
            width = merged.shape[-1] // heads
            merged[..., head * width : (head + 1) * width] = 0
        return (merged, *args[1:])

    files = {type(module).__module__ for module in model.modules()}
    with ExitStack() as undone:
        functions = [
            (sys.modules[file], name)
            for file in files
            for name in vars(sys.modules[file])
            if name.endswith("eager_attention_forward")
        ]
        for file, name in functions:
            undone.enter_context(patch.object(file, name, function(getattr(file, name))))
        runs(model, torch.arange(4, 7)[None])
        if not seen["function"]:  # the text passes none of them: attention is written out
            for name, module in model.named_modules():
                parent, _, own = name.rpartition(".")
                kind = type(model.get_submodule(parent)).__name__
                if _NAME.fullmatch(own) and _CLASS.search(kind):
                    undone.callback(module.register_forward_pre_hook(hook).remove)
        turns.clear()
        yield
    assert turns, "no attention call was met"
    assert not any(count % calls for count in seen.values()), f"{seen} calls, expected {calls}"
