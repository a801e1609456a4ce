"""A model of any architecture in which everything but the residual stream stays as it was.

A first run is recorded. In the next ones each module with weights puts out what it put out then,
but for the first one behind an attention call, the output projection, and those behind the blocks;
each norm adds what it makes, at its recorded scale, of how far its input is from that of then.
Taking out a head so changes the logits by what the head wrote to them, and by nothing else.
"""

from contextlib import ExitStack

import torch
from torch import Tensor, nn

_CAPS = ("final_logit_softcapping", "logits_soft_cap")


class FrozenReplay:
    """``patchable``: a model as ablation takes it. ids: the text (1, token)."""

    def __init__(self, patchable, ids):
        self._patchable = patchable
        self._ids = ids
        self._inside = {id(inner) for block in _blocks(patchable.root) for inner in block.modules()}
        self._seen = {}
        self._calls = {}
        self._heads = ()
        self._open = False  # whether a head was taken out whose projection has not run yet
        self._replaying = False
        self.logits = self._run(())
        self._replaying = True

    def written(self, *heads):
        """What (layer, head) pairs wrote to the logits (token, word)."""
        return self.logits - self._run(heads)

    def _run(self, heads):
        self._calls.clear()
        model, self._heads = self._patchable, heads
        with ExitStack() as hooks, torch.no_grad():
            hooks.enter_context(model.hook_points.borrowed())
            hooks.enter_context(model.hook_points.intervening(self))
            for module in model.root.modules():
                matrices = any(each.ndim > 1 for each in module.parameters(recurse=False))
                if matrices or _is_norm(module) or _is_activation(module):
                    hooks.callback(module.register_forward_hook(self._leave).remove)
            logits = model.root(input_ids=self._ids, **model.options).logits[0]
        config = model.root.config.get_text_config()
        caps = [getattr(config, name, None) for name in _CAPS]
        cap = next(filter(None, caps), None)
        return logits if cap is None else cap * torch.atanh(logits / cap)

    def edit(self, number, point, outputs):
        heads = [head for layer, head in self._heads if layer == point.layer]
        if heads:
            self._open = True
            outputs = outputs.clone()
            outputs[:, :, heads] = 0
        return outputs

    def _leave(self, module, args, output):
        call = self._calls[id(module)] = self._calls.get(id(module), -1) + 1
        if not self._replaying:
            self._seen[id(module), call] = _copied(args), _copied(output)
            return None
        clean, before = self._seen[id(module), call]
        inside, alone = id(module) in self._inside, len(args) == 1
        if _is_norm(module) and alone:
            scales = before.shape != clean[0].shape  # a scale alone is held
            return before if scales else before + _held(module, args[0], clean[0], before)
        if _is_activation(module):
            return None if inside else args[0] * before / clean[0]
        # A gate runs behind attention as well, but reads what it always read.
        if self._open and alone and args[0].shape == clean[0].shape:
            self._open = torch.equal(args[0], clean[0])
            return _copied(before) if self._open else None
        return _copied(before) if inside else None


def _copied(given):
    """What is added to in place must not change what is kept."""
    if isinstance(given, tuple):
        return tuple(map(_copied, given))
    return given.clone() if isinstance(given, Tensor) else given


def _held(module, x, clean, output):
    """A norm's gain in the recorded run, times how far x is from what it was then."""
    bias = getattr(module, "bias", None)
    moved = module.forward(clean + 1)
    centred = torch.allclose(output, moved, atol=1e-3, rtol=1e-3)
    apart = x - clean
    if centred:
        apart, clean = (one - one.mean(-1, keepdim=True) for one in (apart, clean))
    gain = (output if bias is None else output - bias) / clean
    return torch.where(apart == 0, 0, gain * apart)


def _is_norm(module):
    return "Norm" in type(module).__name__ and not list(module.children())


def _is_activation(module):
    return "GELU" in type(module).__name__


def _blocks(module):
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _blocks(child)
