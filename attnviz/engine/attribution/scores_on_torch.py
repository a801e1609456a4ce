"""QK attribution of running torch models, whose pass is linear in all that it writes.

Two passes: a plain one gives the scale, the mask and the weights of the head, and one that is
tracked (``ResidualPass``) gives the parts of its query and keys. Both end at the head's layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from attnviz.engine.hook_points import HookedCall, enclosing_block, hooked
from attnviz.engine.linear_map import ReadColumns, packed_layers
from attnviz.engine.passes import WatchedCall, watched
from attnviz.engine.patchable import PatchableModel, whole_pass
from attnviz.engine.replacing import LostTrackError
from attnviz.engine.scan.plan import MISFITS
from attnviz.errors import UsageError
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
            found = run.split(facts, asked)
            if found is None:
                raise not_followed(self._name, packed_layers(self._model))
            return replace(found, sources=run.sources(found, asked))

    def leads(self, texts: Sequence[Input], asked: AskedLink, known: SplitScores) -> SideLeads:
        call = self._call(asked.head)
        with self._opened.hook_points.borrowed():
            found = self._tracked(texts, call).leads(known, asked)
        if found is not None:
            return found
        if len(texts) == 1:
            raise not_followed(self._name, packed_layers(self._model))
        each = [self.leads([given], asked, known) for given in texts]
        return np.concatenate([one[0] for one in each]), np.concatenate([one[1] for one in each])

    def _tracked(self, texts: Sequence[Input], call: int, *, mixing: bool = False) -> _TrackedRun:
        try:
            return _TrackedRun(self._opened, texts, call, mixing=mixing)
        except LostTrackError as error:
            raise not_followed(self._name, packed_layers(self._model)) from error

    def _call(self, head: HeadKey) -> int:
        kind, layer, number = head
        for at, point in enumerate(self._opened.hook_points.found):
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
                raise not_followed(self._name, packed_layers(self._model))
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
        try:
            with torch.inference_mode():
                watched(forward, answer)
        except ReachedError:
            pass
        except IncompleteError:
            seen = []
        if not seen:
            raise not_followed(self._name, packed_layers(self._model))
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
        self._point = model.hook_points.found[call]
        self._end = call
        self._watch = MixingWatch(texts[0]) if mixing else None
        self._mixed: dict[int, Mixing] = {}
        self._entry: EnteredBlock | None = None
        self._texts = texts
        self._by_product = not model.hook_points.shows_inputs
        self._flow = ResidualPass(
            model, self, reading=True, by_product=self._by_product, last=call, texts=len(texts)
        )
        block = enclosing_block(model.root).get(id(self._point.module))
        with self._flow.following(), ExitStack() as hooks:
            if block is not None:
                enter = block.register_forward_pre_hook(self._enter, with_kwargs=True)
                hooks.enter_context(hooked(enter))
            try:
                with self._watch or nullcontext():
                    model.run(*texts)
            except ReachedError:
                pass
        self._leaves = _by_part(self._flow.leaves, model.hook_points.found, self._point.layer)

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
        return whole[:, :, head // (self._point.heads // whole.shape[2])]

    def split(self, facts: SplitScores, asked: AskedLink) -> SplitScores | None:
        """Return the scores of the asked query as sums over parts; None if they are not tracked."""
        query, key = (self._read(side, asked.head[2]) for side in SIDES)
        if query is None or key is None:
            return None
        query, key, alone = query[0, asked.query], key[0], self._alone(asked)
        own = None if alone is None else alone.read(alone.stream)
        streams = [self._entry.stream] if self._entry is not None and own is not None else []
        jacobian = Jacobian([query, key, *streams], [leaf.value for leaf in self._flow.leaves])
        parts, queries, keys, others = [], [], [], []
        for part, change in self._changes(jacobian.leads):
            moved = jacobian.moved(change)
            parts.append(part)
            queries.append(_of(moved[0], query))
            keys.append(_of(moved[1], key))
            if alone is not None and own is not None:
                read = None if moved[2] is None else alone.read(alone.stream - moved[2])
                others.append(read or tuple(np.full_like(one, np.nan) for one in own))
        split = replace(facts, parts=tuple(parts), query=np.stack(queries), key=np.stack(keys))
        if own is None:
            return split
        again = own[1] @ own[0] * split.scale
        if np.abs(again - split.scores).max() > 10 * split.tolerance:
            return split
        query_side = np.stack([each[0] for each in others]) @ own[1].T * split.scale
        key_side = np.stack([each[1] for each in others]) @ own[0] * split.scale
        return replace(split, without={"query": query_side, "key": key_side})

    def _alone(self, asked: AskedLink) -> BlockAlone | None:
        """Return the block to run without parts; None if its stream is not tracked."""
        if self._entry is None or not self._entry.stream.requires_grad:
            return None
        return BlockAlone(
            self._entry,
            self._point,
            self._texts[0],
            by_product=self._by_product,
            head=asked.head[2],
            query=asked.query,
        )

    def _changes(
        self, leads: Callable[[int], bool]
    ) -> Iterator[tuple[StreamPart, dict[int, Tensor]]]:
        """Yield each part with what it wrote, by the index of the leaf."""
        for part, leaves in self._leaves.items():
            change = {}
            for at in filter(leads, leaves):
                value = self._flow.leaves[at].value.detach()
                change[at] = value if part.head is None else head_alone(value, part.head)
            if change:
                yield part, change

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
        found, texts = [], len(self._texts)
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
            found.append(sums)
        return (found[0], found[1]) if found else None

    def _sum_of(self, part: StreamPart, terms: Sequence[Tensor | None]) -> Tensor:
        """Return the sum (text,) of a part's terms by leaf, which are None without influence."""
        known = [term for at in self._leaves[part] if (term := terms[at]) is not None]
        own = [term if part.head is None else term[..., part.head] for term in known]
        device = own[0].device if own else None
        none = torch.zeros(len(self._texts), dtype=torch.float64, device=device)
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
        found: dict[tuple[ReadSide, int], Tensor] = {}
        for side, at in largest_heads(split, asked):
            (leaf,) = self._leaves[split.parts[at]]
            number, head = self._flow.leaves[leaf].point, split.parts[at].head
            mixing = None if number is None else self._mixed.get(number)
            slope = slopes[side][leaf]
            if mixing is None or slope is None or head is None:
                continue
            found[side, at] = mixing.written(slope[0])[head].sum(0)
        return {
            (side, at): rows
            for (side, at), rows in zip(found, wide_arrays([*found.values()]), strict=True)
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
    found: dict[StreamPart, list[int]] = {}
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
            found.setdefault(part, []).append(at)
    order = ("token", "position", "head", "mlp", "bias")

    def place(part: StreamPart) -> tuple[int, bool, int]:
        return -1 if part.layer is None else part.layer, part.crosses, order.index(part.kind)

    return {part: found[part] for part in sorted(found, key=place)}


def _of(moved: Tensor | None, like: Tensor) -> Floats:
    return np.zeros(tuple(like.shape)) if moved is None else wide_array(moved)


# A head's block alone ---------------------------------------------------------------------------


class EnteredBlock(NamedTuple):
    """A recorded call of a block: its module, the entering residual stream, all its arguments."""

    block: nn.Module
    stream: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def on(self, stream: Tensor) -> Callable[[], object]:
        """Return a function that repeats the call with another residual stream."""
        if self.args:
            return partial(self.block, stream, *self.args[1:], **self.kwargs)
        return partial(self.block, **{**self.kwargs, "hidden_states": stream})


class BlockAlone:
    """Computes one head's query and keys from any residual stream that enters its block.

    call: the recorded call of the block. point: the head's attention call. given: the text.
    by_product: True finds query and keys as the factors of the scores, in a model that computes
        attention by itself. head, query: the indices of the head and of the query's token.
    """

    def __init__(
        self,
        call: EnteredBlock,
        point: HookedCall,
        given: Input,
        *,
        by_product: bool,
        head: int,
        query: int,
    ) -> None:
        self._call, self._point, self._given, self._by_product = call, point, given, by_product
        self._place = head, query
        self._columns = ReadColumns()
        self.stream = call.stream.detach()
        if not by_product:
            self._learn()

    def _learn(self) -> None:
        """Find out what of the block is read; all of it if a router of experts is in front."""
        whole = self._run(self.stream.clone().requires_grad_())
        if whole is None or not all(one.requires_grad for one in whole):
            return
        self._columns.learn(whole)
        again = self._run(self.stream)
        if again is None or not all(
            one.isfinite().all()
            and torch.allclose(one, other, rtol=1e-4, atol=1e-4 * float(one.detach().abs().max()))
            for one, other in zip(whole, again, strict=True)
        ):
            self._columns = ReadColumns()

    def read(self, stream: Tensor) -> tuple[Floats, Floats] | None:
        """Return query (dim,) and keys (token, dim) for a stream; None if the block cannot run."""
        found = self._run(stream)
        if found is None:
            return None
        both = wide_array(torch.cat([found[0][None], found[1]]))  # a GPU is asked once
        return both[0], both[1:]

    def _run(self, stream: Tensor) -> tuple[Tensor, Tensor] | None:
        head, query = self._place
        run = self._call.on(stream)
        if self._by_product:
            own = None
            with suppress(*MISFITS):  # such as those of XLM, which keeps the keys of the first call
                own = own_scores(run, self._given, 0)
            if own is None:
                return None
            return own.query[head, query], own.key[head // (len(own.query) // len(own.key))]
        seen: list[tuple[Tensor, Tensor]] = []

        def attend(call: AttentionCall) -> Attended:
            if call.module is not self._point.module:
                return call.own()
            shared = call.query.shape[1] // call.key.shape[1]
            seen.append((call.query[0, head, query], call.key[0, head // shared]))
            raise ReachedError

        learning = torch.set_grad_enabled(stream.requires_grad)
        with suppress(ReachedError), learning, taking_calls(attend), self._columns:
            run()
        return seen[0] if seen else None
