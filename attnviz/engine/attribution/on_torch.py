"""Attribution of a running torch model: direct, of neurons, and by integrated gradients.

A logit is split by one forward and one backward pass, a ``ResidualPass``. The sum is compared with
the logit of a plain, unobserved pass. A model in half precision runs in half precision both times,
with its own tolerance.

The neurons of a feed-forward block are what enters the last matrix that it calls: there the pass is
followed too. Which function made them is found by trial.

Integrated gradients: a token's share is (x − x′) · ∫ ∂M/∂x along the straight way from a baseline
x′ to its embedding x (Sundararajan et al. 2017, "Axiomatic Attribution for Deep Networks"). The
baseline is the mean row of the embeddings, since RMS norms are singular at zero. The shares sum to
the change of M from the baseline; the integral is a sum of Gauss-Legendre steps, and the gap is
what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from attnviz.attention.functional import Array
from attnviz.engine.attribution.followed_run import (
    FollowedRun,
    Predicted,
    batch_logits,
    calls_of,
    difference,
    follow,
    parts_of,
    tolerance_of,
)
from attnviz.engine.attribution.lens_on_torch import lens_of_answer, torch_lens
from attnviz.engine.attribution.own_scores import wide_arrays
from attnviz.engine.attribution.parts import (
    AskedLogit,
    Attribution,
    Attributor,
    LensReading,
    NeuronReading,
    Part,
    index_of,
)
from attnviz.engine.device_sizes import widest
from attnviz.engine.feed_forward import Outputs, find_last_matrices
from attnviz.engine.forward_pass import not_its_own
from attnviz.engine.hook_points import HookedCall, hooked
from attnviz.engine.likely import ALONE, START_END, likeliest_answer, log_chances_of_places, no_foil
from attnviz.engine.observer import to_numpy
from attnviz.engine.patchable import PatchableModel, place_of_label, probe_of, require_one_choice
from attnviz.engine.replacing import LostTrackError
from attnviz.engine.scan.plan import is_causal
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.model import no_logits
from attnviz.models.split import whole_modules
from attnviz.models.whole import table_rows
from attnviz.records import HeadKey, Input, ModelInfo

_TOP = 5

_NO_ROWS = "the attention weights of some heads could not be read: these have no source tokens"


class TorchAttributor(Attributor):
    """Splits the logits of a torch model into contributions of its parts."""

    def __init__(self, model: PatchableModel, given: Input) -> None:
        self.model, self.labels = model, model.labels
        with torch.no_grad(), model.hook_points.borrowed():
            self._causal = bool(model.labels) or is_causal(model, probe_of(given))

    @classmethod
    def of(cls, info: ModelInfo, opened: PatchableModel, given: Input) -> TorchAttributor:
        """Return a model's attributor, tried on a text; UsageError if it predicts no tokens."""
        if opened.head is None:
            raise no_logits(info.name)
        return cls(opened, given)

    def taken_apart(self, given: Input, asked: AskedLogit) -> Attribution:
        model = self.model
        chosen = calls_of(model, asked.maps)
        with model.hook_points.borrowed():
            with torch.no_grad():
                position, own, answer, foil, top, span = self.predicted(given, asked)
            run = follow(model, given, position, frozenset(chosen.values()))
        tolerance = tolerance_of(run, own)
        towards = difference(run.logits, answer, foil)  # (row,)
        slopes = run.slopes(towards[run.row], again=bool(chosen))
        softcap, uncapped = run.before_cap(own, answer, foil, tolerance)
        parts = parts_of(run, slopes)
        rows = _rows(run, slopes, parts, tolerance)
        return Attribution(
            position=position,
            answer=answer,
            foil=foil,
            top=top,
            logit=float(difference(own, answer, foil)),
            parts=parts,
            rows=rows,
            tolerance=tolerance,
            maps=_maps(run, run.slopes(towards.sum()), chosen) if chosen else {},
            softcap=softcap,
            uncapped=uncapped,
            notes=(
                *([_NO_ROWS] if len(rows) < sum(part.kind == "head" for part in parts) else []),
                *([ALONE] if model.answers and not given.text.joined else []),
                *run.notes,
            ),
            labels=self.labels,
            span=span,
            several=model.several,
        )

    def predicted(self, given: Input, asked: AskedLogit) -> Predicted:
        """Return what the borrowed model predicts, and which of its logits is asked for."""
        if self.model.answers:
            return self.predicted_answer(given, asked)
        position = self.position_in(given, asked.position)
        own = widest(batch_logits(self.model, given, position)[0, 0])
        # Of equal logits the first counts, as in NumPy.
        likeliest = own.argsort(descending=True, stable=True)[:_TOP]
        shares = own.sigmoid() if self.model.several else own.softmax(-1)
        top = tuple(zip(likeliest.tolist(), shares[likeliest].tolist(), strict=True))
        answer, foil = asked.words(top[0][0], len(own))
        return Predicted(position, own, answer, foil, top)

    def predicted_answer(self, given: Input, asked: AskedLogit) -> Predicted:
        """Return a question-answering model's logits of the answer's start, or end if asked for."""
        logits = widest(batch_logits(self.model, given, None)[0])
        logs = log_chances_of_places(logits.cpu().numpy(), given.text)
        span = likeliest_answer(logs)
        answer, foil = asked.words(0, len(START_END))
        if foil is not None:
            raise no_foil()
        position = index_of(asked.position, len(logs), (span.start, span.end)[answer])
        if np.isinf(logs[position, answer]):
            raise UsageError(
                f"position {position} is not a token of the context, so it cannot be the answer"
            )
        top = ((answer, float(np.exp(logs[position, answer]))),)
        return Predicted(position, logits[position], answer, None, top, span)

    def lens(self, given: Input, asked: AskedLogit) -> LensReading:
        model = self.model
        require_one_choice(model)
        if not model.answers:
            return torch_lens(model, given, asked, self.position_in(given, asked.position))
        with model.hook_points.borrowed(), torch.no_grad():
            predicted = self.predicted_answer(given, asked)
        return lens_of_answer(model, given, predicted)

    def neurons(self, given: Input, asked: AskedLogit, layer: int) -> NeuronReading:
        with self.model.hook_points.borrowed(), torch.no_grad():
            predicted = self.predicted(given, asked)
        return torch_neurons(self.model, given, layer, predicted)

    def logits_of_texts(
        self, texts: Sequence[Input], position: int, hidden: Sequence[int] = ()
    ) -> Array:
        model = self.model
        at = None if model.answers else position
        with torch.no_grad(), model.hook_points.borrowed():
            if not hidden:
                logits = batch_logits(model, texts[0], at, *texts[1:])
            else:
                pairs = zip(texts, hidden, strict=True)
                logits = torch.cat([self._hidden(given, at, token) for given, token in pairs])
        if logits.is_cuda and not model.answers:  # to copy many words of many texts takes long
            return logits[:, 0].double()
        on_host = widest(logits).cpu().numpy()
        if model.answers:
            return log_chances_of_places(on_host, texts[0].text)[:, position]
        return on_host[:, 0]

    def _hidden(self, given: Input, position: int | None, token: int) -> Tensor:
        """Return logits (1, row, vocab) at a position while no other attends to ``token``."""
        model = self.model

        def hide(point: HookedCall, queries: int, keys: int) -> Tensor | None:
            if point.kind != model.kind:
                return None
            hidden = torch.zeros(point.heads, queries, keys, dtype=torch.bool, device=model.device)
            hidden[:, :, token] = True
            hidden[:, token, token] = False
            return hidden

        try:
            with model.hook_points.hiding(hide, given):
                return batch_logits(model, given, position)
        except LostTrackError as error:
            raise not_its_own(model.root, str(error)) from error

    def position_in(self, given: Input, position: int | None) -> int:
        """Return the position from 0; raise UsageError if the model predicts no token there."""
        read, mask = given.predicted.ids, self.model.mask_id
        if self.labels:
            return place_of_label(self.model, given, position)
        if self._causal:
            return index_of(position, len(read), len(read) - 1)
        if mask is None:
            raise UsageError("this model is bidirectional and has no mask token: it predicts none")
        masked = [at for at, token in enumerate(read) if token == mask]
        if not masked:
            raise UsageError(
                "this model is bidirectional and predicts what its mask token hides: write "
                f"{mask.text!r} in place of a word"
            )
        index = index_of(position, len(read), masked[-1])
        if index not in masked:
            raise UsageError(
                f"the token at position {index} is not a mask token: expected position "
                f"{' or '.join(map(str, masked))}"
            )
        return index


def _rows(
    run: FollowedRun, slopes: Sequence[Tensor | None], parts: Sequence[Part], tolerance: float
) -> dict[HeadKey, NDArray[np.floating]]:
    """Return heads' contributions (key,) by source token, of those that add up to their part."""
    expected = {(part.attention, part.layer, part.head): part.contribution for part in parts}
    calls, written = list[HookedCall](), list[Tensor]()
    for leaf, slope in zip(run.leaves, slopes, strict=True):
        mixing = None if leaf.point is None else run.mixing.get(leaf.point)
        if leaf.point is None or mixing is None or slope is None:
            continue
        point = run.model.hook_points.calls[leaf.point]
        at = run.position if mixing.weights.shape[1] > 1 else 0
        of_row = replace(mixing, weights=mixing.weights[:, at : at + 1])
        calls.append(point)
        written.append(of_row.written(slope[0, run.position : run.position + 1])[:, 0])
    rows: dict[HeadKey, NDArray[np.floating]] = {}
    for point, flat in zip(calls, wide_arrays(written), strict=True):  # a single copy from a GPU
        for head, row in enumerate(flat.reshape(point.heads, -1)):
            key = point.kind, point.layer, head
            if abs(row.sum() - expected[key]) <= tolerance:
                rows[key] = row
    return rows


def _maps(
    run: FollowedRun, slopes: Sequence[Tensor | None], chosen: Mapping[HeadKey, int]
) -> dict[HeadKey, NDArray[np.floating]]:
    written = {
        leaf.point: run.mixing[leaf.point].written(slope[0])
        for leaf, slope in zip(run.leaves, slopes, strict=True)
        if leaf.point in set(chosen.values()) & run.mixing.keys() and slope is not None
    }
    known = {key: number for key, number in chosen.items() if number in written}
    return {key: to_numpy(written[number][key[2]]) for key, number in known.items()}


# The neurons of a feed-forward block --------------------------------------------------------------

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
    """Return what a layer's neurons write to a logit; UnsupportedError if it has no such sum."""
    position, own, answer, foil, *_ = predicted
    with model.hook_points.borrowed():
        with torch.no_grad():
            last = find_last_matrices(model, probe_of(given))
            if layer not in last:
                raise _no_neurons(model, layer)
            down, others = last[layer]
            call = [at for at, (matrix, _) in last.items() if matrix is down].index(layer)
            seen = Outputs()
            seen.run(model, given, others)
        plain = follow(model, given, position)
        run = follow(model, given, position, inside=(down, call))
    tolerance = tolerance_of(run, own)
    before, slopes = (
        followed.slopes(difference(followed.logits, answer, foil)[followed.row])
        for followed in (plain, run)
    )
    slope = None if run.neurons is None else slopes[run.neurons]
    if run.neurons is None or slope is None:
        raise _no_neurons(model, layer)
    part, bias_before = _of_layer(parts_of(plain, before), layer)
    _, bias = _of_layer(parts_of(run, slopes), layer)
    whole = run.leaves[run.neurons].value.detach()
    values = whole.flatten(0, -2)
    written = (widest(slope) * widest(whole)).flatten(0, -2).sum(0)
    columns = list(_columns(others, down, seen, values.shape, call))
    name, active, up = _activation(values, columns)
    reading = NeuronReading(
        layer=layer,
        position=position,
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
    own = [part for part in parts if part.layer == layer]
    mlp, bias = (sum(p.contribution for p in own if p.kind == kind) for kind in ("mlp", "bias"))
    return mlp, bias


def _columns(
    others: Sequence[nn.Module], down: nn.Module, seen: Outputs, shape: torch.Size, call: int
) -> Iterator[Tensor]:
    """Yield what a block's other matrices put out, (token, neuron); of a joint one halves."""
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
    values: Tensor, columns: Sequence[Tensor]
) -> tuple[str | None, Tensor | None, Tensor | None]:
    """Return the name of the known function that made values, f(x) and its factor; or None."""
    near = max(_EPSILONS * torch.finfo(values.dtype).eps, _NEAR)
    allowed = near * widest(values.abs().max())
    for x in columns:
        for name, function in _ACTIVATIONS.items():
            active = function(x)
            for up in (None, *(other for other in columns if other is not x)):
                made = active if up is None else active * up
                if (widest(made) - widest(values)).abs().max() <= allowed:
                    return name, active, up
    return None, None, None


def _no_neurons(model: PatchableModel, layer: int) -> UnsupportedError:
    return UnsupportedError(
        f"--ffn: the feed-forward block of layer {layer} of {type(model.root).__name__} "
        "is not a sum over neurons, as with experts: choose another layer"
    )


# Integrated gradients -----------------------------------------------------------------------------

Measure = Callable[[Tensor], Tensor]
"""Returns the number (text,) that is attributed, from logits (text, row, vocab): of the measured
token alone, or of all tokens."""

FIRST, MOST = 32, 1024
"""The steps of the integral: doubled from the first number on, to the most."""

ALLOWED_GAP = 0.01
"""The gap, as a share of the change from the baseline, below which the integral has converged."""

_TOKENS = 4096
"""The most tokens that run in one batch."""


class Integrated(NamedTuple):
    """Each token's share (token,), the change of the measure, the steps, and the relative gap."""

    shares: NDArray[np.float64]
    change: float
    steps: int
    gap: float

    @property
    def converged(self) -> bool:
        """Return whether the gap is below ``ALLOWED_GAP``; False for NaN."""
        return self.gap < ALLOWED_GAP


def integrated_gradients(
    model: PatchableModel, given: Input, position: int | None, measure: Measure
) -> Integrated:
    """Return integrated gradients of a measure, with steps doubled until they sum to its change.

    position: of the token whose logits are measured; None for those of all tokens.
    Raises UnsupportedError if the model's token embeddings are not found.
    """
    way = _Way(model, given, position, measure)
    with model.hook_points.borrowed(), whole_modules(model.root):
        low, high = way.values(np.array([0.0, 1.0])).tolist()
        change, steps = high - low, FIRST
        while True:
            shares = way.shares(steps)
            gap = abs(float(shares.sum()) - change) / abs(change) if change else np.nan
            integrated = Integrated(shares, change, steps, gap)
            if integrated.converged or steps >= MOST:
                return integrated
            steps *= 2


class _Way:
    """The straight way of a text's embeddings from the mean row to their own values."""

    def __init__(
        self, model: PatchableModel, given: Input, position: int | None, measure: Measure
    ) -> None:
        self._model, self._given, self._position, self._measure = model, given, position, measure
        find: Any = getattr(model.root, "get_input_embeddings", None)
        table: Any = find() if find is not None else getattr(model.root, "embed_tokens", None)
        if not isinstance(table, nn.Module):
            raise UnsupportedError(
                f"the token embeddings of {type(model.root).__name__} were not found: "
                "integrated gradients start there"
            )
        self._table = table
        with torch.no_grad():
            every = table_rows(table, getattr(model.root, "config", None))
            rows = table(torch.arange(every, device=model.device))
            self._base = rows.mean(0)
            self._change = rows[list(given.ids)] - self._base  # (token, width)

    def values(self, at: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the measure (step,) at points ``at`` from 0, the baseline, to 1, the text."""
        with torch.no_grad():
            return self._run(self._points(at)).cpu().numpy()

    def shares(self, steps: int) -> NDArray[np.float64]:
        """Return each token's share (token,) by a number of Gauss-Legendre steps."""
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        total = torch.zeros_like(widest(self._change))
        rows = max(_TOKENS // len(self._change), 1)
        for start in range(0, steps, rows):
            part = slice(start, start + rows)
            points = self._points((nodes[part] + 1) / 2).requires_grad_()
            with torch.enable_grad():
                (slopes,) = torch.autograd.grad(self._run(points).sum(), points)
            factors = torch.tensor(weights[part] / 2, device=total.device)
            total += (widest(slopes) * factors[:, None, None]).sum(0)
        return (total * widest(self._change)).sum(-1).cpu().numpy()

    def _points(self, at: NDArray[np.float64]) -> Tensor:
        way = torch.tensor(at, dtype=self._base.dtype, device=self._base.device)
        return self._base + way[:, None, None] * self._change

    def _run(self, points: Tensor) -> Tensor:
        """Return the measure (row,) of a run with embeddings (row, token, width) for the text's."""
        texts = [self._given] * len(points)
        with hooked(self._table.register_forward_hook(lambda table, args, output: points)):
            logits = batch_logits(self._model, texts[0], self._position, *texts[1:])
        return self._measure(widest(logits))
