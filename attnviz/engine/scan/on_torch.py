"""Scans texts with a torch model: opens it once, plans, and works through the texts in chunks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from attnviz.engine.ablation import Replacements, check_heads, mean_outputs, resampled
from attnviz.engine.effects import Metric, ScanOptions, Scores, Variant
from attnviz.engine.gradient import gradient_importance
from attnviz.engine.patchable import PatchableModel, Untouched, run_pass
from attnviz.engine.scan.chunk import Chunk, Request, score_chunk
from attnviz.engine.scan.memory import Room, fused_activations, peak_bytes, room_for
from attnviz.engine.scan.plan import MISFITS, ScanPlan, class_of, make_plan, ordered
from attnviz.errors import UsageError
from attnviz.models.memory import byte_text, free_memory
from attnviz.records import Input

_TOKENS_ON_CPU = 1 << 15
"""Of a pass on a CPU, all rows counted: a larger batch gains nothing there."""

_ALIVE = 3
"""No pass holds more at once than so many times what ``_numbers`` counts."""

_ONE_BY_ONE = "this model cannot carry all removals in one pass: they ran one at a time"


class TorchScan:
    """A model that is ready to be scanned.

    model: the model.
    inputs: the texts. references: those that values come from where heads are not set to zero.
    notes: sentences about how the scan was done; more may come while it runs.
    """

    def __init__(
        self,
        model: PatchableModel,
        inputs: Sequence[Input],
        options: ScanOptions,
        references: Sequence[Input],
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._options = options
        self._references = references
        self._plan: ScanPlan | None = None
        self._mean: Replacements | None = None
        self._compared: set[int] = set()
        self._rooms: dict[tuple[int, int], Room] = {}
        self.notes: list[str] = []

    @property
    def heads(self) -> Mapping[int, int]:
        """The number of heads of each layer."""
        return self._model.heads

    def scan(
        self,
        text: int,
        variants: Sequence[Variant],
        wanted: Sequence[int],
        on_progress: Callable[[int], None] | None = None,
    ) -> Iterator[Scores]:
        """Measure the ``wanted`` ones of ``variants`` over one text, a chunk at a time.

        on_progress: told after each chunk how many ablations it had.
        """
        for variant in variants:
            check_heads(self._model, variant.heads)
        request = Request(
            self._inputs[text],
            self._options.positions,
            self._options.pair,
            self._options.seed if self._options.control else None,
            self._plainly(self._inputs[text]) if wanted else None,
        )
        order = [wanted[at] for at in ordered(self._model, [variants[at] for at in wanted])]
        with self._open() as plan:
            replacements = self._replacements(request.given)
            size = self._chunk_size(plan, request.given, len(wanted))
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            # Opened for each chunk: between them the caller's own code runs.
            with self._open() as plan:
                chunks = [
                    self._score(plan, request, [variants[at] for at in chosen], each)
                    for each in replacements
                ]
            self._compared.add(class_of(request.given))
            request = replace(request, plain=None)
            yield self._piece(text, tuple(chosen), chunks)
            if on_progress is not None:
                on_progress(len(chosen))

    def gradients(
        self,
        ablated: Collection[tuple[int, int]] = (),
        on_progress: Callable[[int, int], None] | None = None,
    ) -> dict[tuple[int, int], float]:
        """First-order importance of each (layer, head) over all texts; ``gradient_importance``."""
        check_heads(self._model, ablated)
        replacements = None
        if self._options.mode == "mean":
            with self._open():
                replacements = mean_outputs(self._model, self._references)
        return gradient_importance(
            self._model,
            self._inputs,
            replacements=replacements,
            ablated=ablated,
            on_progress=on_progress,
        )

    @contextmanager
    def _open(self) -> Iterator[ScanPlan]:
        model = self._model
        with ExitStack() as opened:
            opened.enter_context(torch.inference_mode())
            opened.enter_context(model.hook_points.borrowed())
            opened.enter_context(fused_activations(model.root))
            if self._plan is None:
                self._plan = make_plan(model, self._inputs[0], self._options.positions)
                if self._plan.strategy is None:
                    self._note(_ONE_BY_ONE)
            yield self._plan

    def _plainly(self, given: Input) -> torch.Tensor | None:
        """What the model ends in when nobody watches it, for the first text of a length class."""
        if self._model.ours or class_of(given) in self._compared:
            return None
        with self._open():
            return run_pass(self._model, given, None).hidden

    def _chunk_size(self, plan: ScanPlan, given: Input, wanted: int) -> int:
        tokens = len(given.ids), len(given.target or ())
        if tokens not in self._rooms:
            self._rooms[tokens] = self._room(plan, given, wanted)
        fits = self._rooms[tokens].ablations
        device = self._model.device.type
        wished = max(1, _TOKENS_ON_CPU // sum(tokens)) if device == "cpu" else 1 << 20
        return wished if fits is None else min(wished, fits)

    def _room(self, plan: ScanPlan, given: Input, wanted: int) -> Room:
        """The room for texts of this length; measured unless a coarse bound already fits."""
        model = self._model
        tokens = len(given.ids) + len(given.target or ())
        unembedding = (
            0 if plan.unembedding is None else plan.unembedding.bytes_for(len(given.predicted))
        )

        def room(row: int) -> Room:
            memory = self._options.max_memory
            return room_for(row, unembedding, model.device, memory, len(given.predicted))

        if self._options.max_memory is None:
            free = free_memory(model.device)
            coarse = _ALIVE * _numbers(plan, tokens) * model.itemsize
            if free is not None and unembedding + coarse * (1 + wanted) * 4 < free:
                return room(coarse)
        return room(peak_bytes(lambda: run_pass(model, given, Untouched()), [model.root]))

    def _replacements(self, given: Input) -> Sequence[Replacements | None]:
        if self._options.mode == "zero":
            return [None]
        if self._options.mode == "resample":
            draws, fitted = resampled(
                self._model, given, self._references, self._options.draws, self._options.seed
            )
            if fitted:
                self._note(
                    "reference texts that were longer than a text were cut to its length, "
                    "shorter ones were left out"
                )
            return draws
        if self._options.per_position:
            # The text's own length decides which positions are needed.
            by_decoder = self._model.kind in ("decoder", "cross")
            tokens = len(given.predicted if by_decoder else given.ids)
            return [mean_outputs(self._model, self._references, tokens)]
        if self._mean is None:
            self._mean = mean_outputs(self._model, self._references)
        return [self._mean]

    def _score(
        self,
        plan: ScanPlan,
        request: Request,
        variants: Sequence[Variant],
        replacements: Replacements | None,
    ) -> Chunk:
        try:
            return score_chunk(plan, request, variants, replacements)
        except torch.OutOfMemoryError as error:
            given = request.given
            room = self._rooms[len(given.ids), len(given.target or ())]
            half = len(variants) // 2
            advice = (
                f"half of them need about {byte_text(room.needed(half))}: pass --max-memory"
                if half
                else "shorten the text"
            )
            raise UsageError(
                f"{self._model.device} has no memory left for {len(variants)} removals at once; "
                f"{advice}"
            ) from error
        except MISFITS:
            if plan.strategy is None:
                raise
            self._plan = replace(plan, strategy=None, ends_short=False)
            self._note(_ONE_BY_ONE)
            return self._score(self._plan, request, variants, replacements)

    def _piece(self, text: int, variants: tuple[int, ...], chunks: Sequence[Chunk]) -> Scores:
        """The mean over the draws, with its standard error."""
        first = chunks[0]
        stacked = {
            name: np.stack([chunk.metrics[name] for chunk in chunks]) for name in first.metrics
        }
        errors: dict[Metric, NDArray[np.float64]] = {}
        if len(chunks) > 1:
            root = np.sqrt(len(chunks))
            errors = {name: drawn.std(0, ddof=1) / root for name, drawn in stacked.items()}
        tokens = None
        losses = [chunk.token_losses for chunk in chunks if chunk.token_losses is not None]
        if self._options.token_losses and losses:
            tokens = np.stack(losses).mean(0)
        metrics = {name: drawn.mean(0) for name, drawn in stacked.items()}
        return Scores(text, variants, metrics, first.baseline, errors, tokens)

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def _numbers(plan: ScanPlan, tokens: int) -> int:
    """How many a row of the batch has: a hidden state before each block, and what is inside one.

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
