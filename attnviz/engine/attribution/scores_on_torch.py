"""QK attribution of running torch models, whose pass is linear in all that it writes.

Two passes: a plain one gives the scale, the mask and the weights of the head, and one that is
tracked (``ResidualPass``) gives the parts of its query and keys. Both end at the head's layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from attnviz.engine.attention_calls import (
    HIDING,
    Attended,
    AttentionCall,
    IncompleteError,
    taking_calls,
)
from attnviz.engine.attribution.own_scores import (
    Mixing,
    MixingWatch,
    ReachedError,
    own_facts,
    own_scores,
    wide_array,
    wide_arrays,
)
from attnviz.engine.attribution.residual_pass import Jacobian, Leaf, ResidualPass, head_alone
from attnviz.engine.attribution.scores import (
    SIDES,
    AskedLink,
    ReadSide,
    ScoreSplitter,
    SideLeads,
    SplitScores,
    StreamPart,
    largest_heads,
    not_followed,
)
from attnviz.engine.device_sizes import widest
from attnviz.engine.hook_points import HookedCall, enclosing_block
from attnviz.engine.linear_map import ReadColumns, packed_layers
from attnviz.engine.passes import WatchedCall, watched
from attnviz.engine.patchable import PatchableModel, whole_pass
from attnviz.engine.replacing import LostTrackError
from attnviz.engine.scan.plan import MISFITS
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.attention_interface import PreTrainedModel
from attnviz.records import Floats, HeadKey, Input


class TorchScoreSplitter(ScoreSplitter):
    """Splits the attention scores of a transformers model, given as loaded and ``opened``."""

    def __init__(self, name: str, model: PreTrainedModel, opened: PatchableModel) -> None:
        self._name, self._model, self._opened = name, model, opened

    def split(self, given: Input, asked: AskedLink) -> SplitScores:
        call = self._call(asked.head)
        facts = self._observed(given, asked)
        with self._opened.hook_points.borrowed():
            run = self._tracked([given], call, mixing=True)
            split = run.split(facts, asked)
            if split is None:
                raise self._refused()
            return replace(split, sources=run.sources(split, asked))

    def leads(self, texts: Sequence[Input], asked: AskedLink, known: SplitScores) -> SideLeads:
        call = self._call(asked.head)
        with self._opened.hook_points.borrowed():
            leads = self._tracked(texts, call).leads(known, asked)
        if leads is not None:
            return leads
        if len(texts) == 1:
            raise self._refused()
        queries, keys = zip(*(self.leads([given], asked, known) for given in texts), strict=True)
        return np.concatenate(queries), np.concatenate(keys)

    def _refused(self) -> UnsupportedError:
        return not_followed(self._name, packed_layers(self._model))

    def _tracked(self, texts: Sequence[Input], call: int, *, mixing: bool = False) -> _TrackedRun:
        try:
            return _TrackedRun(self._opened, texts, call, mixing=mixing)
        except LostTrackError as error:
            raise self._refused() from error

    def _call(self, head: HeadKey) -> int:
        kind, layer, number = head
        for at, point in enumerate(self._opened.hook_points.calls):
            if (point.kind, point.layer) == (kind, layer) and 0 <= number < point.heads:
                return at
        raise UsageError(f"{self._name!r} has no {kind} head {number} in layer {layer}")

    def _observed(self, given: Input, asked: AskedLink) -> SplitScores:
        """Return scale, mask and weights of one query in a plain pass, without parts."""
        kind, layer, head = asked.head
        if not self._opened.hook_points.shows_inputs:
            with self._opened.hook_points.borrowed():
                run = partial(self._opened.run, given)
                own = own_facts(run, given, self._call(asked.head), head=head, query=asked.query)
            if own is None:
                raise self._refused()
            return own
        seen: list[SplitScores] = []

        def answer(watch: WatchedCall) -> Attended:
            if (watch.kind, watch.layer) != (kind, layer):
                return watch.call.own()
            _, weights = watch.eager()
            if weights is None or watch.call.query.ndim != 4:
                raise IncompleteError
            seen.append(_facts_of(watch.call, weights, head, asked.query))
            raise ReachedError

        forward = replace(whole_pass(self._model, kind, given), wanted=frozenset({kind}))
        with suppress(ReachedError, IncompleteError), torch.inference_mode():
            watched(forward, answer)
        if not seen:
            raise self._refused()
        return seen[-1]


def _facts_of(call: AttentionCall, weights: Tensor, head: int, query: int) -> SplitScores:
    """Return all that a call shows of the scores of one query, without their parts."""
    keys, dim = call.key.shape[-2:]
    scaling, cap = call.options.get("scaling"), call.options.get("softcap")
    added = torch.zeros(keys, dtype=torch.float64)
    for bias in (call.additive_mask(), call.options.get("position_bias")):
        if bias is not None:
            whole = bias.expand(1, weights.shape[1], *bias.shape[-2:])[0, head]
            added = added + whole[min(query, len(whole) - 1), :keys].cpu().double()
    return SplitScores(
        parts=(),
        query=np.zeros((0, dim)),
        key=np.zeros((0, keys, dim)),
        scale=dim**-0.5 if scaling is None else float(scaling),
        softcap=None if cap is None else float(cap),
        added=wide_array(added.masked_fill(added < HIDING, -torch.inf)),
        weights=wide_array(weights[0, head, query, :keys]),
        epsilon=torch.finfo(call.query.dtype).eps,
    )


class _TrackedRun:
    """One tracked pass, over texts of one length, that ends at an attention call.

    The query and the keys of the call are linear in the leaves of the pass: what its parts wrote.
    call: the index of the attention call among all of a pass. mixing: whether the weights and
        values of the calls before it are kept, to split a head of a single text by what it read.
    """

    def __init__(
        self, model: PatchableModel, texts: Sequence[Input], call: int, *, mixing: bool = False
    ) -> None:
        self.point, self.texts = model.hook_points.calls[call], texts
        self.by_product = not model.hook_points.shows_inputs
        self._end = call
        self._watch = MixingWatch(texts[0]) if mixing else None
        self._mixed: dict[int, Mixing] = {}
        self._entry: EnteredBlock | None = None
        self._flow = ResidualPass(
            model, self, reading=True, by_product=self.by_product, last=call, texts=len(texts)
        )
        block = enclosing_block(model.root).get(id(self.point.module))
        with self._flow.following(), ExitStack() as hooks:
            if block is not None:
                enter = block.register_forward_pre_hook(self._enter, with_kwargs=True)
                hooks.callback(enter.remove)
            with suppress(ReachedError), self._watch or nullcontext():
                model.run(*texts)
        self._leaves = _by_part(self._flow.leaves, model.hook_points.calls, self.point.layer)

    def edit(self, number: int, point: HookedCall, outputs: Tensor) -> Tensor:
        """Record a call's weights and values; end the pass at the head's own call."""
        if number == self._end:
            raise ReachedError
        mixing = None if self._watch is None else self._watch.take(point, slice(None))
        if mixing is not None:
            self._mixed[number] = mixing
        return outputs

    def _enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = args[0] if args else kwargs.get("hidden_states")
        if isinstance(stream, Tensor) and stream.ndim == 3 and len(stream) == 1:
            self._entry = EnteredBlock(block, stream, args, kwargs)

    def _read(self, side: ReadSide, head: int) -> Tensor | None:
        """Return a head's query or key vectors (text, token, dim); None if they are not tracked."""
        whole = self._flow.read.get((self._end, side))
        if whole is None or not whole.requires_grad:
            return None
        return whole[:, :, head // (self.point.heads // whole.shape[2])]

    def split(self, facts: SplitScores, asked: AskedLink) -> SplitScores | None:
        """Return the scores of the asked query as sums over parts; None if they are not tracked."""
        query, key = (self._read(side, asked.head[2]) for side in SIDES)
        if query is None or key is None:
            return None
        query, key, alone = query[0, asked.query], key[0], None
        if self._entry is not None and self._entry.stream.requires_grad:
            alone = BlockAlone(self._entry, self, asked)
        own = None if alone is None else alone.read(alone.stream)
        streams = [self._entry.stream] if self._entry is not None and own is not None else []
        jacobian = Jacobian([query, key, *streams], [leaf.value for leaf in self._flow.leaves])
        parts, queries, keys, others = [], [], [], []
        for part, leaves in self._leaves.items():
            written = {at: self._flow.leaves[at].value.detach() for at in leaves}
            change = {
                at: value if part.head is None else head_alone(value, part.head)
                for at, value in written.items()
                if jacobian.leads(at)
            }
            if not change:
                continue
            moved = jacobian.moved(change)
            parts.append(part)
            queries.append(_of(moved[0], query))
            keys.append(_of(moved[1], key))
            if alone is not None and own is not None:
                read = None if moved[2] is None else alone.read(alone.stream - moved[2])
                others.append(read or tuple(np.full_like(vectors, np.nan) for vectors in own))
        split = replace(facts, parts=tuple(parts), query=np.stack(queries), key=np.stack(keys))
        if own is None:
            return split
        again = own[1] @ own[0] * split.scale
        if np.abs(again - split.scores).max() > 10 * split.tolerance:
            return split
        query_side, key_side = (np.stack(vectors) for vectors in zip(*others, strict=True))
        without: dict[ReadSide, Floats] = {
            "query": query_side @ own[1].T * split.scale,
            "key": key_side @ own[0] * split.scale,
        }
        return replace(split, without=without)

    def _targets(self, split: SplitScores, asked: AskedLink) -> dict[ReadSide, Tensor]:
        """Return the leads (text,) by side, the other side held; empty if untracked."""
        towards = torch.tensor(split.coefficients(asked.key, asked.than))
        query, key = (self._read(side, asked.head[2]) for side in SIDES)
        if query is None or key is None:
            return {}
        keys, query = (towards.to(key)[:, None] * key).sum(1), query[:, asked.query]
        return {
            "query": (query * keys.detach()).sum(-1) * split.scale,
            "key": (query.detach() * keys).sum(-1) * split.scale,
        }

    def leads(self, split: SplitScores, asked: AskedLink) -> SideLeads | None:
        """Return (text, part) of each side from gradients; None if they do not add up."""
        leads, texts = [], len(self.texts)
        for target in self._targets(split, asked).values():
            terms = [
                None if slope is None else widest(slope * leaf.value.detach()).sum(-1)
                for slope, leaf in zip(self._slopes(target.sum()), self._flow.leaves, strict=True)
            ]
            if any(term is not None and term.numel() % texts for term in terms):
                return None
            sums = np.stack(wide_arrays([self._sum_of(part, terms) for part in split.parts]), 1)
            if texts > 1 and np.abs(sums.sum(1) - wide_array(target)).max() > 10 * split.tolerance:
                return None
            leads.append(sums)
        return (leads[0], leads[1]) if leads else None

    def _sum_of(self, part: StreamPart, terms: Sequence[Tensor | None]) -> Tensor:
        """Return the sum (text,) of a part's terms by leaf, which are None without influence."""
        known = [term for at in self._leaves[part] if (term := terms[at]) is not None]
        own = [term if part.head is None else term[..., part.head] for term in known]
        device = own[0].device if own else None
        none = torch.zeros(len(self.texts), dtype=torch.float64, device=device)
        by_text = [term.reshape(len(none), -1) for term in own]  # some models join text and token
        return sum((term.sum(1) for term in by_text), none)

    def sources(self, split: SplitScores, asked: AskedLink) -> dict[tuple[ReadSide, int], Floats]:
        """Return for the largest heads of each side their part of the lead by source token."""
        targets = self._targets(split, asked)
        if not targets:
            return {}
        matrix = split.matrix(split.coefficients(asked.key, asked.than))
        wholes = {"query": matrix.sum(1), "key": matrix.sum(0)}
        slopes = {side: self._slopes(target.sum()) for side, target in targets.items()}
        by_token: dict[tuple[ReadSide, int], Tensor] = {}
        for side, at in largest_heads(split, asked):
            (leaf,) = self._leaves[split.parts[at]]
            number, head = self._flow.leaves[leaf].point, split.parts[at].head
            mixing = None if number is None else self._mixed.get(number)
            slope = slopes[side][leaf]
            if mixing is None or slope is None or head is None:
                continue
            by_token[side, at] = mixing.written(slope[0])[head].sum(0)
        return {
            (side, at): rows
            for (side, at), rows in zip(by_token, wide_arrays([*by_token.values()]), strict=True)
            if abs(rows.sum() - wholes[side][at]) <= 10 * split.tolerance
        }

    def _slopes(self, target: Tensor) -> Sequence[Tensor | None]:
        """Return the derivative of a lead by each leaf; None for a leaf without influence."""
        return torch.autograd.grad(
            target, [leaf.value for leaf in self._flow.leaves], retain_graph=True, allow_unused=True
        )


def _by_part(
    leaves: Sequence[Leaf], calls: Sequence[HookedCall], reader: int
) -> dict[StreamPart, list[int]]:
    """Return the indices of the leaves of each part, in the order of the model."""
    by_part: dict[StreamPart, list[int]] = {}
    for at, leaf in enumerate(leaves):
        if leaf.point is not None:
            point, heads = calls[leaf.point], range(leaf.value.shape[2])
            is_cross = point.kind == "cross"
            parts = [StreamPart("head", point.layer, head, is_cross) for head in heads]
        elif leaf.kind == "embedding":
            rows = leaf.value.detach()[0]
            is_same = at > 0 and bool((rows == rows[:1]).all())
            parts = [StreamPart("bias" if is_same else "position" if at else "token")]
        else:
            kind: Literal["mlp", "bias"] = "mlp" if leaf.kind == "mlp" else "bias"
            parts = [StreamPart(kind, reader if leaf.layer is None else leaf.layer)]
        for part in parts:
            by_part.setdefault(part, []).append(at)
    order = ("token", "position", "head", "mlp", "bias")

    def in_model(part: StreamPart) -> tuple[int, bool, int]:
        return -1 if part.layer is None else part.layer, part.crosses, order.index(part.kind)

    return {part: by_part[part] for part in sorted(by_part, key=in_model)}


def _of(moved: Tensor | None, like: Tensor) -> Floats:
    return np.zeros(tuple(like.shape)) if moved is None else wide_array(moved)


# A head's block alone ---------------------------------------------------------------------------


class EnteredBlock(NamedTuple):
    """A recorded call of a block: its module, the entering residual stream, all its arguments."""

    block: nn.Module
    stream: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class BlockAlone:
    """Computes one head's query and keys from any residual stream that enters its block.

    call: the recorded call of the block, in a run that says where the head's attention is.
    """

    def __init__(self, call: EnteredBlock, run: _TrackedRun, asked: AskedLink) -> None:
        self._call, self._tracked, self._head, self._query = call, run, asked.head[2], asked.query
        self._columns = ReadColumns()
        self.stream = call.stream.detach()
        if not run.by_product:
            self._learn()

    def _learn(self) -> None:
        """Find out what of the block is read; all of it if a router of experts is in front."""
        whole = self._run(self.stream.clone().requires_grad_())
        if whole is None or not all(vectors.requires_grad for vectors in whole):
            return
        self._columns.learn(whole)
        again = self._run(self.stream)
        if again is None or not all(
            own.isfinite().all()
            and torch.allclose(own, other, rtol=1e-4, atol=1e-4 * float(own.detach().abs().max()))
            for own, other in zip(whole, again, strict=True)
        ):
            self._columns = ReadColumns()

    def read(self, stream: Tensor) -> tuple[Floats, Floats] | None:
        """Return query (dim,) and keys (token, dim) for a stream; None if the block cannot run."""
        vectors = self._run(stream)
        if vectors is None:
            return None
        both = wide_array(torch.cat([vectors[0][None], vectors[1]]))  # a GPU is asked once
        return both[0], both[1:]

    def _run(self, stream: Tensor) -> tuple[Tensor, Tensor] | None:
        (block, _, args, kwargs), head, query = self._call, self._head, self._query
        run = partial(block, **{**kwargs, "hidden_states": stream})
        if args:
            run = partial(block, stream, *args[1:], **kwargs)
        if self._tracked.by_product:
            own = None
            with suppress(*MISFITS):  # such as those of XLM, which keeps the keys of the first call
                own = own_scores(run, self._tracked.texts[0], 0)
            if own is None:
                return None
            return own.query[head, query], own.key[head // (len(own.query) // len(own.key))]
        seen: list[tuple[Tensor, Tensor]] = []

        def attend(call: AttentionCall) -> Attended:
            if call.module is not self._tracked.point.module:
                return call.own()
            shared = call.query.shape[1] // call.key.shape[1]
            seen.append((call.query[0, head, query], call.key[0, head // shared]))
            raise ReachedError

        learning = torch.set_grad_enabled(stream.requires_grad)
        with suppress(ReachedError), learning, taking_calls(attend), self._columns:
            run()
        return seen[0] if seen else None
