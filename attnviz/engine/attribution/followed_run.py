"""Finished passes of a torch model, from which logits and later heads' inputs are split into parts.

The pass is a ``ResidualPass``, whose leaves are what the parts wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnviz.engine.attribution.own_scores import Mixing, MixingWatch, wide_array, wide_arrays
from attnviz.engine.attribution.parts import Part, PartKind
from attnviz.engine.attribution.residual_pass import Jacobian, Leaf, ResidualPass, head_alone
from attnviz.engine.device_sizes import widest
from attnviz.engine.hook_points import HookedCall, hooked
from attnviz.engine.likely import AnswerSpan
from attnviz.engine.linear_map import packed_layers
from attnviz.engine.patchable import POOLED, SEVERAL, PatchableModel, Untouched, run_pass
from attnviz.engine.patching import PathRead
from attnviz.engine.replacing import LostTrackError
from attnviz.errors import UnsupportedError, UsageError
from attnviz.records import HeadKey, Input, Kind

_ROUNDING, _EPSILONS = 1e-4, 8
"""The tolerance relative to the largest logit; in half precision the multiple of its epsilon."""


class Predicted(NamedTuple):
    """A prediction of the unobserved model; ``own``: its logits (vocab,); see ``Attribution``."""

    position: int
    own: Tensor
    answer: int
    foil: int | None
    top: tuple[tuple[int, float], ...]
    span: AnswerSpan | None = None


def tolerance_of(run: FollowedRun, own: Tensor) -> float:
    """Return how far parts may sum off a logit by rounding. own: the model's logits (vocab,)."""
    rounding = max(_ROUNDING, _EPSILONS * torch.finfo(run.leaves[0].value.dtype).eps)
    return rounding * float(own.abs().max())


def calls_of(model: PatchableModel, heads: Collection[HeadKey]) -> dict[HeadKey, int]:
    """Return each head's attention call by index; UsageError for one without a way to a logit."""
    points = model.hook_points.calls
    numbers = {(point.kind, point.layer): at for at, point in enumerate(points)}
    for kind, layer, head in heads:
        at = numbers.get((kind, layer))
        if at is None or kind == "encoder" or not 0 <= head < points[at].heads:
            raise UsageError(f"no {kind} head {head} in layer {layer} that writes to a logit")
    return {key: numbers[key[:2]] for key in heads}


@dataclass(frozen=True, eq=False)
class FollowedRun:
    """A finished pass with tracked tensors, from which logits are split into contributions.

    leaves: what parts put out. logits: (row, vocab), before a softcap c·tanh(x / c). row: that of
    the token that predicts, which is ``position`` in the text. squeezed: x / c of that row, None
    without a softcap. mixing: weights and values by attention call, for that row or all. neurons:
    the index of the leaf of a feed-forward block, or None.
    """

    model: PatchableModel
    leaves: Sequence[Leaf]
    logits: Tensor
    row: int
    position: int
    squeezed: Tensor | None
    mixing: Mapping[int, Mixing]
    notes: tuple[str, ...] = ()
    neurons: int | None = None

    def slopes(self, target: Tensor, *, again: bool = False) -> Sequence[Tensor | None]:
        """Return derivatives by each leaf, or None; UnsupportedError if a head has no influence."""
        values = [leaf.value for leaf in self.leaves]
        slopes: Sequence[Tensor | None] = [None] * len(values)
        if target.requires_grad:
            slopes = torch.autograd.grad(target, values, allow_unused=True, retain_graph=again)
        pairs = zip(self.leaves, slopes, strict=True)
        reached = [leaf.kind for leaf, slope in pairs if slope is not None]
        heads = sum(leaf.kind == "head" for leaf in self.leaves)
        if not heads or reached.count("head") < heads or "embedding" not in reached:
            raise lost(self.model)
        return slopes

    @property
    def cap(self) -> Tensor | None:
        """Return the c of a softcap c·tanh(x / c) of the logits; None without one."""
        if self.squeezed is None:
            return None
        x, inner = widest(self.logits[self.row].detach()), widest(self.squeezed)
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
        x = widest(self.logits[self.row].detach())
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
    position: int,
    whole: frozenset[int] = frozenset(),
    *,
    everywhere: bool = False,
    inside: tuple[nn.Module, int] | None = None,
) -> FollowedRun:
    """Run the model over a text inside ``borrowed``; return the pass with its tracked tensors.

    position: the token whose logits are tracked, or all ``everywhere``. whole: the calls whose
    weights are kept for all queries. inside: a module and one of its calls, whose input is a part
    of its own.
    """
    watch = MixingWatch(given)
    keep = _Keep(watch, given, position, whole)
    flow = ResidualPass(model, keep, inside=inside)
    try:
        with watch, flow.following():
            logits = batch_logits(model, given, None if whole or everywhere else position)[0]
    except LostTrackError as error:
        raise lost(model) from error
    row = position if len(logits) > 1 else 0
    squeezed = None if flow.squeezed is None else flow.squeezed.flatten(0, -2)[row]
    return FollowedRun(
        model=model,
        leaves=flow.leaves,
        logits=logits,
        row=row,
        position=position,
        squeezed=squeezed,
        mixing=keep.mixing,
        notes=(
            *([SEVERAL] if model.several else []),
            *([POOLED] if model.labels and flow.by_ratio else []),
        ),
        neurons=flow.neurons,
    )


def batch_logits(model: PatchableModel, given: Input, position: int | None, *more: Input) -> Tensor:
    """Return logits (text, token, vocab) of texts of one length, at one position or everywhere."""

    def shorten(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        rows = slice(None) if position is None else slice(position, position + 1)
        return (args[0][:, rows], *args[1:])

    heads = [model.head] if model.head is not None and not model.labels else []
    with hooked(*(head.register_forward_pre_hook(shorten) for head in heads)):
        logits = model.run(given, *more)
    if logits is None:
        raise UsageError("this model returns no logits: there is nothing to decompose")
    if model.labels and logits.ndim == 2:  # of the text
        return logits[:, None]
    if model.labels and position is not None:
        return logits[:, position : position + 1]
    return logits


class _Keep:
    """Records weights and values of each call, for one query, or for all in ``whole`` calls."""

    def __init__(
        self, watch: MixingWatch, given: Input, position: int, whole: frozenset[int]
    ) -> None:
        self._watch, self._given, self._position, self._whole = watch, given, position, whole
        self.mixing: dict[int, Mixing] = {}

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        rows = slice(None) if number in self._whole else slice(self._position, self._position + 1)
        mixing = self._watch.take(point, rows)
        if mixing is not None and mixing.values.shape[1] == len(self._given.keys(point.kind)):
            self.mixing[number] = mixing
        return outputs


def difference(logits: Tensor, answer: int, foil: int | None) -> Tensor:
    """Return logit(answer) − logit(foil), or the answer's alone, of logits (..., vocab)."""
    return logits[..., answer] - (0 if foil is None else logits[..., foil])


def parts_of(run: FollowedRun, slopes: Sequence[Tensor | None]) -> tuple[Part, ...]:
    """Return ``Attribution.parts``. slopes: of the logit by leaf; None without influence."""
    points = run.model.hook_points.calls
    of_heads, written = list[tuple[int | None, Kind]](), list[Tensor]()
    others: dict[tuple[int | None, str], Tensor] = {}
    for leaf, slope in zip(run.leaves, slopes, strict=True):
        if slope is None:
            continue
        terms = widest(slope) * widest(leaf.value.detach())
        if leaf.point is None:
            key = leaf.layer, leaf.kind
            others[key] = others.get(key, 0.0) + terms.sum()
        else:
            of_heads.append((leaf.layer, points[leaf.point].kind))
            written.append(terms.sum((0, 1, 3)))
    sums = wide_arrays([*written, *others.values()])
    totals = sums[len(written) :]
    rest = {key: float(total[0]) for key, total in zip(others, totals, strict=True)}
    heads: dict[int | None, list[Part]] = {}
    for (at, kind), of_call in zip(of_heads, sums, strict=False):
        heads.setdefault(at, []).extend(
            Part("head", total, at, head, kind) for head, total in enumerate(of_call.tolist())
        )
    layers = sorted({layer for layer in (*heads, *(at for at, _ in others)) if layer is not None})
    parts = [Part("embedding", rest[None, "embedding"])]
    for layer in (*layers, None):
        parts += heads.get(layer, [])
        kinds: tuple[PartKind, ...] = ("mlp", "bias")
        parts += [Part(k, rest[layer, k], layer) for k in kinds if (layer, k) in rest]
    return tuple(parts)


# Paths from heads to later heads ------------------------------------------------------------------


def torch_path_reads(
    model: PatchableModel, clean: Input, corrupt: Input, senders: Sequence[HeadKey]
) -> list[PathRead]:
    """Return how queries, keys and values differ in two texts, by layer, in all and by sender.

    The corrupt run's queries, keys and values are J z; J Δz is how they differ.
    """
    calls = calls_of(model, senders)
    with model.hook_points.borrowed():
        of_clean, of_corrupt = _read_pass(model, clean), _read_pass(model, corrupt)
    leaves = of_corrupt.leaves
    if list(map(_shape_of, of_clean.leaves)) != list(map(_shape_of, leaves)):
        raise lost(model)  # the two runs have different parts
    pairs = zip(of_clean.leaves, leaves, strict=True)
    change = [(own.value - other.value).detach() for own, other in pairs]
    read = {key: vectors for key, vectors in of_corrupt.read.items() if vectors.requires_grad}
    jacobian = Jacobian(list(read.values()), [leaf.value for leaf in leaves])
    whole = jacobian.moved(dict(enumerate(change)))
    of_call = {leaf.point: at for at, leaf in reversed([*enumerate(leaves)])}
    alone = {}  # how all inputs change if only this head's output does
    for sender, call in calls.items():
        at = of_call[call]
        alone[sender] = jacobian.moved({at: head_alone(change[at], sender[2])})
    reads = []
    for at, ((number, sort), vectors) in enumerate(read.items()):
        moved = whole[at]
        if moved is None:
            continue
        point, own = model.hook_points.calls[number], wide_array(of_clean.read[number, sort][0])
        changes = {sender: of_all[at] for sender, of_all in alone.items()}
        reads.append(
            PathRead(
                kind=point.kind,
                layer=point.layer,
                sort=sort,
                clean=own,
                difference=own - wide_array(vectors[0]),
                whole=wide_array(moved[0]),
                alone={key: wide_array(by[0]) for key, by in changes.items() if by is not None},
            )
        )
    return reads


def _read_pass(model: PatchableModel, given: Input) -> ResidualPass:
    flow = ResidualPass(model, Untouched(), reading=True)
    try:
        with flow.following():
            run_pass(model, given, None)
    except LostTrackError as error:
        raise lost(model) from error
    return flow


def _shape_of(leaf: Leaf) -> tuple[object, ...]:
    return leaf.kind, leaf.layer, leaf.point, leaf.value.shape
