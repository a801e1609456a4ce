"""Scan texts in chunks of ablations, each chunk in one pass; the same for every backend.

Ablating head h of layer L changes nothing before layer L, so one forward pass carries many
ablations, and the result is that of ablating them one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array, namespace
from attnviz.engine.device_sizes import sizes_of
from attnviz.engine.effects import Metric, Positions, ScanOptions, Scores, Variant
from attnviz.engine.likely import no_foil
from attnviz.engine.observer import to_numpy
from attnviz.engine.replacing import Held, Replace, mean_outputs, resampled
from attnviz.engine.scan.runner import ENDING, ChangedRuns, Ends, Runner, require_two, words_to_mask
from attnviz.engine.scan.unembedding import Comparison, Unembedding, compared_answers, wide
from attnviz.engine.selection import check_heads
from attnviz.errors import UsageError
from attnviz.models.pool import in_turn
from attnviz.records import Input


class Scan:
    """Ablates heads of one model over texts and measures the effects.

    runner: runs the model. inputs: the texts.
    others: the texts whose values replace heads that are not set to zero.
    notes: sentences about how the scan was done; more may come while it runs.
    labels: the names of a classifier's labels if they are measured; empty otherwise.
    heads: the number of heads of each layer that has the chosen kind of attention.
    """

    def __init__(
        self, runner: Runner, inputs: Sequence[Input], options: ScanOptions, others: Sequence[Input]
    ) -> None:
        if runner.answers and options.pair is not None:
            raise no_foil()
        self._runner, self._inputs, self._options, self._others = runner, inputs, options, others
        self._mean: dict[bool, Held] = {}
        self.notes, self.labels, self.heads = runner.notes, runner.labels, runner.heads

    def changed(self, *, control: bool = False, token_losses: bool = False) -> Scan:
        """Return the same scan with other options; both share the runs of the unchanged texts.

        control: True measures a random baseline: it removes a random direction of equal norm in
            place of each ablation. token_losses: True records the loss of each token.
        """
        other = copy(self)
        other._options = replace(self._options, control=control, token_losses=token_losses)
        return other

    @property
    def predicts(self) -> bool:
        """Return True if the model predicts tokens, or one of several labels."""
        with self._runner.open():
            return self._runner.read_out is not None

    @property
    def causal(self) -> bool:
        """Return whether a token sees no later token."""
        with self._runner.open():
            return self._runner.causal

    def require_token_losses(self) -> None:
        """Raise UsageError if the first text has one label or answer, not one for each token."""
        runner = self._runner
        if not runner.labels:
            return
        with runner.open():
            several = runner.label_places(self._inputs[0])[1:] and not runner.answers
        if not several:
            raise UsageError(
                f"--by-token: the text has one {'answer' if runner.answers else 'label'}, not "
                "one for each token; leave it out"
            )

    def scan(
        self, text: int, variants: Sequence[Variant], wanted: Sequence[int]
    ) -> Iterator[Scores]:
        """Yield the effects of the ``wanted`` ablations over one text, as many as fit at a time."""
        runner, given = self._runner, self._inputs[text]
        for variant in variants:
            check_heads(runner.heads, variant.heads)
        order = [wanted[at] for at in runner.ordered([variants[at] for at in wanted])]
        whole = any(variant.feed_forward for variant in variants)
        with runner.open():
            replacements = self._replacements(given, whole)
            size = runner.size(given, len(wanted))
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            some = [variants[at] for at in chosen]
            # It is opened for each chunk, because between chunks the caller's own code runs.
            score = partial(_scored, runner, self._options, given, some)
            with runner.open():
                runs = (partial(score, values=values) for values in replacements)
                chunks = [runner.attempt(given, len(some), run) for run in runs]
            yield self._piece(text, tuple(chosen), chunks)

    def scan_all(
        self, wanted: Mapping[int, Sequence[int]], variants: Sequence[Variant]
    ) -> Iterator[Scores]:
        """Yield the effects of ablations text by text: ``wanted`` has their indices for each."""

        def measured(text: int) -> Iterable[Scores]:
            return self.scan(text, variants, wanted[text])

        if self._runner.threaded and self._options.max_memory is None:
            yield from chain.from_iterable(in_turn(lambda text: list(measured(text)), wanted))
        else:  # what a single text may hold is all that there is
            yield from chain.from_iterable(map(measured, wanted))

    def gradients(self) -> dict[tuple[int, int], float]:
        """Return each head's gradient importance over all texts, in nats; UsageError if no loss."""
        runner, replacements = self._runner, None
        importance = runner.importance()
        if self._options.mode == "mean":
            with runner.open():
                replacements = mean_outputs(runner.outputs, runner.kind, self._others)
        return importance(self._inputs, replacements=replacements)

    def _replacements(self, given: Input, whole: bool) -> Sequence[Held | None]:
        """Return what replaces ablated heads, for each draw. whole: feed-forward blocks as well."""
        options, runner = self._options, self._runner

        def outputs(given: Input) -> Held:
            held = runner.held(given, frozenset({"output", "mlp"}))
            return {key: to_numpy(values) for key, values in held.items()}

        texts = outputs if whole else runner.outputs, runner.kind
        if options.mode == "zero":
            return [None]
        if options.mode == "resample":
            draws, fitted = resampled(
                *texts, given, self._others, draws=options.draws, seed=options.seed
            )
            note = (
                "reference texts that were longer than a text were cut to its length, shorter ones "
                "were left out"
            )
            if fitted and note not in self.notes:
                self.notes.append(note)
            return draws
        if whole not in self._mean:
            self._mean[whole] = mean_outputs(*texts, self._others)
        return [self._mean[whole]]

    def _piece(self, text: int, variants: tuple[int, ...], chunks: Sequence[_Chunk]) -> Scores:
        first, errors, tokens = chunks[0], dict[Metric, NDArray[np.float64]](), None
        drawn = {name: np.stack([run.metrics[name] for run in chunks]) for name in first.metrics}
        if len(chunks) > 1:
            root = np.sqrt(len(chunks))
            errors = {name: values.std(0, ddof=1) / root for name, values in drawn.items()}
        losses = [chunk.token_losses for chunk in chunks if chunk.token_losses is not None]
        if self._options.token_losses and losses:
            tokens = np.stack(losses).mean(0)
        metrics = {name: values.mean(0) for name, values in drawn.items()}
        return Scores(text, variants, metrics, first.baseline, errors, tokens)


# One chunk ------------------------------------------------------------------------------------

_ALMOST_NOTHING = {8: 1e-9, 4: 3e-5, 2: 2e-2}
"""The share of the largest hidden state, by bytes of a number, below which a difference may be
rounding alone and is examined."""


@dataclass(frozen=True)
class _Chunk:
    """The measured effects of some ablations over one text, from one pass.

    metrics: (ablation,) each. token_losses: (ablation, token), NaN where no token is predicted.
    """

    metrics: dict[Metric, NDArray[np.float64]]
    baseline: dict[str, float]
    token_losses: NDArray[np.float64] | None


@dataclass(frozen=True)
class _Asked:
    """One pass, with the positions at which predictions are compared with the unchanged run.

    given: the text. at: the positions, counted from the end.
    wanted: the token id that came at each position; −1 if it is not known. Empty for labels: the
        label that the unchanged run predicts.
    counted: True for positions that count for metrics without a known token.
    """

    given: Input
    at: tuple[int, ...]
    wanted: tuple[int, ...]
    counted: tuple[bool, ...]


def _scored(
    runner: Runner,
    options: ScanOptions,
    given: Input,
    variants: Sequence[Variant],
    values: Held | None,
) -> _Chunk:
    """Return the effects of ablations over one text, all from one pass if the model allows it.

    values: the replacements; None means zero. Raises UsageError for a text too short for a loss.
    """
    directions = options.seed if options.control else None
    replaced = partial(Replace, runner.kind, values=values, directions=directions)
    next_tokens = runner.causal and not runner.labels
    last = ENDING if options.positions == "last" and next_tokens else None
    plain = answer = runner.ends(ChangedRuns(given, variants, replaced, last))
    metrics, near = _output_metrics(plain.hidden, options.positions)
    heads = (at for at in near if not variants[at].edges and not variants[at].feed_forward)
    no_op = [at for at in heads if runner.is_no_op(variants[at])]
    asked, read_out = _asked(runner, given, options.positions), runner.read_out
    baseline: dict[str, float] = {}
    tokens: NDArray[np.float64] | None = None
    if read_out is not None and asked:
        tokens = np.full((len(variants), len(given.predicted)), np.nan)
        measured = []
        for question in asked:
            if question.given != given:
                answer = runner.ends(ChangedRuns(question.given, variants, replaced))
            rows = _read(answer)[:, list(question.at)]
            runs, known, counted = _comparison(runner, read_out, options.label, question, rows)
            delta = runs.loss_delta[:, known]  # NaN at a wanted position stays in the mean
            measured.append((runs.loss[known], delta, runs.kl[:, counted], runs.flips[:, counted]))
            if not runner.answers:
                tokens[:, np.array(question.at)[known] + next_tokens] = delta
        parts = zip(*measured, strict=True)
        loss, *others = (np.concatenate(part, -1, dtype=float) for part in parts)
        baseline["loss"] = float(loss.mean())
        names: tuple[Metric, ...] = ("loss_delta", "kl", "flip_rate")
        metrics |= {name: part.mean(1) for name, part in zip(names, others, strict=True)}
        if options.pair is not None:
            ends = _ends(plain, answer, asked, given, runner.mask_id)
            changes = [read_out.logit_difference(rows[0], rows[1:], *options.pair) for rows in ends]
            baseline["logit_diff"] = float(np.mean([before for before, _ in changes]))
            metrics["logit_diff"] = np.mean([change for _, change in changes], 0)
        tokens[no_op] *= 0  # NaN stays
        tokens = None if runner.labels and np.isfinite(tokens[0]).sum() < 2 else tokens
    if "loss" not in baseline:
        xp, clean = namespace(plain.hidden), wide(plain.hidden[0])
        baseline["output_square"] = float(xp.mean(xp.square(clean[_compared(options.positions)])))
    for effects in metrics.values():
        effects[no_op] = 0
    return _Chunk(metrics, baseline, tokens)


def _comparison(
    runner: Runner, read_out: Unembedding, label: int | None, asked: _Asked, rows: Array
) -> tuple[Comparison, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the comparison of a pass, where it has a loss, and where it counts."""
    wanted: Sequence[int] = asked.wanted
    if runner.answers:
        flat = to_numpy(read_out.logits(rows.reshape(-1, rows.shape[-1])))
        logits = flat.astype(float).reshape(*rows.shape[:2], -1)
        runs = compared_answers(logits[0], logits[1:], label)
        every = np.full(len(runs.loss), True)
        return runs, every, every
    if runner.labels and label is not None:
        wanted = (label,) * len(asked.at)
    elif runner.labels:
        wanted = read_out.logits(rows[0]).argmax(-1).tolist()
    runs = read_out.compare(rows[0], rows[1:], wanted)
    return runs, np.array(wanted) >= 0, np.array(asked.counted)


_NO_MASK = "no loss: the model is bidirectional, and its tokenizer has no mask token"
"""A note on what falls away."""


def _asked(runner: Runner, given: Input, positions: Positions) -> list[_Asked]:
    """Return the passes whose predictions are compared; empty if the model predicts nothing."""
    read, mask = given.predicted.ids, runner.mask_id
    length = len(read)
    if runner.read_out is None:
        return []
    if labelled := runner.label_places(given):
        labelled = labelled[-1:] if positions == "last" and not runner.answers else labelled
        return [_Asked(given, tuple(at - length for at in labelled), (), (True,) * len(labelled))]
    if runner.causal:
        require_two(given)
        at = range(-length, 0) if positions == "all" else range(-ENDING, 0)
        wanted, last = (*given.predicted.predictable[1:], -1), positions == "last"
        known = tuple(wanted[position] for position in at)
        counted = (*(word >= 0 and not last for word in known[:-1]), True)
        return [_Asked(given, tuple(at), known, counted)]
    if mask is None:
        if _NO_MASK not in runner.notes:
            runner.notes.append(_NO_MASK)
        return []
    words = words_to_mask(given, mask)
    return [
        _Asked(given.masked(position, mask), (position - length,), (read[position],), (True,))
        for position in (words if positions == "all" else words[-1:])
    ]


def _read(ends: Ends) -> Array:
    assert ends.read is not None
    return ends.read


def _ends(
    plain: Ends, last: Ends, asked: Sequence[_Asked], given: Input, mask: int | None
) -> list[Array]:
    """Return what the projection reads (1 + ablation, width) for the logits of answer and foil."""
    if asked[-1].given == given:
        return [_read(plain)[:, asked[-1].at[-1]]]
    holes = [at for at, token in enumerate(given.ids) if token == mask]
    if holes:
        return [_read(plain)[:, at] for at in holes]
    return [_read(last)[:, asked[-1].at[-1]]]


def _output_metrics(
    hidden: Array, positions: Positions
) -> tuple[dict[Metric, NDArray[np.float64]], list[int]]:
    """Return by metric how far ablations move the hidden states: (ablation,).

    The metrics are the mean squared difference and 1 − cosine. The second value lists the indices
    of ablations whose difference may be rounding. hidden: (1 + ablation, token, width).
    """
    xp, read = namespace(hidden), _compared(positions)
    clean = wide(hidden[0])
    unit = _unit(clean[read])
    size = max(1, sizes_of(hidden).chunk_bytes // (4 * math.prod(clean.shape)))
    least = _ALMOST_NOTHING[hidden.dtype.itemsize] * xp.max(xp.abs(clean))
    squares, cosines, largest = [], [], []
    for start in range(1, len(hidden), size):
        ablated = wide(hidden[start : start + size])
        change = ablated - clean
        largest.append(xp.max(xp.abs(change), axis=(1, 2)))
        squares.append(xp.mean(xp.square(change[:, read]), axis=(1, 2)))
        # Half the squared distance of unit vectors is one minus their cosine, without cancellation.
        apart = xp.sum(xp.square(_unit(ablated[:, read]) - unit), axis=-1)
        cosines.append(xp.mean(apart, axis=1) / 2)
    small = xp.astype(xp.concat(largest) <= least, clean.dtype)
    mse, cosine, small = to_numpy(xp.stack([xp.concat(squares), xp.concat(cosines), small]))
    moved: dict[Metric, NDArray[np.float64]] = {
        "output_mse": mse.astype(float),
        "output_cosine": cosine.astype(float),
    }
    return moved, np.flatnonzero(small).tolist()


def _compared(positions: Positions) -> slice:
    return slice(-1 if positions == "last" else None, None)


def _unit(rows: Array) -> Array:
    xp = namespace(rows)
    norm = xp.sqrt(xp.sum(xp.square(rows), axis=-1, keepdims=True))
    return rows / xp.where(norm == 0, xp.ones_like(norm), norm)
