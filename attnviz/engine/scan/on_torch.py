"""Scans texts with a torch model: opens it once, plans, and works through the texts in chunks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from attnviz.engine.ablation import Replacements, check_heads, mean_outputs, resampled
from attnviz.engine.effects import Metric, ScanOptions, Scores, Variant
from attnviz.engine.gradient import gradient_importance
from attnviz.engine.patchable import PatchableModel, run_pass
from attnviz.engine.scan.chunk import Chunk, Request, score_chunk
from attnviz.engine.scan.plan import class_of, ordered
from attnviz.engine.scan.session import Session
from attnviz.records import Input


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
        self._session = Session(model, inputs[0], options.positions, options.max_memory)
        self.notes = self._session.notes
        self._mean: Replacements | None = None
        self._compared: set[int] = set()

    @property
    def heads(self) -> Mapping[int, int]:
        """The number of heads of each layer."""
        return self._model.heads

    def scan(
        self,
        text: int,
        variants: Sequence[Variant],
        wanted: Sequence[int],
    ) -> Iterator[Scores]:
        """Measure the ``wanted`` ones of ``variants`` over one text, a chunk at a time."""
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
        with self._session.open() as plan:
            replacements = self._replacements(request.given)
            size = self._session.size(plan, request.given, len(wanted))
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            # Opened for each chunk: between them the caller's own code runs.
            with self._session.open() as plan:
                chunks = [
                    self._session.attempt(
                        plan,
                        request.given,
                        len(chosen),
                        partial(
                            score_chunk,
                            request=request,
                            variants=[variants[at] for at in chosen],
                            replacements=each,
                        ),
                    )
                    for each in replacements
                ]
            self._compared.add(class_of(request.given))
            request = replace(request, plain=None)
            yield self._piece(text, tuple(chosen), chunks)

    def gradients(
        self,
        ablated: Collection[tuple[int, int]] = (),
        on_progress: Callable[[int, int], None] | None = None,
    ) -> dict[tuple[int, int], float]:
        """First-order importance of each (layer, head) over all texts; ``gradient_importance``."""
        check_heads(self._model, ablated)
        replacements = None
        if self._options.mode == "mean":
            with self._session.open():
                replacements = mean_outputs(self._model, self._references)
        return gradient_importance(
            self._model,
            self._inputs,
            replacements=replacements,
            ablated=ablated,
            on_progress=on_progress,
        )

    def _plainly(self, given: Input) -> torch.Tensor | None:
        """What the model ends in when nobody watches it, for the first text of a length class."""
        if self._model.ours or class_of(given) in self._compared:
            return None
        with self._session.open():
            return run_pass(self._model, given, None).hidden

    def _replacements(self, given: Input) -> Sequence[Replacements | None]:
        if self._options.mode == "zero":
            return [None]
        if self._options.mode == "resample":
            draws, fitted = resampled(
                self._model, given, self._references, self._options.draws, self._options.seed
            )
            if fitted:
                self._session.note(
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
