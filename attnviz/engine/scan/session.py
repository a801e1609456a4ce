"""A torch model that is opened for passes: its plan, and how many changes fit into one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from attnviz.engine.effects import Positions
from attnviz.engine.patchable import PatchableModel, Untouched, run_pass
from attnviz.engine.scan.memory import Room, fused_activations, peak_bytes, room_for
from attnviz.engine.scan.plan import MISFITS, ScanPlan, make_plan
from attnviz.errors import UsageError
from attnviz.models.memory import byte_text, free_memory
from attnviz.records import Input

_TOKENS_ON_CPU = 1 << 15
"""Of a pass on a CPU, all rows counted: a larger batch gains nothing there."""

_ALIVE = 3
"""No pass holds more at once than so many times what ``_numbers`` counts."""

_Found = TypeVar("_Found")


class Session:
    """A model that many changes are tried on, several of them in one pass where that works.

    probe: what the model is tried on. max_memory: bytes that a pass may hold; None for a share of
    what is free. notes: sentences about how it was done.
    """

    def __init__(
        self, model: PatchableModel, probe: Input, positions: Positions, max_memory: int | None
    ) -> None:
        self.model = model
        self._probe = probe
        self._positions = positions
        self._max_memory = max_memory
        self._plan: ScanPlan | None = None
        self._rooms: dict[tuple[int, int], Room] = {}
        self.notes: list[str] = []

    @contextmanager
    def open(self, *, learning: bool = False) -> Iterator[ScanPlan]:
        """Borrow the model for passes; ``learning`` with gradients."""
        with ExitStack() as opened:
            opened.enter_context(self.model.hook_points.borrowed())
            opened.enter_context(fused_activations(self.model.root))
            if self._plan is None:
                with torch.inference_mode():
                    self._plan = make_plan(self.model, self._probe, self._positions)
                if self._plan.strategy is None:
                    self.note_one_by_one()
            opened.enter_context(torch.enable_grad() if learning else torch.inference_mode())
            yield self._plan

    def size(self, plan: ScanPlan, given: Input, wanted: int) -> int:
        """Return how many of the wanted changes to a text are made in one pass."""
        tokens = len(given.ids), len(given.target or ())
        if tokens not in self._rooms:
            self._rooms[tokens] = self._room(plan, given, wanted)
        fits = self._rooms[tokens].ablations
        device = self.model.device.type
        wished = max(1, _TOKENS_ON_CPU // sum(tokens)) if device == "cpu" else 1 << 20
        return wished if fits is None else min(wished, fits)

    def attempt(
        self, plan: ScanPlan, given: Input, changes: int, found: Callable[[ScanPlan], _Found]
    ) -> _Found:
        """Return what ``found`` gives; where passes cannot be shared after all, without sharing.

        UsageError that says what to do where memory does not suffice.
        """
        try:
            return found(plan)
        except torch.OutOfMemoryError as error:
            room = self._rooms[len(given.ids), len(given.target or ())]
            half = changes // 2
            advice = (
                f"half of them need about {byte_text(room.needed(half))}: pass --max-memory"
                if half
                else "shorten the text"
            )
            raise UsageError(
                f"{self.model.device} has no memory left for {changes} runs at once; {advice}"
            ) from error
        except MISFITS:
            if plan.strategy is None:
                raise
        self._plan = replace(plan, strategy=None, ends_short=False)
        self.note_one_by_one()
        return found(self._plan)

    def note_one_by_one(self) -> None:
        """Say that the changes do not share passes."""
        self.note("this model cannot carry all runs in one pass: they ran one at a time")

    def note(self, sentence: str) -> None:
        """Say it once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def _room(self, plan: ScanPlan, given: Input, wanted: int) -> Room:
        """Return the room for texts of this length; measured unless a coarse bound already fits."""
        model = self.model
        tokens = len(given.ids) + len(given.target or ())
        unembedding = (
            0 if plan.unembedding is None else plan.unembedding.bytes_for(len(given.predicted))
        )

        def room(row: int) -> Room:
            memory = self._max_memory
            return room_for(row, unembedding, model.device, memory, len(given.predicted))

        if self._max_memory is None:
            free = free_memory(model.device)
            coarse = _ALIVE * _numbers(plan, tokens) * model.itemsize
            if free is not None and unembedding + coarse * (1 + wanted) * 4 < free:
                return room(coarse)
        return room(peak_bytes(lambda: run_pass(model, given, Untouched()), [model.root]))


def _numbers(plan: ScanPlan, tokens: int) -> int:
    """Return how many a row of the batch has: a hidden state before each block, and what is inside
    one.

    Each weight's longer side is at least its output.
    """
    model = plan.model
    blocks = {id(call.block): call.block for call in plan.calls}.values()
    inside = {id(part) for block in blocks for part in block.modules()}
    outside = [part for part in model.root.modules() if id(part) not in inside]
    widths = sum(_width(part) for part in outside if part is not model.head)
    widths += max((sum(map(_width, block.modules())) for block in blocks), default=0)
    widths += len(plan.calls) * plan.hidden.shape[-1]
    heads = max(point.heads for point in model.hook_points.found)
    return tokens * widths + heads * tokens * tokens


def _width(module: nn.Module) -> int:
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    return sum(max(weight.shape) for weight in module.parameters(recurse=False) if weight.ndim)
