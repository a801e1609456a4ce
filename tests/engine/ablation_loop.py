"""The slow loop: heads removed one at a time by a pre-hook on the output projection, from a table.

Shares nothing with the scan: the table of projections was written by hand from the architectures'
modeling files, and every metric is computed from whole logits in float64.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.models.model import MaskToken

from .architectures import ARCHITECTURES

MASK = MaskToken(96, "<mask>")
"""Hides a word from the masked models."""
PROJECTIONS = {name: one.output for name, one in ARCHITECTURES.items() if one.output}
"""By architecture and kind of attention the output projection, with a place for the layer."""


def heads_of(name, kind, layers):
    """Every (layer, head) of one kind of attention."""
    config = ARCHITECTURES[name].config
    names = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
    heads = next(config[field] for field in (*names, "decoder_attention_heads") if field in config)
    return [(layer, head) for layer in layers for head in range(heads)]


@dataclass(frozen=True)
class Clean:
    """One run: log-probabilities (position, word) or None, and final hidden states."""

    scores: Tensor | None
    logits: Tensor | None
    hidden: Tensor


def outputs_without(model, name, kind, heads, pairs, inputs, value=None):
    """Run once with the heads' columns of each projection's input replaced, by zero if None."""
    places = {}
    for layer, head in pairs:
        places.setdefault(PROJECTIONS[name][kind].format(layer), []).append((layer, head))
    calls = dict.fromkeys(places, -1)

    def replace(path):
        def hook(module, args):
            calls[path] += 1
            merged = args[0].clone()
            width = merged.shape[-1] // heads
            for layer, head in places[path]:
                # A block that all layers share is one projection, called once for each.
                if "{}" in PROJECTIONS[name][kind] or layer == calls[path]:
                    columns = slice(head * width, (head + 1) * width)
                    merged[..., columns] = 0 if value is None else value[layer, head]
            return (merged, *args[1:])

        return hook

    hidden = []
    base = model.get_decoder() if "decoder_input_ids" in inputs else model.base_model
    if name == "opt":
        base = model.model.decoder
    with ExitStack() as hooks, torch.inference_mode():
        for path in places:
            handle = model.get_submodule(path).register_forward_pre_hook(replace(path))
            hooks.callback(handle.remove)
        hooks.callback(base.register_forward_hook(lambda *call: hidden.append(call[-1][0])).remove)
        outputs = model(**inputs, use_cache=False) if takes_cache(name) else model(**inputs)
    logits = outputs.logits[0].double()
    return Clean(torch.log_softmax(logits, -1), logits, hidden[0][0].double())


def takes_cache(name):
    return name not in ("distilbert", "albert", "modernbert", "deberta-v2")


def loop_metrics(model, name, kind, heads, pairs, inputs, masked, value=None):
    """Every metric of one removal, computed from two whole runs (two for each word if masked)."""
    plain = outputs_without(model, name, kind, heads, (), inputs)
    removed = outputs_without(model, name, kind, heads, pairs, inputs, value)
    cosine = torch.nn.functional.cosine_similarity(plain.hidden, removed.hidden, dim=-1)
    found = {
        "output_mse": float((plain.hidden - removed.hidden).square().mean()),
        "output_cosine": float((1 - cosine).mean()),
    }
    read = inputs["decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"][0]
    if not masked:
        before, after, wanted = plain.scores, removed.scores, read[1:]
        losses = (before[:-1] - after[:-1]).gather(-1, wanted[:, None])[:, 0]
    else:
        rows = []
        for at in range(len(read)):
            hidden = inputs | {"input_ids": inputs["input_ids"].clone()}
            hidden["input_ids"][0, at] = MASK
            pair = (
                outputs_without(model, name, kind, heads, (), hidden),
                outputs_without(model, name, kind, heads, pairs, hidden, value),
            )
            rows.append([one.scores[at] for one in pair])
        before, after = (torch.stack(side) for side in zip(*rows, strict=True))
        losses = (before - after).gather(-1, read[:, None])[:, 0]
    found["loss_delta"] = float(losses.mean())
    found["kl"] = float((before.exp() * (before - after)).sum(-1).mean())
    found["flip_rate"] = float((before.argmax(-1) != after.argmax(-1)).double().mean())
    first, second = (
        (plain.logits[-1], removed.logits[-1]) if not masked else (before[-1], after[-1])
    )
    found["logit_diff"] = float((second[5] - second[7]) - (first[5] - first[7]))
    return found
