"""Scans texts with a torch model: opens it once, plans, and works through the texts in bands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from attnviz.engine.ablation import StandIns, check_heads
from attnviz.engine.effects import Metric, Scores, Variant
from attnviz.engine.gradient import gradient_importance
from attnviz.engine.patchable import Passage, Subject
from attnviz.engine.plain_pass import length_class
from attnviz.engine.scan.activation import fused_activations
from attnviz.engine.scan.forward import run_pass
from attnviz.engine.scan.memory import Room, peak_bytes, room_for
from attnviz.engine.scan.options import ScanOptions
from attnviz.engine.scan.plan import MISFITS, ScanPlan, make_plan, ordered
from attnviz.engine.scan.reference import mean_outputs, resampled
from attnviz.engine.scan.text import Band, Question, score_band
from attnviz.errors import UsageError
from attnviz.models.memory import byte_text, free_memory

__all__ = ["TorchScan"]

_TOKENS_ON_CPU = 1 << 15
"""Of a pass on a CPU, all rows counted: a larger batch gains nothing there."""

_ALIVE = 3
"""No pass holds more at once than so many times what ``_numbers`` counts."""

_ONE_BY_ONE = "this model cannot carry all removals in one pass: they ran one at a time"


class TorchScan:
    """A model that is ready to be scanned.

    subject: the model.
    passages: the texts. special: of each text's predicted tokens, which the tokenizer added.
    reference: the texts that stand in where heads are not removed to zero.
    notes: sentences about how the scan was done; more may come while it runs.
    """

    def __init__(
        self,
        subject: Subject,
        passages: Sequence[Passage],
        special: Sequence[tuple[bool, ...]],
        options: ScanOptions,
        reference: Sequence[Passage],
    ) -> None:
        self._subject = subject
        self._passages = passages
        self._special = special
        self._options = options
        self._reference = reference
        self._plan: ScanPlan | None = None
        self._mean: StandIns | None = None
        self._compared: set[int] = set()
        self._rooms: dict[tuple[int, int], Room] = {}
        self.notes: list[str] = []

    @property
    def heads(self) -> Mapping[int, int]:
        """The number of heads of each layer."""
        return self._subject.heads

    def scan(
        self,
        text: int,
        variants: Sequence[Variant],
        wanted: Sequence[int],
        on_progress: Callable[[int], None] | None = None,
    ) -> Iterator[Scores]:
        """Measure the ``wanted`` ones of ``variants`` over one text, a band at a time.

        on_progress: told after each band how many removals it had.
        """
        for variant in variants:
            check_heads(self._subject, variant.heads)
        question = Question(
            self._passages[text],
            self._special[text],
            self._options.positions,
            self._options.pair,
            self._options.seed if self._options.control else None,
            self._plainly(self._passages[text]) if wanted else None,
        )
        order = [wanted[at] for at in ordered(self._subject, [variants[at] for at in wanted])]
        with self._open() as plan:
            stand_ins = self._stand_ins(question.passage)
            size = self._band_size(plan, question.passage, len(wanted))
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            # Opened for each band: between them the caller's own code runs.
            with self._open() as plan:
                bands = [
                    self._score(plan, question, [variants[at] for at in chosen], each)
                    for each in stand_ins
                ]
            self._compared.add(_length_class(question.passage))
            question = replace(question, plain=None)
            yield self._piece(text, tuple(chosen), bands)
            if on_progress is not None:
                on_progress(len(chosen))

    def gradients(
        self,
        removed: Collection[tuple[int, int]] = (),
        on_progress: Callable[[int, int], None] | None = None,
    ) -> dict[tuple[int, int], float]:
        """First-order importance of each (layer, head) over all texts; ``gradient_importance``."""
        check_heads(self._subject, removed)
        stand_ins = None
        if self._options.mode == "mean":
            with self._open():
                stand_ins = mean_outputs(self._subject, self._reference)
        return gradient_importance(
            self._subject,
            self._passages,
            special=self._special,
            stand_ins=stand_ins,
            removed=removed,
            on_progress=on_progress,
        )

    @contextmanager
    def _open(self) -> Iterator[ScanPlan]:
        subject = self._subject
        with ExitStack() as opened:
            opened.enter_context(torch.inference_mode())
            opened.enter_context(subject.sites.borrowed())
            opened.enter_context(fused_activations(subject.root))
            if self._plan is None:
                self._plan = make_plan(subject, self._passages[0], self._options.positions)
                if self._plan.way is None:
                    self._note(_ONE_BY_ONE)
            yield self._plan

    def _plainly(self, passage: Passage) -> torch.Tensor | None:
        """What the model ends in when nobody watches it, for the first text of a length class."""
        if self._subject.ours or _length_class(passage) in self._compared:
            return None
        with self._open():
            return run_pass(self._subject, passage, None).hidden

    def _band_size(self, plan: ScanPlan, passage: Passage, wanted: int) -> int:
        tokens = len(passage.ids), len(passage.target or ())
        if tokens not in self._rooms:
            self._rooms[tokens] = self._room(plan, passage, wanted)
        fits = self._rooms[tokens].removals
        device = self._subject.device.type
        wished = max(1, _TOKENS_ON_CPU // sum(tokens)) if device == "cpu" else 1 << 20
        return wished if fits is None else min(wished, fits)

    def _room(self, plan: ScanPlan, passage: Passage, wanted: int) -> Room:
        """The room for texts of this length; measured unless a coarse bound already fits."""
        subject = self._subject
        tokens = len(passage.ids) + len(passage.target or ())
        readout = 0 if plan.readout is None else plan.readout.bytes_for(len(passage.predicted))

        def room(row: int) -> Room:
            memory = self._options.max_memory
            return room_for(row, readout, subject.device, memory, len(passage.predicted))

        if self._options.max_memory is None:
            free = free_memory(subject.device)
            coarse = _ALIVE * _numbers(subject, plan, tokens) * subject.itemsize
            if free is not None and readout + coarse * (1 + wanted) * 4 < free:
                return room(coarse)
        return room(peak_bytes(lambda: run_pass(subject, passage, _Nothing()), [subject.root]))

    def _stand_ins(self, passage: Passage) -> Sequence[StandIns | None]:
        if self._options.mode == "zero":
            return [None]
        if self._options.mode == "resample":
            found = resampled(
                self._subject, passage, self._reference, self._options.draws, self._options.seed
            )
            if found.cut or found.shorter:
                self._note(
                    "reference texts that were longer than a text were cut to its length, "
                    "shorter ones were left out"
                )
            return found.draws
        if self._options.per_position:
            # The text's own length decides which positions are needed.
            by_decoder = self._subject.kind in ("decoder", "cross")
            tokens = len(passage.predicted if by_decoder else passage.ids)
            return [mean_outputs(self._subject, self._reference, tokens)]
        if self._mean is None:
            self._mean = mean_outputs(self._subject, self._reference)
        return [self._mean]

    def _score(
        self,
        plan: ScanPlan,
        question: Question,
        variants: Sequence[Variant],
        stand_ins: StandIns | None,
    ) -> Band:
        try:
            return score_band(self._subject, plan, question, variants, stand_ins)
        except torch.OutOfMemoryError as error:
            passage = question.passage
            room = self._rooms[len(passage.ids), len(passage.target or ())]
            half = len(variants) // 2
            advice = (
                f"half of them need about {byte_text(room.needed(half))}: pass --max-memory"
                if half
                else "shorten the text"
            )
            raise UsageError(
                f"{self._subject.device} has no memory left for {len(variants)} removals at once; "
                f"{advice}"
            ) from error
        except MISFITS:
            if plan.way is None:
                raise
            self._plan = replace(plan, way=None, ends_short=False)
            self._note(_ONE_BY_ONE)
            return self._score(self._plan, question, variants, stand_ins)

    def _piece(self, text: int, variants: tuple[int, ...], bands: Sequence[Band]) -> Scores:
        """The mean over the draws, with its standard error."""
        first = bands[0]
        stacked = {name: np.stack([band.metrics[name] for band in bands]) for name in first.metrics}
        errors: dict[Metric, NDArray[np.float64]] = {}
        if len(bands) > 1:
            root = np.sqrt(len(bands))
            errors = {name: drawn.std(0, ddof=1) / root for name, drawn in stacked.items()}
        tokens = None
        losses = [band.token_losses for band in bands if band.token_losses is not None]
        if self._options.token_losses and losses:
            tokens = np.stack(losses).mean(0)
        metrics = {name: drawn.mean(0) for name, drawn in stacked.items()}
        return Scores(text, variants, metrics, first.baseline, errors, tokens)

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def _numbers(subject: Subject, plan: ScanPlan, tokens: int) -> int:
    """How many a row of the batch has: a hidden state before each block, and what is inside one.

    Each weight's longer side is at least its output.
    """
    blocks = {id(call.block): call.block for call in plan.calls}.values()
    inside = {id(part) for block in blocks for part in block.modules()}
    outside = [part for part in subject.root.modules() if id(part) not in inside]
    widths = sum(_width(part) for part in outside if part is not subject.head)
    widths += max((sum(map(_width, block.modules())) for block in blocks), default=0)
    widths += len(plan.calls) * plan.hidden.shape[-1]
    return tokens * widths + max(site.heads for site in subject.sites.found) * tokens * tokens


def _width(module: nn.Module) -> int:
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    return sum(max(weight.shape) for weight in module.parameters(recurse=False) if weight.ndim)


class _Nothing:
    """An editor that edits nothing."""

    def edit(self, number: int, site: object, outputs: torch.Tensor) -> torch.Tensor:
        return outputs


def _length_class(passage: Passage) -> int:
    return length_class(max(len(passage.ids), len(passage.target or ())))
