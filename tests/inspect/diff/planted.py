"""Changes of a known kind, planted in the bundled model, and what the comparison makes of them."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np

from attnviz.attention.checkpoint import llama_stack
from attnviz.engine.capture import Probing
from attnviz.inspect.diff import compare
from attnviz.inspect.diff.report import Noise
from attnviz.models.resolve import in_other_numbers
from attnviz.records import Input

Head = tuple[int, int]

LAYERS, HEADS, DIM = 6, 4, 32
EVERY = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


def maps_of(model, texts):
    """The maps of a causal model over texts, each at most as long as its context."""
    probing = Probing(model, "self", causal=True)
    return compare.model_maps(probing, [Input(model.encode(text, model.context)) for text in texts])


def floor_of(model, whole, texts):
    """The noise floor; a torch model is converted by that."""
    noise = maps_of(in_other_numbers(model).model, texts)
    return compare.noise_floor(
        compare.divergences(whole, noise, compare.pairs_by_index(whole.heads, whole.heads))
    )


def floor_of_both(first, second, texts):
    """Return the floor of two models, as ``diff`` takes it: the larger one of each number."""
    one, other = (floor_of(*each, texts) for each in (first, second))
    return Noise(one, "A").or_more(Noise(other, "B")).floor


@dataclass(frozen=True)
class Verdict:
    """The heads that attend elsewhere, that put out something else, and the largest change."""

    changed: frozenset[Head]
    output_changed: frozenset[Head]
    first: Head

    @property
    def found(self):
        return bool(self.changed | self.output_changed)


def verdict(first, second, floor, seed=0):
    """What a comparison of the two says."""
    pairs = compare.pairs_by_index(first.heads, second.heads)
    apart = compare.divergences(first, second, pairs)
    js, output = compare.over_texts(apart.js, seed), compare.over_texts(apart.output, seed)
    names = [left for left, _ in pairs]
    return Verdict(
        frozenset(name for name, mean in zip(names, js, strict=True) if mean.above(floor.js)),
        frozenset(
            name for name, mean in zip(names, output, strict=True) if mean.above(floor.output)
        ),
        names[int(np.argmax([max(a.mean, b.mean) for a, b in zip(js, output, strict=True)]))],
    )


def changed_model(model, change):
    """A copy of the bundled model with changed tensors."""
    tensors = {name: np.array(tensor) for name, tensor in model.checkpoint.tensors.items()}
    change(tensors)
    changed = copy(model)
    changed.stack = llama_stack(model.checkpoint.config, tensors, "float32")
    return changed


def _rows(head):
    return slice(head * DIM, (head + 1) * DIM)


def permute_queries(tensors, head, seed):
    """The dimensions of one head's query in another order."""
    weight = tensors[f"model.layers.{head[0]}.self_attn.q_proj.weight"]
    order = np.random.default_rng(seed).permutation(DIM)
    weight[_rows(head[1])] = weight[_rows(head[1])][order]


def zero_head(tensors, head):
    tensors[f"model.layers.{head[0]}.self_attn.v_proj.weight"][_rows(head[1])] = 0


def four_bits(tensors, layer, seed):
    """Every matrix of a layer rounded, at random, to fifteen steps a row."""
    generator = np.random.default_rng(seed)
    for name, weight in tensors.items():
        if name.startswith(f"model.layers.{layer}.") and weight.ndim == 2:
            step = np.abs(weight).max(-1, keepdims=True) / 7
            weight[:] = np.floor(weight / step + generator.random(weight.shape)) * step
