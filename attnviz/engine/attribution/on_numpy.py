"""Direct logit attribution of models that NumPy runs, without torch and without derivatives.

A head's contribution is computed directly: Σ_j α_ij · v_j W_O^h through the final norm with its
scale held, times the difference of two rows of the unembedding (Elhage et al. 2021).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Activation, Floats, project
from attnviz.attention.numpy_stack import NumpyStack, held_norm, neurons_of
from attnviz.engine.attribution.parts import (
    ONE_TOKEN_BATCH,
    AskedLogit,
    Attribution,
    Attributor,
    LensReading,
    NeuronReading,
    Part,
    block_readings,
    head_readings,
    index_of,
)
from attnviz.errors import UsageError
from attnviz.models.stack_model import StackModel
from attnviz.records import NO_PREDICTIONS, HeadKey, Input

ROUNDING = {"float32": 1e-4, "float64": 1e-10}
"""The largest difference between logit and sum of the parts, relative to the largest logit."""

_TOP = 5

_NAMES: Mapping[Activation, str] = {
    "silu": "SiLU",
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh)",
    "relu": "ReLU",
}


@dataclass(frozen=True)
class NumpyAttributor(Attributor):
    """Splits the logits of a decoder that NumPy runs into contributions of its parts."""

    model: StackModel

    @classmethod
    def of(cls, model: StackModel) -> NumpyAttributor | None:
        """Return the attributor of ``model``; None unless it is causal and predicts tokens."""
        if not model.causal or not model.stack.is_sum:
            return None
        if any(note.endswith(NO_PREDICTIONS) for note in model.info.notes):
            return None
        return cls(model)

    def taken_apart(self, given: Input, asked: AskedLogit) -> Attribution:
        stack, ids = self.model.stack, given.ids
        position = index_of(asked.position, len(ids), len(ids) - 1)
        whole = {layer for _, layer, _ in asked.maps}
        unknown = [
            (kind, layer, head)
            for kind, layer, head in asked.maps
            if kind != "self"
            or layer not in range(stack.shape.layers)
            or head not in range(stack.shape.heads)
        ]
        if unknown:
            raise UsageError(f"the model has no head {unknown[0]}")
        weights: dict[int, Floats] = {}

        def keep(layer: int, seen: Floats) -> Floats:
            if layer in whole:
                weights[layer] = seen
            return seen[:, position]

        with np.errstate(over="ignore", invalid="ignore"):
            trace = stack.traced(ids, keep)
            logits = stack.unembed(trace.residual[position]).astype(np.float64)
            powers = np.exp(logits - logits.max())
            order = np.argsort(-logits, kind="stable")[:_TOP].tolist()
            top = tuple((number, float(powers[number] / powers.sum())) for number in order)
            answer, foil = asked.words(order[0], len(logits))
            directions, after = stack.direction(trace.residual, answer, foil)
        direction = directions[position].astype(np.float64)
        rows: dict[HeadKey, Floats] = {}
        parts = [Part("embedding", float(trace.embedded[position] @ direction))]
        for layer, traced in enumerate(trace.layers):
            read = np.einsum("ohd,o->hd", traced.output, direction)
            moved = np.einsum("hkd,hd->hk", traced.values, read)  # at a weight of 1
            for head, row in enumerate(traced.weights * moved):
                rows["self", layer, head] = row
                parts.append(Part("head", float(row.sum()), layer, head, "self"))
            parts.append(Part("mlp", float(traced.fed[position] @ direction), layer))
            if traced.bias is not None:
                parts.append(Part("bias", float(traced.bias @ direction), layer))
        parts += [] if after is None else [Part("bias", after)]
        drawn = {}
        for kind, layer, head in asked.maps:
            traced = trace.layers[layer]
            written = directions @ traced.output[:, head] @ traced.values[head].T  # (query, key)
            drawn[kind, layer, head] = weights[layer][head] * written
        return Attribution(
            position=position,
            answer=answer,
            foil=foil,
            top=top,
            logit=float(logits[answer] - (0.0 if foil is None else logits[foil])),
            parts=tuple(parts),
            rows=rows,
            tolerance=ROUNDING[stack.dtype.name] * float(np.abs(logits).max()),
            maps=drawn,
        )

    def lens(self, given: Input, asked: AskedLogit) -> LensReading:
        stack, ids = self.model.stack, given.ids
        position = index_of(asked.position, len(ids), len(ids) - 1)
        with np.errstate(over="ignore", invalid="ignore"):
            trace = stack.traced(ids, lambda layer, weights: weights[:, position])
            stream, heads, written = [trace.embedded[position]], list[HeadKey](), []
            rest = trace.embedded[position]  # all that no head has written
            for layer, traced in enumerate(trace.layers):
                mixed = np.einsum("hk,hkd->hd", traced.weights, traced.values)
                parts = np.einsum("hd,ohd->ho", mixed, traced.output)  # (head, width)
                written += list(parts)
                heads += [("self", layer, head) for head in range(len(parts))]
                other = traced.fed[position]
                if traced.bias is not None:
                    other = other + traced.bias
                rest = rest + other
                stream.append(stream[-1] + parts.sum(0) + other)
            stream[-1] = trace.residual[position]
            logits = stack.unembed(np.stack(stream)).astype(np.float64)
            answer, _ = asked.words(int(logits[-1].argmax()), logits.shape[-1])
            moved = held_norm(stack, "final_norm", stream[-1], np.stack([*written, rest]))
            added = project(moved, stack.unembedding[0])  # (head and the rest, vocab)
            total = added.sum(0, dtype=np.float64)
            for name, bias in (("final_norm", True), ("unembedding", False)):
                shift = stack.tensors.optional(f"{name}.bias")
                if shift is not None:
                    total = total + (project(shift, stack.unembedding[0]) if bias else shift)
            return LensReading(
                position=position,
                answer=answer,
                blocks=block_readings(logits, answer),
                heads=head_readings((([k], added[[at]]) for at, k in enumerate(heads)), answer),
                apart=float(np.abs(total - logits[-1]).max()),
                tolerance=ROUNDING[stack.dtype.name] * float(np.abs(logits[-1]).max()),
            )

    def neurons(self, given: Input, asked: AskedLogit, layer: int) -> NeuronReading:
        stack, ids = self.model.stack, given.ids
        position = index_of(asked.position, len(ids), len(ids) - 1)
        with np.errstate(over="ignore", invalid="ignore"):
            trace = stack.traced(ids, lambda at, weights: weights[:, position])
            logits = stack.unembed(trace.residual[position]).astype(np.float64)
            answer, foil = asked.words(int(logits.argmax()), len(logits))
            directions, _ = stack.direction(trace.residual, answer, foil)
            direction = directions[position].astype(np.float64)
            active, up = neurons_of(stack, layer, ids)
            values = active if up is None else active * up
            down = f"layers.{layer}.down"
            bias = stack.tensors.optional(f"{down}.bias")
            written = values[position] * (direction @ stack.tensors[f"{down}.weight"])
        return NeuronReading(
            layer=layer,
            position=position,
            activation=_NAMES[stack.shape.activation],
            active=active,
            up=up,
            values=values,
            written=written,
            bias=0.0 if bias is None else float(bias @ direction),
            part=float(trace.layers[layer].fed[position] @ direction),
            tolerance=ROUNDING[stack.dtype.name] * float(np.abs(logits).max()),
        )

    def logits_of_texts(
        self, texts: Sequence[Input], position: int, hidden: Sequence[int] = ()
    ) -> NDArray[np.float64]:
        stack = self.model.stack
        ids = np.array([given.ids for given in texts])
        masks = None
        if hidden:
            tokens = np.arange(ids.shape[1])
            off = np.array(hidden)[:, None, None] == tokens  # (text, 1, key)
            seen = ~off | (tokens[:, None] == tokens)
            masks = dict.fromkeys(range(stack.shape.layers), seen[:, None])
        with np.errstate(over="ignore", invalid="ignore"):
            end = stack.run_outputs(ids, lambda *seen: None, masks=masks)
            return stack.unembed(end[:, position]).astype(np.float64)


def numpy_one_token_logits(
    stack: NumpyStack, tokens: Sequence[int], heads: Collection[HeadKey]
) -> Iterator[tuple[HeadKey, Sequence[int], Floats]]:
    """Yield (head, token ids, the head's part (token, vocab) of the logits); see ``circuits``."""
    for start in range(0, len(tokens), ONE_TOKEN_BATCH):
        batch = tokens[start : start + ONE_TOKEN_BATCH]
        residual = stack.embed(stack.checked(np.array(batch)[:, None]))  # (token, 1, width)
        written: dict[HeadKey, Floats] = {}
        for layer in range(stack.shape.layers):
            attention = stack.attention(layer)
            attended, _, values = attention.parts(stack.read(layer, residual))
            for key in heads:
                if key[1] == layer:
                    output = attention.output_by_head[:, key[2]]
                    written[key] = project(values[:, key[2], 0], output)
            residual = stack.after_layer(layer, residual, attended)
        for key, part in written.items():
            moved = held_norm(stack, "final_norm", residual[:, 0], part)
            yield key, batch, project(moved, stack.unembedding[0])
