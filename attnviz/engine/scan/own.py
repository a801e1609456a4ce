"""Scans the library's own attention block in NumPy: one layer, no vocabulary, no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.effects import Metric, ScanOptions, Scores, Variant
from attnviz.errors import UsageError
from attnviz.models.own import OwnAttention
from attnviz.records import Input, Tokens

Floats = NDArray[np.floating]


class OwnScan:
    """An own attention that is ready to be scanned; see ``TorchScan``."""

    def __init__(
        self,
        model: OwnAttention,
        inputs: Sequence[Input],
        options: ScanOptions,
        references: Sequence[Input],
    ) -> None:
        self._model = model
        self._texts = [given.text for given in inputs]
        self._options = options
        self._references = [given.text for given in references]
        self.notes: list[str] = []

    @property
    def heads(self) -> Mapping[int, int]:
        return {0: self._model.info.heads}

    def scan(
        self, text: int, variants: Sequence[Variant], wanted: Sequence[int]
    ) -> Iterator[Scores]:
        for variant in variants:
            self._check(variant)
        outputs = self._model.head_outputs(self._texts[text])
        clean = self._model.output(outputs)
        drawn = [
            [
                _differences(clean, self._model.output(self._changed(outputs, replacement, at)))
                for replacement in self._replacements(self._texts[text], outputs)
            ]
            for at in (variants[index] for index in wanted)
        ]
        if self._options.positions == "last":
            drawn = [[(square[-1:], apart[-1:]) for square, apart in each] for each in drawn]
        values = np.array(
            [[(square.mean(), apart.mean()) for square, apart in each] for each in drawn], float
        ).reshape(len(wanted), -1, 2)
        names: tuple[Metric, ...] = ("output_mse", "output_cosine")
        metrics = dict(zip(names, values.mean(1).T, strict=True))
        errors: dict[Metric, NDArray[np.float64]] = {}
        if values.shape[1] > 1:
            spread = values.std(1, ddof=1) / np.sqrt(values.shape[1])
            errors = dict(zip(names, spread.T, strict=True))
        yield Scores(text, tuple(wanted), metrics, {}, errors)

    def gradients(
        self,
        ablated: Collection[tuple[int, int]] = (),
        on_progress: Callable[[int, int], None] | None = None,
    ) -> dict[tuple[int, int], float]:
        """Refused: without words there is no loss."""
        raise UsageError(
            f"{self._model.info.name!r} predicts no words: it has no loss to differentiate"
        )

    def _check(self, variant: Variant) -> None:
        for layer, head in variant.heads:
            if layer != 0:
                raise UsageError(f"no layer {layer} with heads: expected 0")
            if not 0 <= head < self.heads[0]:
                raise UsageError(f"no head {head} in layer 0: expected 0 to {self.heads[0] - 1}")

    def _changed(self, outputs: Floats, replacement: Floats, variant: Variant) -> Floats:
        """Return the heads' outputs (head, token, dim) without the variant's heads."""
        heads = list(variant.in_layer(0))
        changed = outputs.copy()
        if not self._options.control:
            changed[heads] = replacement[heads]
            return changed
        taken = outputs[heads] - replacement[heads]
        norm = np.sqrt(np.square(taken).sum((0, 2)))  # of each token
        generator = np.random.default_rng((self._options.seed, 0, *heads))
        direction = generator.standard_normal((len(outputs), outputs.shape[-1]), dtype=np.float32)
        direction /= np.linalg.norm(direction)
        changed -= norm[None, :, None] * direction[:, None, :]
        return changed

    def _replacements(self, tokens: Tokens, outputs: Floats) -> list[Floats]:
        """Return what takes the heads' place: arrays that broadcast to (head, token, dim)."""
        if self._options.mode == "zero":
            return [np.zeros_like(outputs)]
        if not any(len(text) for text in self._references):
            raise UsageError("the reference is empty: give it at least one text")
        length = len(tokens)
        longer = [text for text in self._references if len(text) >= length]
        if self._options.mode == "resample":
            others = [text for text in longer if text.ids != tokens.ids]
            if not others:
                raise UsageError(
                    f"no other text of at least {length} tokens to take a head's output from: "
                    f"give longer ones as the reference"
                )
            generator = np.random.default_rng((self._options.seed, length))
            order = generator.permutation(len(others))[: self._options.draws]
            return [self._outputs(others[at], length) for at in order]
        if not self._options.per_position:
            every = np.concatenate([self._outputs(text) for text in self._references], 1)
            return [np.broadcast_to(every.mean(1, keepdims=True), outputs.shape)]
        if not longer:
            raise UsageError(
                f"a mean for each of {length} positions needs a reference that long: give longer "
                f"texts, or take the mean over positions"
            )
        # Position by position, over the texts that are long enough to have it.
        parts = [self._outputs(text, length) for text in self._references]
        means = [
            np.mean([part[:, at] for part in parts if part.shape[1] > at], 0)
            for at in range(length)
        ]
        return [np.stack(means, 1)]

    def _outputs(self, text: Tokens, length: int | None = None) -> Floats:
        return self._model.head_outputs(text.cut(length))


def _differences(clean: Floats, ablated: Floats) -> tuple[Floats, Floats]:
    """Of each token the mean squared difference, and 1 − cosine."""
    square = np.square(ablated - clean).mean(-1)
    apart = _unit(ablated) - _unit(clean)
    return square, np.square(apart).sum(-1) / 2


def _unit(rows: Floats) -> Floats:
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    unit: Floats = rows / np.maximum(length, np.finfo(np.float32).tiny)
    return unit
