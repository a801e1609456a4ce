"""Direct logit attribution of a running torch model: one forward and one backward pass.

The forward pass is a ``ResidualPass``. The sum is compared with the logit of a plain, unobserved
pass. A model in half precision runs in half precision both times, with its own tolerance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnviz.attention.functional import Array
from attnviz.engine.answers import (
    ALONE,
    START_END,
    AnswerSpan,
    likeliest_answer,
    log_chances_of_places,
    no_foil,
)
from attnviz.engine.attribution.lens import LensReading
from attnviz.engine.attribution.neurons import NeuronReading
from attnviz.engine.attribution.own_scores import Mixing, MixingWatch, wide_arrays
from attnviz.engine.attribution.parts import (
    AskedLogit,
    Attribution,
    Attributor,
    Part,
    PartKind,
    place_of,
)
from attnviz.engine.attribution.residual_pass import Leaf, ResidualPass
from attnviz.engine.hook_points import HookedCall, hooked
from attnviz.engine.labels import POOLED, SEVERAL, of_labels, place_of_label
from attnviz.engine.linear_map import packed_layers
from attnviz.engine.patchable import PatchableModel, probe_of
from attnviz.engine.plain_pass import not_its_own
from attnviz.engine.replacing import LostTrackError
from attnviz.engine.scan.plan import is_causal
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.model import no_logits
from attnviz.records import HeadKey, Input, Kind, ModelInfo

_TOP = 5
_ROUNDING, _EPSILONS = 1e-4, 8
"""The tolerance relative to the largest logit; in half precision the multiple of its epsilon."""

_NO_ROWS = "the attention weights of some heads could not be read: these have no source tokens"


class _Predicted(NamedTuple):
    """A prediction of the unobserved model, and the logit of it that is explained.

    place: the index of its token. own: the logits (vocab,) there. answer, foil, top, span: as in
        ``Attribution``.
    """

    place: int
    own: Tensor
    answer: int
    foil: int | None
    top: tuple[tuple[int, float], ...]
    span: AnswerSpan | None = None


class TorchAttributor(Attributor):
    """Splits the logits of a torch model into contributions of its parts."""

    def __init__(self, model: PatchableModel, given: Input) -> None:
        self.model = model
        self.labels = model.labels
        self._causal = True
        if model.labels:
            return
        with torch.no_grad(), model.hook_points.borrowed():
            self._causal = is_causal(model, probe_of(given))

    @classmethod
    def of(cls, info: ModelInfo, opened: PatchableModel, given: Input) -> TorchAttributor:
        """Return the attributor of a model; the texts to be split may differ from ``given``.

        info: names the model in messages. opened: the model itself. given: a text on which it is
        tried whether tokens see later ones. Raises UsageError if the model predicts no tokens.
        """
        if opened.head is None:
            raise no_logits(info.name)
        return cls(opened, given)

    def taken_apart(self, given: Input, asked: AskedLogit) -> Attribution:
        model = self.model
        chosen = calls_of(model, asked.maps)
        with model.hook_points.borrowed():
            with torch.no_grad():
                place, own, answer, foil, top, span = self.predicted(given, asked)
            run = follow(model, given, place, frozenset(chosen.values()))
        tolerance = tolerance_of(run, own)
        towards = difference(run.logits, answer, foil)  # (row,)
        slopes = run.slopes(towards[run.row], again=bool(chosen))
        softcap, uncapped = run.before_cap(own, answer, foil, tolerance)
        parts = parts_of(run, slopes)
        rows = _rows(run, slopes, parts, tolerance)
        return Attribution(
            position=place,
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

    def predicted(self, given: Input, asked: AskedLogit) -> _Predicted:
        """Return what the borrowed model predicts, and which of its logits is asked for."""
        find = self.predicted_answer if self.model.answers else self._predicted_token
        return find(given, asked)

    def _predicted_token(self, given: Input, asked: AskedLogit) -> _Predicted:
        place = self.place_in(given, asked.position)
        own = logits_of(self.model, given, place)[0].double()
        # Of equal logits the first counts, as in NumPy.
        likeliest = own.argsort(descending=True, stable=True)[:_TOP].tolist()
        answer, foil = asked.words(likeliest[0], len(own))
        shares = own.sigmoid() if self.model.several else own.softmax(-1)
        top = tuple((word, float(shares[word])) for word in likeliest)
        return _Predicted(place, own, answer, foil, top)

    def predicted_answer(self, given: Input, asked: AskedLogit) -> _Predicted:
        """Return a question-answering model's logits of the answer's start, or end if asked for."""
        logits = logits_of(self.model, given, None).double()
        logs = log_chances_of_places(logits.cpu().numpy(), given.text)
        span = likeliest_answer(logs)
        answer, foil = asked.words(0, len(START_END))
        if foil is not None:
            raise no_foil()
        place = place_of(asked.position, len(logs), (span.start, span.end)[answer])
        if np.isinf(logs[place, answer]):
            raise UsageError(f"position {place} is no token of the context: no answer is there")
        top = ((answer, float(np.exp(logs[place, answer]))),)
        return _Predicted(place, logits[place], answer, None, top, span)

    def lens(self, given: Input, asked: AskedLogit) -> LensReading:
        from attnviz.engine.attribution.lens_on_torch import torch_lens  # which imports this module

        return torch_lens(self, given, asked)

    def neurons(self, given: Input, asked: AskedLogit, layer: int) -> NeuronReading:
        from attnviz.engine.attribution.neurons_on_torch import torch_neurons

        return torch_neurons(self, given, asked, layer)

    def logits_of_texts(
        self, texts: Sequence[Input], place: int, hidden: Sequence[int] = ()
    ) -> Array:
        model = self.model
        at = None if model.answers else place
        with torch.no_grad(), model.hook_points.borrowed():
            if not hidden:
                logits = batch_logits(model, texts[0], at, *texts[1:])
            else:
                each = zip(texts, hidden, strict=True)
                logits = torch.cat([self._hidden(given, at, token) for given, token in each])
        if logits.is_cuda and not model.answers:  # to copy many words of many texts takes long
            return logits[:, 0].double()
        found = logits.double().cpu().numpy()
        if model.answers:
            return log_chances_of_places(found, texts[0].text)[:, place]
        return found[:, 0]

    def _hidden(self, given: Input, place: int | None, token: int) -> Tensor:
        """Return logits (1, row, vocab) at ``place`` while no other token attends to ``token``."""
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
                return batch_logits(model, given, place)
        except LostTrackError as error:
            raise not_its_own(model.root, str(error)) from error

    def place_in(self, given: Input, position: int | None) -> int:
        """Return the position from 0; raise UsageError if the model predicts no token there.

        given: the text. position: as typed, negative from the end; None for the default.
        """
        read, mask = given.predicted.ids, self.model.mask_id
        if self.labels:
            return place_of_label(self.model, given, position)
        if self._causal:
            return place_of(position, len(read), len(read) - 1)
        if mask is None:
            raise UsageError("this model reads both ways and has no mask token: it predicts none")
        masked = [at for at, token in enumerate(read) if token == mask]
        if not masked:
            raise UsageError(
                "this model reads both ways and predicts what its mask token hides: write "
                f"{mask.text!r} in the place of a word"
            )
        place = place_of(position, len(read), masked[-1])
        if place not in masked:
            raise UsageError(
                f"the token at position {place} is no mask token: expected position "
                f"{' or '.join(map(str, masked))}"
            )
        return place


def tolerance_of(run: FollowedRun, own: Tensor) -> float:
    """Return how far parts may sum off a logit by rounding. own: the model's logits (vocab,)."""
    rounding = max(_ROUNDING, _EPSILONS * torch.finfo(run.leaves[0].value.dtype).eps)
    return rounding * float(own.abs().max())


def calls_of(model: PatchableModel, heads: Collection[HeadKey]) -> dict[HeadKey, int]:
    """Return for each head the index of its attention call among all calls of a pass.

    Raises UsageError for a head that has no path to a logit.
    """
    points = model.hook_points.found
    numbers = {(point.kind, point.layer): at for at, point in enumerate(points)}
    for kind, layer, head in heads:
        at = numbers.get((kind, layer))
        if at is None or kind == "encoder" or not 0 <= head < points[at].heads:
            raise UsageError(f"no {kind} head {head} in layer {layer} that writes to a logit")
    return {key: numbers[key[:2]] for key in heads}


@dataclass(frozen=True, eq=False)
class FollowedRun:
    """A finished pass with tracked tensors, from which logits are split into contributions.

    leaves: the outputs of the model's parts. logits: (row, vocab), before a softcap.
    place: the position of the token after which, or at which, the prediction is made.
    row: the row of this prediction in ``logits``.
    squeezed: the softcap's input (vocab,) for that row; None without a softcap.
    mixing: the attention weights and values by attention call, for that row alone or for all rows.
    notes: sentences that a reader must know about the pass.
    neurons: the index of the leaf that enters the last matrix of a feed-forward block, or None.
    """

    model: PatchableModel
    leaves: Sequence[Leaf]
    logits: Tensor
    row: int
    place: int
    squeezed: Tensor | None
    mixing: Mapping[int, Mixing]
    notes: tuple[str, ...] = ()
    neurons: int | None = None

    def slopes(self, target: Tensor, *, again: bool = False) -> Sequence[Tensor | None]:
        """Return the derivative of ``target`` by each of ``leaves``; None where it is unaffected.

        again: True if another target will be differentiated later.
        Raises UnsupportedError if a head or the embedding has no influence on the target.
        """
        values = [leaf.value for leaf in self.leaves]
        found: Sequence[Tensor | None] = ()
        if target.requires_grad:
            found = torch.autograd.grad(target, values, allow_unused=True, retain_graph=again)
        reached = [
            leaf.kind
            for leaf, slope in zip(self.leaves, found, strict=bool(found))
            if slope is not None
        ]
        heads = sum(leaf.kind == "head" for leaf in self.leaves)
        if not heads or reached.count("head") < heads or "embedding" not in reached:
            raise lost(self.model)
        return found

    @property
    def cap(self) -> Tensor | None:
        """Return the c of a softcap c·tanh(x / c) of the logits; None without one."""
        if self.squeezed is None:
            return None
        x, inner = self.logits[self.row].detach().double(), self.squeezed.double()
        return (x @ inner) / (inner @ inner)

    def before_cap(
        self, own: Tensor, answer: int, foil: int | None, tolerance: float
    ) -> tuple[float | None, float | None]:
        """Return c, and x(answer) − x(foil), in a model whose logits are c·tanh(x / c).

        Both are None in a model that does not cap its logits. The difference is x(answer) without a
        foil, and NaN if c·tanh(x / c) is further than ``tolerance`` from the model's logits.
        own: these logits (vocab,), of an unobserved pass. answer, foil: token ids.
        """
        if (cap := self.cap) is None:
            return None, None
        x = self.logits[self.row].detach().double()
        words = [answer] if foil is None else [answer, foil]
        apart = ((cap * (x / cap).tanh()) - own)[words].abs().max()
        is_cap = bool(apart <= tolerance)
        return float(cap), float(difference(x, answer, foil)) if is_cap else float("nan")


def lost(model: PatchableModel) -> UnsupportedError:
    """Return the error for a model whose head outputs cannot be traced to the logits."""
    return UnsupportedError(
        f"what the heads of {type(model.root).__name__} write cannot be followed to its logits "
        f"through sums and linear maps alone{packed_layers(model.root)}: choose another model"
    )


def follow(
    model: PatchableModel,
    given: Input,
    place: int,
    whole: frozenset[int] = frozenset(),
    *,
    everywhere: bool = False,
    inside: tuple[nn.Module, int] | None = None,
) -> FollowedRun:
    """Run the model over a text inside ``borrowed``; return the pass with its tracked tensors.

    place: the index of the token whose logits are tracked. whole: the attention calls whose
        attention weights are recorded for all queries, not only ``place``.
    everywhere: True tracks the logits of all tokens. inside: a module, and the index of one of its
        calls, whose input is tracked as a part of its own.
    """
    watch = MixingWatch(given)
    keep = _Keep(watch, given, place, whole)
    flow = ResidualPass(model, keep, inside=inside)
    try:
        with watch, flow.following():
            logits = logits_of(model, given, None if whole or everywhere else place)
    except LostTrackError as error:
        raise lost(model) from error
    row = place if len(logits) > 1 else 0
    squeezed = None if flow.squeezed is None else flow.squeezed.flatten(0, -2)[row]
    return FollowedRun(
        model=model,
        leaves=flow.leaves,
        logits=logits,
        row=row,
        place=place,
        squeezed=squeezed,
        mixing=keep.mixing,
        notes=(
            *([SEVERAL] if model.several else []),
            *([POOLED] if model.labels and flow.by_ratio else []),
        ),
        neurons=flow.neurons,
    )


def logits_of(model: PatchableModel, given: Input, place: int | None) -> Tensor:
    """Return the logits (token, vocab) of one text, of the token ``place`` alone if it is given."""
    return batch_logits(model, given, place)[0]


def batch_logits(model: PatchableModel, given: Input, place: int | None, *more: Input) -> Tensor:
    """Return the logits (text, token, vocab) of several texts of the same length.

    place: the index of the only token to return; None for all. more: the texts after ``given``. A
    hook of the caller may turn one text into several rows of the batch.
    """

    def shorten(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        rows = slice(None) if place is None else slice(place, place + 1)
        return (args[0][:, rows], *args[1:])

    with ExitStack() as hooks:
        if model.head is not None and not model.labels:
            hooks.enter_context(hooked(model.head.register_forward_pre_hook(shorten)))
        logits = model.run(given, *more)
    if logits is None:
        raise UsageError("this model puts out no logits: there is nothing to take apart")
    return of_labels(logits, place) if model.labels else logits


class _Keep:
    """Records the attention weights and values of each attention call of a pass; changes nothing.

    watch: sees the weights and values of each call. given: what the model runs on.
    place: the position of the query whose weights are recorded.
    whole: the indices of the attention calls whose weights are recorded for all queries.
    """

    def __init__(self, watch: MixingWatch, given: Input, place: int, whole: frozenset[int]) -> None:
        self._watch, self._given, self._place, self._whole = watch, given, place, whole
        self.mixing: dict[int, Mixing] = {}

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        rows = slice(None) if number in self._whole else slice(self._place, self._place + 1)
        mixing = self._watch.take(point, rows)
        if mixing is not None and mixing.values.shape[1] == len(self._given.keys(point.kind)):
            self.mixing[number] = mixing
        return outputs


def difference(logits: Tensor, answer: int, foil: int | None) -> Tensor:
    """Return logit(answer) − logit(foil), or the answer's alone, of logits (..., vocab)."""
    return logits[..., answer] - (0 if foil is None else logits[..., foil])


def parts_of(run: FollowedRun, slopes: Sequence[Tensor | None]) -> tuple[Part, ...]:
    """Return each part's contribution ⟨slope, leaf⟩, in the order of ``Attribution.parts``.

    slopes: the derivative of the logit by each of ``run.leaves``; None without influence.
    """
    points = run.model.hook_points.found
    of_heads: list[tuple[int | None, Kind]] = []
    written: list[Tensor] = []
    others: dict[tuple[int | None, str], Tensor] = {}
    for leaf, slope in zip(run.leaves, slopes, strict=True):
        if slope is None:
            continue
        terms = slope.double() * leaf.value.detach().double()
        if leaf.point is None:
            place = leaf.layer, leaf.kind
            others[place] = others.get(place, 0.0) + terms.sum()
        else:
            of_heads.append((leaf.layer, points[leaf.point].kind))
            written.append(terms.sum((0, 1, 3)))
    sums = wide_arrays([*written, *others.values()])
    rest = {
        place: float(total[0]) for place, total in zip(others, sums[len(written) :], strict=True)
    }
    heads: dict[int | None, list[Part]] = {}
    for (at, kind), totals in zip(of_heads, sums, strict=False):
        heads.setdefault(at, []).extend(
            Part("head", one, at, head, kind) for head, one in enumerate(totals.tolist())
        )
    layers = sorted({layer for layer in (*heads, *(at for at, _ in others)) if layer is not None})
    parts = [Part("embedding", rest[None, "embedding"])]
    for layer in (*layers, None):
        parts += heads.get(layer, [])
        kinds: tuple[PartKind, ...] = ("mlp", "bias")
        parts += [Part(k, rest[layer, k], layer) for k in kinds if (layer, k) in rest]
    return tuple(parts)


def _rows(
    run: FollowedRun, slopes: Sequence[Tensor | None], parts: Sequence[Part], tolerance: float
) -> dict[HeadKey, NDArray[np.floating]]:
    """Return for each head its contribution to the logit from each source token: (key,).

    Heads whose row does not add up to their part, within ``tolerance``, are left out.
    """
    expected = {(one.attention, one.layer, one.head): one.contribution for one in parts}
    rows: dict[HeadKey, NDArray[np.floating]] = {}
    for leaf, slope in zip(run.leaves, slopes, strict=True):
        mixing = None if leaf.point is None else run.mixing.get(leaf.point)
        if leaf.point is None or mixing is None or slope is None:
            continue
        point = run.model.hook_points.found[leaf.point]
        at = run.place if mixing.weights.shape[1] > 1 else 0
        row = replace(mixing, weights=mixing.weights[:, at : at + 1])
        written = row.written(slope[0, run.place : run.place + 1])[:, 0]
        totals = written.double().sum(-1).tolist()
        for head, (one, total) in enumerate(zip(_array(written), totals, strict=True)):
            key = point.kind, point.layer, head
            if abs(total - expected[key]) <= tolerance:
                rows[key] = one
    return rows


def _maps(
    run: FollowedRun, slopes: Sequence[Tensor | None], chosen: Mapping[HeadKey, int]
) -> dict[HeadKey, NDArray[np.floating]]:
    written = {
        leaf.point: run.mixing[leaf.point].written(slope[0])
        for leaf, slope in zip(run.leaves, slopes, strict=True)
        if leaf.point in set(chosen.values()) & run.mixing.keys() and slope is not None
    }
    return {
        key: _array(written[number][key[2]]) for key, number in chosen.items() if number in written
    }


def _array(tensor: Tensor) -> NDArray[np.floating]:
    wide = tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().float()
    return wide.cpu().numpy()
