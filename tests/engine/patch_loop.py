"""The slow loop: one site at a time by a plain hook on the model's own modules, from a table.

Shares nothing with the engine: where queries, keys, values and feed-forward outputs lie was written
by hand from the architectures' modeling files, and metrics come from whole logits in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from torch import Tensor

from .ablation_loop import PROJECTIONS, takes_cache

_LLAMA = "model.layers.{}.self_attn.{}_proj"
_BERT = "{}.encoder.layer.{{}}.attention.self.{{}}"
_LETTER = {"query": "q", "key": "k", "value": "v"}
_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Place:
    """Where a sort of site of one layer lies.

    path: the module. view: of its output, or its input, the part (token, head, dim).
    enters: whether it is the module's input. call: of a module that all layers share, which call.
    """

    path: str
    view: Callable[[Tensor], Tensor]
    enters: bool = False
    call: int = 0


def split(heads, part=0, parts=1, by_head=False):
    """Heads side by side; of parts of equal width, side by side or within each head."""

    def view(tensor):
        rows = tensor.reshape(-1, tensor.shape[-1])
        axes = (heads, parts, -1) if by_head else (parts, heads, -1)
        whole = rows.view(len(rows), *axes)
        return whole[:, :, part] if by_head else whole[:, part]

    return view


_STACKS = {
    "t5": ("{}.block.{{}}", {"encoder": "layer.1", "other": "layer.2"}, "DenseReluDense"),
    **dict.fromkeys(("bart", "marian"), ("model.{}.layers.{{}}", {}, "fc2")),
}


def place_of(name, kind, what, layer, heads):
    """Where a site lies; None where this table does not say."""
    call = layer if name == "albert" else 0
    if what == "output":
        path = PROJECTIONS[name][kind].format(layer)
        return Place(path, split(heads), enters=True, call=call)
    if what in ("mlp", "residual"):
        return _whole(name, kind, what, layer, call)
    letter = _LETTER[what]
    part = "qkv".index(letter)
    if name in _TABLE["fused"]:
        path, by_head = _TABLE["fused"][name]
        return Place(path.format(layer), split(heads, part, 3, by_head))
    if name in _TABLE["letters"]:
        return Place(_TABLE["letters"][name].format(layer, letter), split(heads))
    if name in ("bert", "roberta", "electra"):
        return Place(_BERT.format(name).format(layer, what), split(heads))
    if name == "albert":
        group = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention"
        return Place(f"{group}.{what}", split(heads), call=call)
    if name in ("bart", "marian", "t5"):
        table = _TABLE["stacked"]["t5" if name == "t5" else "bart"]
        return Place(table[kind].format(layer, letter), split(heads))
    if name == "olmo2":  # its norms run over all heads together
        path = f"model.layers.{layer}.self_attn." + (
            "v_proj" if letter == "v" else f"{letter}_norm"
        )
        return Place(path, split(heads))
    if name == "qwen3_next":
        parts = 2 if letter == "q" else 1  # a gate beside each query
        return Place(_LLAMA.format(layer, letter), split(heads, 0, parts, True))
    return None


def _whole(name, kind, what, layer, call):
    if name in _STACKS:
        stack, inner, last = _STACKS[name]
        block = stack.format("encoder" if kind == "encoder" else "decoder").format(layer)
        fed = inner.get("encoder" if kind == "encoder" else "other")
        path = ".".join(part for part in (block, fed, last) if part)
        if name == "t5" and kind == "cross":
            block += ".layer.1"
    else:
        path = _TABLE["feed_forward"][name].format(layer)
        block = path
        while not block.rsplit(".", 1)[-1].isdigit():
            block = block.rsplit(".", 1)[0]
    return Place(path if what == "mlp" else block, split(1), enters=what == "residual", call=call)


@dataclass(frozen=True)
class Put:
    """A value (token, dim) put in at some tokens of one head; None for all."""

    place: Place
    head: int
    tokens: Sequence[int] | None
    value: Tensor


@torch.inference_mode()
def run(model, name, inputs, puts=(), keep=()):
    """The logits (token, word) in float64, and of each place that is kept (token, head, dim)."""
    kept = {}
    calls = {}
    by_path = {}
    for put in puts:
        by_path.setdefault((put.place.path, put.place.enters), []).append(put)
    for place in keep:
        by_path.setdefault((place.path, place.enters), []).append(place)

    def change(path, enters, tensor):
        calls[path] = calls.get(path, -1) + 1
        tensor = tensor.clone().contiguous()
        for each in by_path[path, enters]:
            place = each.place if isinstance(each, Put) else each
            if name == "albert" and place.call != calls[path]:
                continue
            view = place.view(tensor)
            if isinstance(each, Put):
                tokens = slice(None) if each.tokens is None else list(each.tokens)
                view[tokens, each.head] = each.value[tokens]
            else:
                kept[place] = view.clone()
        return tensor

    def entering(path):
        def hook(module, args, kwargs):
            if args and isinstance(args[0], Tensor):
                return (change(path, True, args[0]), *args[1:]), kwargs
            hidden = change(path, True, kwargs["hidden_states"])
            return args, kwargs | {"hidden_states": hidden}

        return hook

    def leaving(path):
        def hook(module, args, output):
            first = output[0] if isinstance(output, tuple) else output
            first = change(path, False, first)
            return (first, *output[1:]) if isinstance(output, tuple) else first

        return hook

    with ExitStack() as hooks:
        for path, enters in by_path:
            module = model.get_submodule(path)
            if enters:
                handle = module.register_forward_pre_hook(entering(path), with_kwargs=True)
            else:
                handle = module.register_forward_hook(leaving(path))
            hooks.callback(handle.remove)
        outputs = model(**inputs, use_cache=False) if takes_cache(name) else model(**inputs)
    return outputs.logits[0].double(), kept


def metrics(logits, clean, answer, foil):
    """Of one row of logits (word,)."""
    scores, before = logits.log_softmax(-1), clean.log_softmax(-1)
    return {
        "logit_diff": float(logits[answer] - logits[foil]),
        "log_prob": float(scores[answer]),
        "kl": float((before.exp() * (before - scores)).sum()),
    }
