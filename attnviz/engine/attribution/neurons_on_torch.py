"""The neurons of a feed-forward block of a running torch model; see ``neurons``.

No family is known by name. What enters the last matrix that a block calls are its neurons: there
the pass is followed too. Which function made them is found by trial, from what its other matrices
put out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnviz.engine.attribution.followed_run import (
    Predicted,
    difference,
    follow,
    parts_of,
    tolerance_of,
)
from attnviz.engine.attribution.neurons import NeuronReading
from attnviz.engine.attribution.parts import Part
from attnviz.engine.device_sizes import widest
from attnviz.engine.feed_forward import Outputs, find_last_matrices
from attnviz.engine.observer import to_numpy
from attnviz.engine.patchable import PatchableModel, probe_of
from attnviz.errors import UnsupportedError
from attnviz.records import Input

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "ReLU": torch.relu,
    "SiLU": functional.silu,
    "GELU": functional.gelu,
    "GELU (tanh)": lambda x: functional.gelu(x, approximate="tanh"),
    "quick GELU": lambda x: x * torch.sigmoid(1.702 * x),
    "ReLU squared": lambda x: torch.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
"""The activation functions that are tried, the likeliest first."""

_EPSILONS, _NEAR = 16, 1e-6
"""The allowed error of a trial relative to the largest value: in epsilons of the model's numbers,
and at least, since some models round the constants of an activation."""


def torch_neurons(
    model: PatchableModel, given: Input, layer: int, predicted: Predicted
) -> NeuronReading:
    """Return what the neurons of one layer write towards a logit of a text.

    predicted: the position, the answer and the foil. Raises UnsupportedError if the block of this
    layer is not a sum over neurons, as with experts.
    """
    place, own, answer, foil, *_ = predicted
    with model.hook_points.borrowed():
        with torch.no_grad():
            last = find_last_matrices(model, probe_of(given))
            if layer not in last:
                raise _no_neurons(model, layer)
            down, others = last[layer]
            call = [one for one, (matrix, _) in last.items() if matrix is down].index(layer)
            seen = Outputs()
            seen.run(model, given, others)
        plain = follow(model, given, place)
        run = follow(model, given, place, inside=(down, call))
    tolerance = tolerance_of(run, own)
    before, slopes = (
        each.slopes(difference(each.logits, answer, foil)[each.row]) for each in (plain, run)
    )
    slope = None if run.neurons is None else slopes[run.neurons]
    if run.neurons is None or slope is None:
        raise _no_neurons(model, layer)
    (part, bias_before), (_, bias) = (
        _of_layer(parts_of(*each), layer) for each in ((plain, before), (run, slopes))
    )
    whole = run.leaves[run.neurons].value.detach()
    values = whole.flatten(0, -2)
    written = (widest(slope) * widest(whole)).flatten(0, -2).sum(0)
    name, active, up = _activation(values, _columns(others, down, seen, values.shape, call))
    reading = NeuronReading(
        layer=layer,
        position=place,
        activation=name,
        active=active if active is None else to_numpy(active),
        up=up if up is None else to_numpy(up),
        values=to_numpy(values),
        written=to_numpy(written),
        bias=bias - bias_before,
        part=part,
        tolerance=tolerance,
    )
    if len(values) != len(given.predicted) or not reading.tallies:
        raise _no_neurons(model, layer)
    return reading


def _of_layer(parts: Sequence[Part], layer: int) -> tuple[float, float]:
    """Return the contributions of the feed-forward block and of the biases of a layer."""
    own = [part for part in parts if part.layer == layer]
    of = {kind: sum(p.contribution for p in own if p.kind == kind) for kind in ("mlp", "bias")}
    return of["mlp"], of["bias"]


def _columns(
    others: Sequence[nn.Module], down: nn.Module, seen: Outputs, shape: torch.Size, call: int
) -> Iterator[Tensor]:
    """Yield what the other matrices of a block put out, as (token, neuron); of a joint one halves.

    call: which call of the modules is that of the layer, where several layers share them.
    """
    for module in others:
        outputs = seen.of.get(id(module), ())
        if module is down or call >= len(outputs):
            continue
        flat = outputs[call].reshape(-1, outputs[call].shape[-1])
        if flat.shape == shape:
            yield flat
        elif flat.shape == (shape[0], 2 * shape[1]):
            yield from flat.chunk(2, -1)


def _activation(
    values: Tensor, columns: Iterator[Tensor]
) -> tuple[str | None, Tensor | None, Tensor | None]:
    """Return the name of the function that made the neurons, f(x), and what it is multiplied with.

    values: (token, neuron). columns: what may have been x, or its factor. All are None if no
    function that is known makes these values.
    """
    known = list(columns)
    near = max(_EPSILONS * torch.finfo(values.dtype).eps, _NEAR)
    allowed = near * widest(values.abs().max())
    for x in known:
        for name, function in _ACTIVATIONS.items():
            active = function(x)
            for up in (None, *(one for one in known if one is not x)):
                made = active if up is None else active * up
                if (widest(made) - widest(values)).abs().max() <= allowed:
                    return name, active, up
    return None, None, None


def _no_neurons(model: PatchableModel, layer: int) -> UnsupportedError:
    return UnsupportedError(
        f"--ffn: the feed-forward block of layer {layer} of {type(model.root).__name__} "
        "is not a sum over neurons, as with experts: choose another layer"
    )
