"""Scans texts with a torch model: chunks of ablations, each chunk in one pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.engine.ablation import check_heads, mean_outputs, resampled
from attnviz.engine.effects import Metric, Positions, ScanOptions, Scores, Variant
from attnviz.engine.gradient import gradient_importance
from attnviz.engine.patchable import ForwardOutput, PatchableModel, run_pass
from attnviz.engine.predicted import require_two, words_to_mask
from attnviz.engine.replacing import Change, Held, Replace
from attnviz.engine.scan.expansion import Inside
from attnviz.engine.scan.plan import (
    ENDING,
    ScanPlan,
    check_clean_row,
    class_of,
    is_no_op,
    ordered,
    require_own,
)
from attnviz.engine.scan.session import Session
from attnviz.engine.scan.sites import Way, run_changed
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
        self._mean: Held | None = None
        self._compared: set[int] = set()

    @property
    def heads(self) -> Mapping[int, int]:
        """Return the number of heads of each layer that has the chosen kind of attention."""
        return self._model.heads

    def scan(
        self, text: int, variants: Sequence[Variant], wanted: Sequence[int]
    ) -> Iterator[Scores]:
        """Measure the ``wanted`` ones of ``variants`` over one text, a chunk at a time."""
        for variant in variants:
            check_heads(self._model, variant.heads)
        request = _Request(
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
                            _scored,
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
        """First-order importance of each (layer, head) over all texts, some heads ablated already.

        See ``gradient_importance``; UsageError where the model has no loss.
        """
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
        """Return what the model ends in when nobody watches it, for the first text of a length
        class.
        """
        if self._model.ours or class_of(given) in self._compared:
            return None
        with self._session.open():
            return run_pass(self._model, given, None).hidden

    def _replacements(self, given: Input) -> Sequence[Held | None]:
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

    def _piece(self, text: int, variants: tuple[int, ...], chunks: Sequence[_Chunk]) -> Scores:
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


# One chunk ------------------------------------------------------------------------------------

_CHUNK = 64_000_000
"""Bytes of float32 differences that are formed at once."""


_ALMOST_NOTHING = {torch.float64: 1e-9, torch.float32: 3e-5}
_ALMOST_NOTHING_HALF = 2e-2
"""Of the largest hidden state: a smaller difference may be rounding alone, and is looked into."""


@dataclass(frozen=True)
class _Request:
    """What is to be measured.

    given: the text.
    pair: the answer's and the foil's token ids, or None.
    directions: seed of the control, None to ablate.
    plain: the final hidden states (1, token, width) of a run that nobody watches, to hold the clean
        row against; None where a text of this length class was compared before.
    """

    given: Input
    positions: Positions = "all"
    pair: tuple[int, int] | None = None
    directions: int | None = None
    plain: Tensor | None = None


@dataclass(frozen=True)
class _Chunk:
    """What some ablations cost over one text.

    metrics: (ablation,) each. token_losses: (ablation, token), NaN where none is predicted.
    """

    metrics: dict[Metric, NDArray[np.float64]]
    baseline: dict[str, float]
    token_losses: NDArray[np.float64] | None


@dataclass(frozen=True)
class _Run:
    """One pass, and the positions at which its predictions are compared with the clean ones.

    wanted: the token that each position is to predict, -1 where none is known.
    counted: whether a position counts for what needs no known token.
    """

    given: Input
    at: tuple[int, ...]
    wanted: tuple[int, ...]
    counted: tuple[bool, ...]


def _scored(
    plan: ScanPlan,
    request: _Request,
    variants: Sequence[Variant],
    replacements: Held | None,
) -> _Chunk:
    """Measure ablations that are ``ordered``, all in one pass where the model allows it.

    Raises UsageError for a text that is too short for a loss, LostTrackError where the batch does
    not end as the model does that nobody watches, UnsupportedError where a single run does not.
    """
    plain = _answers(plan, request, request.given, variants, replacements)
    _check_clean_row(plan, request, plain.hidden[0])
    metrics: dict[Metric, NDArray[np.float64]] = _output_metrics(plain.hidden, request.positions)
    baseline: dict[str, float] = {}
    runs = _runs(plan, request)
    no_op = _no_ops(plan, plain.hidden, variants)
    for values in metrics.values():
        values[no_op] = 0
    if plan.unembedding is None or not runs:
        return _Chunk(metrics, baseline, None)
    losses: list[Tensor] = []
    clean: list[Tensor] = []
    kl: list[Tensor] = []
    flips: list[Tensor] = []
    tokens = np.full((len(variants), len(request.given.predicted)), np.nan)
    answer = plain
    for run in runs:
        if run.given != request.given:
            answer = _answers(plan, request, run.given, variants, replacements)
        assert answer.projected is not None
        rows = answer.projected[:, list(run.at)]
        wanted = torch.tensor(run.wanted, device=rows.device)
        found = plan.unembedding.compare(rows[0], rows[1:], wanted)
        counted = torch.tensor(run.counted, device=rows.device)
        # What is no number where one is wanted stays in the mean.
        clean.append(found.loss[wanted >= 0])
        losses.append(found.loss_delta[:, wanted >= 0])
        kl.append(found.kl[:, counted])
        flips.append(found.flips[:, counted])
        for column, (at, word) in enumerate(zip(run.at, run.wanted, strict=True)):
            if word >= 0:
                tokens[:, at + plan.causal] = _numpy(found.loss_delta[:, column])
    metrics["loss_delta"] = _numpy(torch.cat(losses, 1)).mean(1)
    metrics["kl"] = _numpy(torch.cat(kl, 1)).mean(1)
    metrics["flip_rate"] = _numpy(torch.cat(flips, 1)).mean(1)
    baseline["loss"] = float(_numpy(torch.cat(clean)).mean())
    if request.pair is not None:
        ends = _ends(plain, answer, runs, request, plan.model.mask_id)
        changes = [
            plan.unembedding.logit_difference(rows[0], rows[1:], *request.pair) for rows in ends
        ]
        baseline["logit_diff"] = float(np.mean([before for before, _ in changes]))
        metrics["logit_diff"] = np.mean([_numpy(change) for _, change in changes], 0)
    for values in metrics.values():
        values[no_op] = 0
    tokens[no_op] *= 0  # NaN stays
    return _Chunk(metrics, baseline, tokens)


def _check_clean_row(plan: ScanPlan, request: _Request, row: Tensor) -> None:
    if request.plain is None:
        return
    if plan.strategy is None:
        require_own(plan.model, request.given)
    else:
        check_clean_row(plan, row, request.plain[0], short=plan.ends_short)


def _no_ops(plan: ScanPlan, hidden: Tensor, variants: Sequence[Variant]) -> list[int]:
    """Return the ablations that change nothing at all, of which rounding may have made
    something.
    """
    rounding = _ALMOST_NOTHING.get(hidden.dtype, _ALMOST_NOTHING_HALF)
    largest = hidden[0].abs().max() * rounding
    candidates = [
        index
        for index, ablated in enumerate(hidden[1:])
        if bool((ablated - hidden[0]).abs().max() <= largest)
    ]
    return [index for index in candidates if is_no_op(plan, variants[index])]


def _runs(plan: ScanPlan, request: _Request) -> list[_Run]:
    """Return the passes whose predictions are compared; none where there is nothing to predict."""
    given, read = request.given, request.given.predicted.ids
    if plan.unembedding is None:
        return []
    if plan.causal:
        require_two(given)
        at = range(len(read)) if request.positions == "all" else range(len(read) - 2, len(read))
        wanted = (*read[1:], -1)
        last = len(read) - 1
        counted = tuple(request.positions == "all" or position == last for position in at)
        return [_Run(given, tuple(at), tuple(wanted[position] for position in at), counted)]
    mask = plan.model.mask_id
    if mask is None:
        return []
    words = words_to_mask(given, mask)
    chosen = words if request.positions == "all" else words[-1:]
    return [
        _Run(given.masked(position, mask), (position,), (read[position],), (True,))
        for position in chosen
    ]


def _ends(
    plain: ForwardOutput,
    last: ForwardOutput,
    runs: Sequence[_Run],
    request: _Request,
    mask: int | None,
) -> list[Tensor]:
    """Return the rows (1 + ablation, width) from which answer and foil are read: at the text's end.

    A masked model answers where the text itself holds its mask token, otherwise in place of the
    last word.
    """
    assert plain.projected is not None
    assert last.projected is not None
    if runs[-1].given == request.given:
        return [plain.projected[:, -1]]
    holes = [at for at, token in enumerate(request.given.ids) if token == mask]
    if holes:
        return [plain.projected[:, at] for at in holes]
    return [last.projected[:, runs[-1].at[-1]]]


def _answers(
    plan: ScanPlan,
    request: _Request,
    given: Input,
    variants: Sequence[Variant],
    replacements: Held | None,
) -> ForwardOutput:
    """Return the clean run in row 0 and each ablation in a row of its own."""

    def replaced(rows: Mapping[int | None, Change]) -> Replace:
        return Replace(plan.model.kind, rows, replacements, request.directions)

    kept = ENDING if plan.ends_short and len(given.predicted) > ENDING else None
    way = Way(Inside(), {}, plan.strategy)
    at_once = plan.at_once(given)
    return run_changed(plan, way, given, variants, replaced, at_once=at_once, kept=kept)


def _output_metrics(hidden: Tensor, positions: Positions) -> dict[Metric, NDArray[np.float64]]:
    """Mean squared difference and 1 − cosine of hidden states (1 + ablation, token, width)."""
    if positions == "last":
        hidden = hidden[:, -1:]
    clean = hidden[0].float()
    unit = torch.nn.functional.normalize(clean, dim=-1)
    size = max(1, _CHUNK // (4 * clean.numel()))
    squares: list[Tensor] = []
    cosines: list[Tensor] = []
    for ablated in (part.float() for part in torch.split(hidden[1:], size)):
        squares.append((ablated - clean).square().mean((1, 2)))
        # Half the squared distance of unit vectors is one minus their cosine, without cancelling.
        apart = torch.nn.functional.normalize(ablated, dim=-1) - unit
        cosines.append(apart.square().sum(-1).mean(1) / 2)
    return {"output_mse": _numpy(torch.cat(squares)), "output_cosine": _numpy(torch.cat(cosines))}


def _numpy(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.double().cpu().numpy()
