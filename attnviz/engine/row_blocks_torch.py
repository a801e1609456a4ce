"""Attention of transformers models in blocks of queries; of long texts recomputed block by block.

A short text takes the eager function of the module's own file, as ``registered_attention`` does.
A long one takes the fused function for its output, and its weights are recomputed as the plain
softmax of scaled scores. That is right only where attention is plain, so each model is first tried
on a short text both ways, and one that differs is observed eagerly, as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnviz.engine.attention_call import AttentionCall, active
from attnviz.engine.forward_pass import ForwardPass, plan_pass, wants_any
from attnviz.engine.model_state import borrowed
from attnviz.engine.observer import to_numpy
from attnviz.engine.plain_pass import PlainCheck
from attnviz.engine.registered_attention import cross_attention
from attnviz.engine.row_observer import RowObserver, hand_over, rows_of_a_block
from attnviz.engine.stacks import Places
from attnviz.engine.stray_attention import IncompleteError
from attnviz.engine.transformers_interface import observe_transformers
from attnviz.engine.value_norms import MovedNorms
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.attention_interface import uses_interface
from attnviz.models.memory import free_memory
from attnviz.models.model import Model
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Kind, Tokens

__all__ = ["LONG", "observe_rows_torch"]

LONG = 2048
"""Tokens from which weights are recomputed in blocks."""

_TRIAL = 48
"""Tokens of the text that both ways are compared on."""

_TRIAL_CELLS = 1_000
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
_HALF_TOLERANCE = 0.02

_PLAIN_OPTIONS = {
    "scaling", "dropout", "is_causal", "sliding_window", "position_ids", "use_cache",
    "cache_position", "output_attentions", "return_dict", "output_hidden_states",
    "deterministic",
}  # fmt: skip
"""What may be passed to an attention function and leaves it plain; sliding windows are masks."""

_EAGER_COPIES = 4
"""Matrices of one layer that eager attention holds at once: scores, masked, softmax, its copy."""


def observe_rows_torch(
    model: Model,
    observer: RowObserver,
    texts: Sequence[Tokens],
    targets: Sequence[Tokens],
    cells: int,
) -> None:
    """See ``observe_rows``."""
    if not isinstance(model, TransformersModel):
        raise UnsupportedError(f"no way to observe a {type(model).__name__}")
    ids = torch.tensor([text.ids for text in texts])
    target_ids = torch.tensor([text.ids for text in targets]) if targets else None
    tokens = max(ids.shape[1], 0 if target_ids is None else target_ids.shape[1])
    hands = _Hands(observer, cells, MovedNorms(model) if observer.norms else None)
    in_blocks = tokens >= LONG and _is_plain(model, hands, ids, target_ids)
    if not in_blocks:
        _require_room(model, len(texts), tokens)
    with torch.inference_mode():
        if in_blocks or observer.norms:
            forward = plan_pass(model.model, hands, ids, None, target_ids)
            _run(forward, hands, in_blocks=in_blocks)
        else:
            device = model.model.device
            observe_transformers(
                model.model,
                hands,
                ids.to(device),
                decoder_input_ids=None if target_ids is None else target_ids.to(device),
            )


class _Hands:
    """Passes weights of either way on to the observer, as NumPy blocks of single texts."""

    def __init__(self, observer: RowObserver, cells: int, norms: MovedNorms | None) -> None:
        self._observer = observer
        self.cells = cells
        self.norms = norms

    def wants(self, kind: Kind, layer: int) -> bool:
        return self._observer.wants(kind, layer)

    def observe(self, kind: Kind, layer: int, weights: Any, norms: Any = None) -> None:
        """A whole layer's weights (text, head, query, key)."""
        for text, matrix in enumerate(weights):
            moved = None if norms is None else to_numpy(norms[text])
            hand_over(self._observer, text, kind, layer, to_numpy(matrix), moved, self.cells)

    def block(self, kind: Kind, layer: int, start: int, weights: Tensor, norms: Any) -> None:
        """Some rows of a layer's weights (text, head, rows, keys)."""
        for text, matrix in enumerate(weights):
            moved = None if norms is None else to_numpy(norms[text])
            self._observer.observe(text, kind, layer, start, to_numpy(matrix), moved)


def _run(forward: ForwardPass, hands: _Hands, *, in_blocks: bool) -> None:
    """One pass through our registered function. UnsupportedError where it is not called."""
    name = type(forward.model).__name__
    if not uses_interface(forward.model):
        raise UnsupportedError(f"{name} computes attention by itself: its values cannot be seen.")
    # In blocks the output is that of the fused function, under its masks, whatever the model's own.
    with borrowed(forward.model, "sdpa" if in_blocks else None):
        cross = cross_attention(forward) if Places.ambiguous(forward) else {}
        run = _RowRun(forward, hands, Places(forward, cross), in_blocks)
        try:
            with active(run):
                output = forward.run()
        except IncompleteError as error:
            raise UnsupportedError(f"{name} has attention that cannot be observed.") from error
        run.check.end(output)
        if any(wants_any(hands, kind, forward.module) for kind in run.missed):
            raise UnsupportedError(f"{name} has attention that cannot be observed.")


class _RowRun:
    """The state of one pass: each attention call is taken in blocks, or eagerly."""

    def __init__(
        self, forward: ForwardPass, hands: _Hands, places: Places, in_blocks: bool
    ) -> None:
        self._forward = forward
        self._hands = hands
        self._places = places
        self._in_blocks = in_blocks
        # In blocks the model may turn out to have no fused attention while it is observed.
        self.check = PlainCheck(forward, "blocks" if in_blocks else "eager")
        if not in_blocks:
            self.check.begin()

    @property
    def missed(self) -> tuple[Kind, ...]:
        return self._places.missed

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        kind, layer = self._places.next(call.module, call.key.shape[-2])
        wanted = self._hands.wants(kind, layer)
        norms = None
        if wanted and self._hands.norms is not None:
            norms = self._hands.norms.of(kind, layer, call.query.shape[1], call.value)
        if self._in_blocks:
            last = None
            for last in _plain_blocks(call, self._hands.cells) if wanted else ():
                self._hands.block(kind, layer, *last, norms)
            output, _ = call.own()
            if last is not None:
                self.check.weights(call, *last, output)
            return output, None
        result = call.eager()
        self.check.call(call, result[0])
        if wanted:
            self._forward.check(kind, result[1])
            self._hands.observe(kind, layer, result[1], norms)
        return result


def _plain_blocks(call: AttentionCall, cells: int) -> Iterator[tuple[int, Tensor]]:
    """The softmax of the scaled, masked scores, some queries at a time: (text, head, rows, keys).

    Raises IncompleteError where the call asks for more than that.
    """
    extra = {name for name, value in call.options.items() if value is not None} - _PLAIN_OPTIONS
    texts, heads, queries, width = call.query.shape
    shared, keys = call.key.shape[1:3]
    if extra or heads % shared:
        raise IncompleteError
    scale = call.options.get("scaling")
    query = (call.query * (width**-0.5 if scale is None else scale)).unflatten(1, (shared, -1))
    key = call.key[:, :, None].transpose(-1, -2)
    causal = call.is_causal
    rows = rows_of_a_block(texts, heads, keys, cells)
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        seen = min(stop, keys) if causal else keys
        scores = (query[..., start:stop, :] @ key[..., :seen]).float().flatten(1, 2)
        if causal and stop <= keys:
            # Only the block's own queries are keys that lie in the future of some of them.
            square = torch.ones(rows, rows, dtype=torch.bool, device=scores.device).triu(1)
            future = square[: stop - start, : stop - start]
            scores[..., start:].masked_fill_(future, -torch.inf)
        elif call.mask is not None:
            mask = call.mask[..., start:stop, :seen]
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, -torch.inf)
            else:
                scores += mask
        yield start, scores.softmax(-1)


_plain: WeakKeyDictionary[nn.Module, dict[tuple[Kind, ...], bool]] = WeakKeyDictionary()
"""Of each model that was tried, whether its attention of some kinds is a plain softmax."""


def _is_plain(model: TransformersModel, hands: _Hands, ids: Tensor, targets: Tensor | None) -> bool:
    """Whether both ways agree on the beginning of the first text, in every layer."""
    whole = model.model
    if not uses_interface(whole):
        return False
    kinds = tuple(kind for kind in model.kinds if wants_any(hands, kind, whole))
    known = _plain.setdefault(whole, {})
    if kinds not in known:
        short = ids[:1, :_TRIAL], None if targets is None else targets[:1, :_TRIAL]
        known[kinds] = _agree(model, kinds, *short)
    return known[kinds]


def _agree(
    model: TransformersModel, kinds: tuple[Kind, ...], ids: Tensor, targets: Tensor | None
) -> bool:
    eager, blocks = _Collected(kinds), _Collected(kinds)
    with torch.inference_mode():
        observe_transformers(
            model.model,
            _Hands(eager, _TRIAL_CELLS, None),
            ids.to(model.model.device),
            decoder_input_ids=None if targets is None else targets.to(model.model.device),
        )
        hands = _Hands(blocks, _TRIAL_CELLS, None)
        forward = plan_pass(model.model, hands, ids, None, targets)
        try:
            _run(forward, hands, in_blocks=True)
        except UnsupportedError:
            return False
    tolerance = _TOLERANCE.get(model.model.dtype, _HALF_TOLERANCE)
    return eager.equal(blocks, tolerance)


class _Collected:
    """Keeps every block of one short text."""

    norms = False

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self._kinds = kinds
        self.rows: dict[tuple[str, int, int], Any] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind in self._kinds

    def observe(
        self, text: int, kind: Kind, layer: int, start: int, weights: Any, norms: Any
    ) -> None:
        for row in range(weights.shape[-2]):
            self.rows[kind, layer, start + row] = weights[:, row]

    def equal(self, other: _Collected, tolerance: float) -> bool:
        if self.rows.keys() != other.rows.keys() or not self.rows:
            return False
        return all(_near(row, other.rows[key], tolerance) for key, row in self.rows.items())


def _near(whole: Any, block: Any, tolerance: float) -> bool:
    """Whether a block's row equals a whole one, which may have more keys: those must be zero."""
    seen = block.shape[-1]
    differs = abs(whole[:, :seen] - block).max() > tolerance
    return not differs and not (abs(whole[:, seen:]) > tolerance).any()


def _require_room(model: TransformersModel, texts: int, tokens: int) -> None:
    """Refuse a text whose whole matrices the memory cannot hold before anything runs."""
    device = model.model.device
    free = free_memory(device)
    layers = _EAGER_COPIES if uses_interface(model.model) else model.info.layers + _EAGER_COPIES
    needed = 4 * texts * model.info.heads * tokens * tokens * layers
    if free is not None and needed > free:
        raise UsageError(
            f"the attention of {model.info.name!r} can only be read whole, which takes about "
            f"{needed / 1e9:,.1f} GB for {tokens:,} tokens, {free / 1e9:,.1f} GB are free on "
            f"{device}: shorten the text"
        )
