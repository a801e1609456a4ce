"""QK attribution of models that NumPy runs: every write is carried to one head's query and keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnviz.attention.functional import project
from attnviz.attention.numpy_stack import NumpyStack, embeddings, held_norm, held_norm_back
from attnviz.engine.attribution.scores import (
    SIDES,
    AskedLink,
    ReadSide,
    ScoreSplitter,
    SideLeads,
    SplitScores,
    StreamPart,
    largest_heads,
)
from attnviz.records import Floats, Input


class RecordedRun(NumpyStack):
    """One recorded pass, in which each norm is a linear map of fixed scale.

    ids: (..., token). layers: how many run; None for all. embedded, end: the stream before and
    after them. reads: attention's inputs. given: norms' inputs by name. outputs: (..., head, token,
    dim), weights: (..., head, query, key), fed: by layer.
    """

    def __init__(self, stack: NumpyStack, ids: ArrayLike, layers: int | None = None) -> None:
        shape = stack.shape if layers is None else replace(stack.shape, layers=layers)
        super().__init__(shape, {}, stack.dtype)
        self.tensors, self.ids = stack.tensors, np.asarray(ids)
        self.given: dict[str, Floats] = {}
        self.reads, self.fed = list[Floats](), list[Floats]()
        self.outputs, self.weights = list[Floats](), list[Floats]()

        def keep(layer: int, weights: Floats, outputs: Floats) -> None:
            self.weights.append(weights)
            self.outputs.append(outputs)

        self.end = self.run_outputs(self.ids, keep)
        self.finite = bool(np.isfinite(self.end).all())

    def moved(self, name: str, change: Floats) -> Floats:
        """Return the change (token, width) of a norm's output for one of its input, scale held."""
        return held_norm(self, name, self.given[name], change)

    def moved_back(self, name: str, slope: Floats) -> Floats:
        """Return the gradient at a norm's input from ``slope`` at its output, scale held."""
        return held_norm_back(self, name, self.given[name], slope)

    def embedding_of(self, rows: Floats) -> Floats:
        """Return what rows of the tables of embeddings, (token, width), become before layer 0."""
        if "embedding_norm" in self.given:
            rows = self.moved("embedding_norm", rows)
        weight = self.tensors.optional("embedding_projection.weight")
        return rows if weight is None else project(rows, weight)

    def embed(self, ids: NDArray[np.integer], start: int = 0) -> Floats:
        self.embedded = super().embed(ids, start)
        return self.embedded

    def read(self, layer: int, residual: Floats) -> Floats:
        self.reads.append(super().read(layer, residual))
        return self.reads[-1]

    def _norm(self, name: str, residual: Floats) -> Floats:
        self.given[name] = residual
        return super()._norm(name, residual)

    def _feed_forward(self, layer: int, read: Floats) -> Floats:
        self.fed.append(super()._feed_forward(layer, read))
        return self.fed[-1]


@dataclass(frozen=True)
class NumpyScoreSplitter(ScoreSplitter):
    """Splits the attention scores of a decoder or encoder that NumPy runs."""

    stack: NumpyStack

    def split(self, given: Input, asked: AskedLink) -> SplitScores:
        with np.errstate(over="ignore", invalid="ignore"):
            reader = self._reader(RecordedRun(self.stack, given.ids, asked.head[1] + 1), asked)
            split = reader.split(asked)
            largest = largest_heads(split, asked)
            sources = {(side, at): reader.by_source(side, split, at, asked) for side, at in largest}
            without = reader.without(asked.query, split.scale, len(split.parts))
            return replace(split, sources=sources, without=without)

    def leads(self, texts: Sequence[Input], asked: AskedLink, known: SplitScores) -> SideLeads:
        layer = asked.head[1]
        with np.errstate(over="ignore", invalid="ignore"):
            run = RecordedRun(self.stack, [given.ids for given in texts], layer)
            run.read(layer, run.end)  # the pass ends at the input of the head's attention
            return self._reader(run, asked).leads(asked, known)

    def _reader(self, run: RecordedRun, asked: AskedLink) -> _Reader:
        self.stack.finite = self.stack.finite and run.finite
        return _Reader(self.stack, run, *asked.head[1:])


class _Reader:
    """One head of a run over one text; its query and keys are linear in the writes before it."""

    def __init__(self, stack: NumpyStack, run: RecordedRun, layer: int, head: int) -> None:
        self._stack, self._run, self._layer, self._head = stack, run, layer, head
        self._name, self._after = f"layers.{layer}.attention_norm", stack.shape.order == "after"
        self._attention, self._read = run.attention(layer).alone(head), run.reads[layer]

    def split(self, asked: AskedLink) -> SplitScores:
        parts, queries, keys = list[StreamPart](), list[Floats](), list[Floats]()
        for written, writes in _arriving(self._run, self._layer):
            query, key = self._followed(writes)
            parts += written
            queries.append(query[:, asked.query])
            keys.append(key)
        query, key = self._biases()
        if query.any() or key.any():
            parts.append(StreamPart("bias", self._layer))
            queries.append(query[:, asked.query])
            keys.append(key)
        seen, tokens = self._attention.seen(self._read), len(self._read)
        hidden = np.zeros(tokens) if seen is None else np.where(seen[asked.query], 0.0, -np.inf)
        return SplitScores(
            parts=parts,
            query=np.concatenate(queries).astype(np.float64),
            key=np.concatenate(keys).astype(np.float64),
            scale=float(1 / np.sqrt(self._attention.shape.head_dim)),
            softcap=None,
            added=hidden,
            weights=self._run.weights[self._layer][self._head, asked.query].astype(np.float64),
            epsilon=float(np.finfo(self._stack.dtype).eps),
        )

    def _biases(self) -> tuple[Floats, Floats]:
        """Return what biases make of query and key, (..., 1, token, dim) each."""
        shift = self._stack.tensors.optional(f"{self._name}.bias")
        entering = np.zeros_like(self._read)
        if shift is not None and not self._after:
            entering = entering + shift
        query, key, _ = self._attention.moved_inputs(self._read, entering, biases=True)
        return query, key

    def leads(self, asked: AskedLink, known: SplitScores) -> SideLeads:
        """Return (text, part), for query and keys: what each part adds to a lead in each text."""
        towards = (known.coefficients(asked.key, asked.than) * known.scale).astype(self._read.dtype)
        query, key, _ = self._attention.inputs(self._read)
        by_query, by_key = np.zeros_like(query), np.zeros_like(key)
        by_query[:, :, asked.query] = towards @ key
        by_key[:] = towards[:, None] * query[:, :, asked.query, None]
        slopes = self._attention.moved_back(self._read, by_query, by_key)
        entering = (own if self._after else self._run.moved_back(self._name, own) for own in slopes)
        sides = [_slopes(self._run, self._layer, slope) for slope in entering]
        leads: tuple[list[Floats], list[Floats]] = ([], [])
        for _, writes in _writes(self._run, self._layer):
            for side, slope_at in zip(leads, sides, strict=True):
                pairs = [(write.values, slope_at[write.point]) for write in writes]
                side.append(sum(np.einsum("npkw,nkw->np", *pair) for pair in pairs))
        for side, bias, by in zip(leads, self._biases(), (by_query, by_key), strict=True):
            side.append((bias * by).sum((-2, -1)))
        rows = [np.concatenate(side, 1)[:, : len(known.parts)] for side in leads]
        return rows[0].astype(np.float64), rows[1].astype(np.float64)

    def without(self, query: int, scale: float, parts: int) -> dict[ReadSide, Floats]:
        """Return scores (part, key) if norms do not read a part: of the query, then of the keys."""
        stream = self._read if self._after else self._run.given[self._name]
        own_query, own_key, _ = self._attention.inputs(self._read)
        scores: dict[ReadSide, Floats] = {
            side: np.full((parts, len(stream)), np.nan) for side in SIDES
        }
        start = 0
        for written, writes in _arriving(self._run, self._layer):
            read = self._stack.read(self._layer, stream - writes)
            queries, keys, _ = self._attention.inputs(read)
            rows = slice(start, start + len(written))
            scores["query"][rows] = queries[:, 0, query] @ own_key[0].T * scale
            scores["key"][rows] = keys[:, 0] @ own_query[0, query] * scale
            start += len(written)
        return scores

    def by_source(self, side: ReadSide, split: SplitScores, at: int, asked: AskedLink) -> Floats:
        """Return the lead's part ``at``, a head's, split by the tokens that it read: (token,)."""
        layer, head = split.parts[at].layer or 0, split.parts[at].head or 0
        writer = self._run.attention(layer).alone(head)
        shape = writer.shape.value_dim, *self._read.shape
        basis = np.broadcast_to(writer.output_weight.T[:, None], shape)
        query, key = self._followed(_carried(self._run, basis, self._layer, _Point(layer)))
        towards = split.coefficients(asked.key, asked.than)
        if side == "key":  # the lead by what is written at each token, (token, value_dim)
            slope = np.einsum("vkd,d,k->kv", key, split.query.sum(0), towards)
        else:
            slope = np.zeros((len(self._read), len(query)))
            slope[asked.query] = query[:, asked.query] @ (towards @ split.key.sum(0))
        values = writer.inputs(self._run.reads[layer])[2][0]
        rows = self._run.weights[layer][head] * (slope @ values.T)
        return rows.sum(0) * split.scale

    def _followed(self, writes: Floats) -> tuple[Floats, Floats]:
        """Return the parts of query and key (part, token, dim) that writes make."""
        entering = writes if self._after else self._run.moved(self._name, writes)
        query, key, _ = self._attention.moved_inputs(self._read, entering)
        return query[..., 0, :, :], key[..., 0, :, :]


class _Point(NamedTuple):
    """A point of the residual stream: before a layer, or within it, before its feed-forward."""

    layer: int
    within: bool = False


class _Write(NamedTuple):
    """What some parts wrote to the stream at one point: (..., part, token, width)."""

    values: Floats
    point: _Point


def _arriving(run: RecordedRun, layer: int) -> Iterator[tuple[Sequence[StreamPart], Floats]]:
    """Yield parts, and what each of them wrote as it arrives at a layer: (part, token, width)."""
    for parts, writes in _writes(run, layer):
        first, *more = (_carried(run, write.values, layer, write.point) for write in writes)
        yield parts, sum(more, first)


def _writes(run: RecordedRun, layer: int) -> Iterator[tuple[Sequence[StreamPart], list[_Write]]]:
    """Yield what is written in front of a layer: parts, and their writes, whose sum is theirs."""
    for part, write in _embedded(run):
        whole = np.broadcast_to(write, run.embedded.shape)
        yield [part], [_Write(whole[..., None, :, :], _Point(0))]
    for at in range(layer):
        attention, name = run.attention(at), f"layers.{at}"
        heads = np.einsum("...hnd,ohd->...hno", run.outputs[at], attention.output_by_head)
        parts = [StreamPart("head", at, head) for head in range(heads.shape[-3])]
        before, within, after = _Point(at), _Point(at, within=True), _Point(at + 1)
        yield parts, [_Write(heads, before)]
        fed = run.fed[at][..., None, :, :]
        yield [StreamPart("mlp", at)], [_Write(fed, within)]
        biases = [(attention.output_bias, before)]
        if run.shape.order == "after":  # those of the norms, which stand behind each part
            biases.append((run.tensors.optional(f"{name}.attention_norm.bias"), within))
            biases.append((run.tensors.optional(f"{name}.feed_norm.bias"), after))
        like = np.zeros_like(fed)
        if added := [_Write(like + bias, point) for bias, point in biases if bias is not None]:
            yield [StreamPart("bias", at)], added


def _slopes(run: RecordedRun, layer: int, slope: Floats) -> dict[_Point, Floats]:
    """Return a number's derivative (text, token, width) by the stream at each earlier point."""
    slopes = {_Point(layer): slope}
    for at in reversed(range(layer)):
        for within, norm in ((True, "feed_norm"), (False, "attention_norm")):
            if run.shape.order == "after":
                slope = run.moved_back(f"layers.{at}.{norm}", slope)
            slopes[_Point(at, within)] = slope
    return slopes


def _carried(run: RecordedRun, writes: Floats, layer: int, since: _Point) -> Floats:
    """Return writes as they arrive at ``layer``, (part, token, width), scaled by norms."""
    if run.shape.order != "after":
        return writes
    for at in range(since.layer, layer):
        if not since.within or at > since.layer:
            writes = run.moved(f"layers.{at}.attention_norm", writes)
        writes = run.moved(f"layers.{at}.feed_norm", writes)
    return writes


def _embedded(run: RecordedRun) -> Iterator[tuple[StreamPart, Floats]]:
    """Yield what is written before the first layer: parts, and what each wrote, (token, width)."""
    projection = run.tensors.optional("embedding_projection.weight")
    constant = np.zeros_like(run.embedded)
    for table, rows in embeddings(run, run.ids).items():
        write = run.embedding_of(rows)
        if rows.shape[-2] == 1 < constant.shape[-2]:  # the same for every token
            constant = constant + write
        else:
            yield StreamPart("token" if table == "tokens" else "position"), write
    shift = run.tensors.optional("embedding_norm.bias")
    if shift is not None:
        constant = constant + (shift if projection is None else project(shift, projection))
    if (bias := run.tensors.optional("embedding_projection.bias")) is not None:
        constant = constant + bias
    if constant.any():
        yield StreamPart("bias"), constant
