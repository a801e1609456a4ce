"""What a running torch model reads from its stream, and what its heads write; see ``lens``.

One pass records the residual stream before the first block and after each. In a second pass the
last block hands all of them on, as the rows of a batch, so that whatever the model does after its
blocks is done to each: no final norm is known here. The last row must be the model's own logits.

Over texts of one token what a head writes is its OV circuit; see ``circuits``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnviz.attention.functional import Array
from attnviz.engine.attribution.followed_run import (
    Predicted,
    batch_logits,
    follow,
    lost,
    tolerance_of,
)
from attnviz.engine.attribution.parts import AskedLogit, LensReading, block_readings, head_readings
from attnviz.engine.attribution.residual_pass import Jacobian, Leaf, ResidualPass, heads_alone
from attnviz.engine.device_sizes import sizes, widest
from attnviz.engine.hook_points import first_of, hooked, with_first
from attnviz.engine.likely import ALONE, answer_places
from attnviz.engine.linear_map import Halves, matrix_of, sums_halves
from attnviz.engine.patchable import PatchableModel, Untouched, blocks_of, probe_of
from attnviz.engine.scan.plan import MISFITS, is_causal
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.model import Model
from attnviz.records import HeadKey, Input

_Edit = Callable[[int, Tensor], Tensor | None]
"""Receives the index of a block call and its output, and returns another one, or None."""


def torch_lens(
    model: PatchableModel, given: Input, asked: AskedLogit, position: int
) -> LensReading:
    """Return the predictions after each block, and what each head adds to them, at one token.

    position: the index of the token. Raises UsageError for an answer that does not exist,
    UnsupportedError if the model does more between its blocks than add to one residual stream, or
    if what its heads write cannot be traced to the logits.
    """

    def answer_in(own: Tensor) -> int:
        likeliest = own.argsort(descending=True, stable=True)
        return asked.words(int(likeliest[0]), len(own))[0]

    return _reading(model, given, _Choice(position), answer_in)


class _Choice(NamedTuple):
    """What a prediction chooses among: the words at one token, or the tokens of the context.

    position: the token whose logits are read, or that is followed. tokens: the indices of those of
        the context; None for words. end: the label whose logits these tokens have.
    """

    position: int
    tokens: Sequence[int] | None = None
    end: int = 0

    @property
    def row(self) -> int | None:
        """Return the index of the only token whose logits are needed; None for all tokens."""
        return self.position if self.tokens is None else None

    def among(self, logits: Tensor) -> Tensor:
        """Return from logits (..., token, vocab) those of the possible answers, (..., choice)."""
        return logits[..., 0, :] if self.tokens is None else logits[..., self.tokens, self.end]


def lens_of_answer(model: PatchableModel, given: Input, predicted: Predicted) -> LensReading:
    """Return what is read of one end of an answer, with tokens of the context as words."""
    tokens = answer_places(given.text)
    choice = _Choice(predicted.position, tokens, predicted.answer)
    reading = _reading(model, given, choice, lambda own: tokens.index(predicted.position))

    def named(words: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
        return tuple((tokens[at], value) for at, value in words)

    return replace(
        reading,
        answer=predicted.position,
        end=predicted.answer,
        blocks=tuple(block._replace(top=named(block.top)) for block in reading.blocks),
        heads=tuple(
            head._replace(raises=named(head.raises), lowers=named(head.lowers))
            for head in reading.heads
        ),
        notes=(*([] if given.text.joined else [ALONE]), *reading.notes),
    )


def _reading(
    model: PatchableModel, given: Input, choice: _Choice, answer_in: Callable[[Tensor], int]
) -> LensReading:
    """Return what is read of a choice. answer_in: returns its answer from the model's logits."""
    with model.hook_points.borrowed():
        with torch.no_grad():
            logits, own = _without_later_blocks(model, given, choice)
        answer = answer_in(own)
        run = follow(model, given, choice.position, everywhere=choice.tokens is not None)
    tolerance = tolerance_of(run, own)
    if not float((logits[-1] - own).abs().max()) <= tolerance:
        raise _apart(model)
    towards = run.logits[run.row] if choice.tokens is None else choice.among(run.logits)
    if not towards.requires_grad or all(leaf.point is None for leaf in run.leaves):
        raise lost(model)
    jacobian = Jacobian([towards], [leaf.value for leaf in run.leaves])
    (whole,) = jacobian.moved({at: leaf.value.detach() for at, leaf in enumerate(run.leaves)})
    assert whole is not None
    total, cap = widest(whole), run.cap
    total = total if cap is None else cap * (total / cap).tanh()
    added = (
        (keys, moved if sizes(moved.device.type).waits else moved.double().numpy())
        for keys, moved in _written(model, run.leaves, jacobian)
    )
    return LensReading(
        position=choice.position,
        answer=answer,
        blocks=block_readings(logits.cpu().numpy(), answer),
        heads=head_readings(added, answer),
        apart=float((total - own).abs().max()),
        tolerance=tolerance,
        softcap=run.squeezed is not None,
        notes=run.notes,
    )


# The blocks ----------------------------------------------------------------------------------


def _without_later_blocks(
    model: PatchableModel, given: Input, choice: _Choice
) -> tuple[Tensor, Tensor]:
    """Return logits (blocks + 1, choice) without later blocks, and the model's own."""
    entered, left = list[Tensor](), list[Tensor]()

    def keep(number: int, output: Tensor) -> None:
        left.append(output)

    own = widest(_run(model, given, choice, keep, entered.append)[0])
    if len(entered) != len(left) or not left or left[0].ndim != 3:
        raise _apart(model)
    if not all(map(torch.equal, left, entered[1:])):
        raise _apart(model)
    stream = torch.cat([entered[0], *left])  # (blocks + 1, token, width)

    def read(rows: Tensor) -> Tensor:
        last = len(left) - 1
        return widest(_run(model, given, choice, lambda at, output: rows if at == last else None))

    with suppress(*MISFITS):
        if len(logits := read(stream)) == len(stream):
            return logits, own
    # The model runs batches of the size that it was given.
    return torch.cat([read(row[None]) for row in stream]), own


def _run(
    model: PatchableModel,
    given: Input,
    choice: _Choice,
    edit: _Edit,
    enter: Callable[[Tensor], None] = lambda stream: None,
) -> Tensor:
    """Return the logits (row, choice) of a pass whose block calls are seen, and may be edited."""
    calls = 0

    def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = args[0] if args else kwargs.get("hidden_states")
        if isinstance(stream, Tensor):
            enter(stream)

    def after(block: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        nonlocal calls
        first = first_of(output)
        assert first is not None
        other = edit(calls, first)
        calls += 1
        return None if other is None else with_first(output, other)

    blocks = blocks_of(model)
    with (
        hooked(*(block.register_forward_pre_hook(before, with_kwargs=True) for block in blocks)),
        hooked(*(block.register_forward_hook(after) for block in blocks)),
    ):
        return choice.among(batch_logits(model, given, choice.row))


def _apart(model: PatchableModel) -> UnsupportedError:
    return UnsupportedError(
        f"{type(model.root).__name__} does more between its blocks, or behind them, than hand one "
        "residual stream on: what it would predict without its later blocks is not known; attnviz "
        "why takes its prediction apart"
    )


# The heads -----------------------------------------------------------------------------------


def _written(
    model: PatchableModel,
    leaves: Sequence[Leaf],
    jacobian: Jacobian,
    wanted: Collection[HeadKey] | None = None,
) -> Iterator[tuple[Sequence[HeadKey], Tensor]]:
    """Yield some heads of a layer with what each adds to the tensor of a Jacobian, (head, ...)."""
    for at, leaf in enumerate(leaves):
        if leaf.point is None:
            continue
        if not jacobian.leads(at):
            raise lost(model)
        point, value = model.hook_points.calls[leaf.point], leaf.value.detach()
        keys: list[HeadKey] = [(point.kind, point.layer, head) for head in range(point.heads)]
        keys = [key for key in keys if wanted is None or key in wanted]
        at_once, many = sizes(value.device.type), 1  # a processor leaves out the other heads' zeros
        if at_once.waits:
            numbers = 4 * max(value.numel(), jacobian.numbers)  # about so many exist of each head
            many = max(1, at_once.chunk_bytes // (value.element_size() * numbers))
        for start in range(0, len(keys), many):
            some = keys[start : start + many]
            yield some, jacobian.moved_each(at, heads_alone(value, [head for _, _, head in some]))


# Over one token ---------------------------------------------------------------------------------


def torch_one_token_logits(
    model: PatchableModel, named: Model, tokens: Sequence[int], heads: Collection[HeadKey]
) -> Iterator[tuple[HeadKey, Sequence[int], Array]]:
    """Yield for each head, and some tokens at a time, what it adds to the logits over each token.

    Each item is (head, token ids, (token, vocab)); see ``circuits``. named: the model, for its
    name in errors. Raises UsageError if the model does not predict the next token.
    """
    with torch.no_grad(), model.hook_points.borrowed():
        causal = is_causal(model, probe_of(Input.of_ids(tokens[:1])))
    if model.head is None or not causal:
        raise UsageError(
            f"{named.info.name!r} does not predict the next token: whether its heads copy cannot "
            "be told"
        )
    matrix: Tensor | None = None
    with model.hook_points.borrowed():
        size = sizes(model.device.type).one_token_texts
        for start in range(0, len(tokens), size):
            batch = tokens[start : start + size]
            for keys, written in _written_alone(model, batch, heads):
                if matrix is None:
                    matrix = matrix_of(model.head, written).detach()
                    in_halves = sums_halves(matrix.device.type, matrix.dtype)
                    matrix = matrix if in_halves else matrix.float()
                for key, rows in zip(keys, written, strict=True):
                    if matrix.dtype.itemsize == 2:
                        added = Halves(rows.float(), matrix.dtype).times(matrix.T)
                    else:
                        added = rows.float() @ matrix
                    yield key, batch, added if added.is_cuda else added.cpu().numpy()


def _written_alone(
    model: PatchableModel, tokens: Sequence[int], wanted: Collection[HeadKey]
) -> Iterator[tuple[Sequence[HeadKey], Tensor]]:
    """Yield heads with what they add to the projection's input, (head, token, width)."""
    projected: list[Tensor] = []

    def catch(head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        projected.append(args[0])
        return (args[0][:1, :0], *args[1:])

    flow = ResidualPass(model, Untouched())
    assert model.head is not None
    with hooked(model.head.register_forward_pre_hook(catch)), flow.following():
        model.run(*(Input.of_ids([token]) for token in tokens))
    heads = [leaf for leaf in flow.leaves if leaf.point is not None]
    if not projected or not projected[0].requires_grad:
        raise lost(model)
    jacobian = Jacobian(projected, [leaf.value for leaf in heads])
    for keys, seen in _written(model, heads, jacobian, wanted):
        yield keys, seen.flatten(2)
