"""The scan of one text by a torch model: bands of removals, each in one pass, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.engine.ablation import RowRemoval, StandIns
from attnviz.engine.effects import Metric, Positions, Variant
from attnviz.engine.patchable import Passage, Subject
from attnviz.engine.plain_pass import ends_alike
from attnviz.engine.scan.forward import Answer, run_pass
from attnviz.engine.scan.memory import rows_at_once
from attnviz.engine.scan.plan import ENDING, ScanPlan, is_void, require_own, run_grown
from attnviz.engine.sites import LostTrackError
from attnviz.errors import UsageError

__all__ = ["Band", "Question", "score_band"]

_CHUNK = 64_000_000
"""Bytes of float32 differences that are formed at once."""


_ALMOST_NOTHING = {torch.float64: 1e-9, torch.float32: 3e-5}
_ALMOST_NOTHING_HALF = 2e-2
"""Of the largest hidden state: a smaller difference may be rounding alone, and is looked into."""


@dataclass(frozen=True)
class Question:
    """What is to be measured.

    passage: the text. special: which of the predicted text's tokens were added by the tokenizer.
    pair: the answer's and the foil's token ids, or None.
    directions: seed of the control, None to remove.
    plain: the final hidden states (1, token, width) of a run that nobody watches, to hold the clean
        row against; None where a text of this length class was compared before.
    """

    passage: Passage
    special: tuple[bool, ...]
    positions: Positions = "all"
    pair: tuple[int, int] | None = None
    directions: int | None = None
    plain: Tensor | None = None


@dataclass(frozen=True)
class Band:
    """What some removals cost over one text.

    metrics: (removal,) each. token_losses: (removal, token), NaN where none is predicted.
    """

    metrics: dict[Metric, NDArray[np.float64]]
    baseline: dict[str, float]
    token_losses: NDArray[np.float64] | None


@dataclass(frozen=True)
class _Run:
    """One pass, and the positions at which its predictions are held against the clean ones.

    wanted: the token that each position is to predict, -1 where none is known.
    counted: whether a position counts for what needs no known token.
    """

    passage: Passage
    at: tuple[int, ...]
    wanted: tuple[int, ...]
    counted: tuple[bool, ...]


def score_band(
    subject: Subject,
    plan: ScanPlan,
    question: Question,
    variants: Sequence[Variant],
    stand_ins: StandIns | None,
) -> Band:
    """Measure removals that are ``ordered``, all in one pass where the model allows it.

    Raises UsageError for a text that is too short for a loss, LostTrackError where the batch does
    not end as the model does that nobody watches, UnsupportedError where a single run does not.
    """
    plain = _answers(subject, plan, question, question.passage, variants, stand_ins)
    _check_clean_row(subject, plan, question, plain.hidden[0])
    metrics: dict[Metric, NDArray[np.float64]] = _output_metrics(plain.hidden, question.positions)
    baseline: dict[str, float] = {}
    runs = _runs(subject, plan, question)
    void = _void(subject, plan, plain.hidden, variants)
    for values in metrics.values():
        values[void] = 0
    if plan.readout is None or not runs:
        return Band(metrics, baseline, None)
    losses: list[Tensor] = []
    clean: list[Tensor] = []
    kl: list[Tensor] = []
    flips: list[Tensor] = []
    tokens = np.full((len(variants), len(question.passage.predicted)), np.nan)
    answer = plain
    for run in runs:
        if run.passage != question.passage:
            answer = _answers(subject, plan, question, run.passage, variants, stand_ins)
        assert answer.projected is not None
        rows = answer.projected[:, list(run.at)]
        wanted = torch.tensor(run.wanted, device=rows.device)
        found = plan.readout.compare(rows[0], rows[1:], wanted)
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
    if question.pair is not None:
        ends = _ends(plain, answer, runs, question, subject)
        changes = [
            plan.readout.logit_difference(rows[0], rows[1:], *question.pair) for rows in ends
        ]
        baseline["logit_diff"] = float(np.mean([before for before, _ in changes]))
        metrics["logit_diff"] = np.mean([_numpy(change) for _, change in changes], 0)
    for values in metrics.values():
        values[void] = 0
    tokens[void] *= 0  # NaN stays
    return Band(metrics, baseline, tokens)


def _check_clean_row(subject: Subject, plan: ScanPlan, question: Question, row: Tensor) -> None:
    if question.plain is None:
        return
    read = slice(-ENDING if plan.ends_short else None, None)  # of the others nothing was computed
    if plan.way is None:
        require_own(subject, question.passage)
    elif not ends_alike(subject.root, row[read], question.plain[0, read], exact=False):
        raise LostTrackError("a grown batch ends in other numbers than the text alone")


def _void(
    subject: Subject, plan: ScanPlan, hidden: Tensor, variants: Sequence[Variant]
) -> list[int]:
    """The removals that change nothing at all, of which rounding may have made something."""
    rounding = _ALMOST_NOTHING.get(hidden.dtype, _ALMOST_NOTHING_HALF)
    largest = hidden[0].abs().max() * rounding
    candidates = [
        index
        for index, removed in enumerate(hidden[1:])
        if bool((removed - hidden[0]).abs().max() <= largest)
    ]
    return [index for index in candidates if is_void(subject, plan, variants[index])]


def _runs(subject: Subject, plan: ScanPlan, question: Question) -> list[_Run]:
    """The passes whose predictions are compared; none where there is nothing to predict."""
    passage, read = question.passage, question.passage.predicted
    if plan.readout is None:
        return []
    if plan.causal:
        if len(read) < 2:
            raise UsageError(
                f"a text of {len(read)} token is too short for a loss: expected at least 2"
            )
        at = range(len(read)) if question.positions == "all" else range(len(read) - 2, len(read))
        wanted = (*read[1:], -1)
        last = len(read) - 1
        counted = tuple(question.positions == "all" or position == last for position in at)
        return [_Run(passage, tuple(at), tuple(wanted[position] for position in at), counted)]
    if subject.mask_id is None:
        return []
    words = [
        position
        for position, (token, special) in enumerate(zip(read, question.special, strict=True))
        if not special and token != subject.mask_id
    ]
    if not words:
        raise UsageError("the text has no word that could be masked: expected at least 1")
    chosen = words if question.positions == "all" else words[-1:]
    return [
        _Run(passage.masked(position, subject.mask_id), (position,), (read[position],), (True,))
        for position in chosen
    ]


def _ends(
    plain: Answer, last: Answer, runs: Sequence[_Run], question: Question, subject: Subject
) -> list[Tensor]:
    """The rows (1 + removal, width) from which answer and foil are read: at the text's end.

    A masked model answers where the text itself holds its mask token, otherwise in place of the
    last word.
    """
    assert plain.projected is not None
    assert last.projected is not None
    if runs[-1].passage == question.passage:
        return [plain.projected[:, -1]]
    holes = [at for at, token in enumerate(question.passage.ids) if token == subject.mask_id]
    if holes:
        return [plain.projected[:, at] for at in holes]
    return [last.projected[:, runs[-1].at[-1]]]


def _answers(
    subject: Subject,
    plan: ScanPlan,
    question: Question,
    passage: Passage,
    variants: Sequence[Variant],
    stand_ins: StandIns | None,
) -> Answer:
    """The clean run in row 0 and each removal in a row of its own."""

    def editor(rows: Mapping[int | None, Variant]) -> RowRemoval:
        return RowRemoval(subject.kind, rows, stand_ins, question.directions)

    if plan.way is not None:
        rows = editor(dict(enumerate(variants, start=1)))
        at_once = rows_at_once([call.block for call in plan.calls], len(passage.ids))
        kept = ENDING if plan.ends_short and len(passage.predicted) > ENDING else None
        return run_grown(subject, plan, plan.way, passage, variants, rows, at_once, kept)
    each = [run_pass(subject, passage, editor({}))]
    each += [run_pass(subject, passage, editor({0: variant})) for variant in variants]
    projected = [answer.projected for answer in each if answer.projected is not None]
    return Answer(
        torch.cat([answer.hidden for answer in each]),
        torch.cat(projected) if projected else None,
        None,
    )


def _output_metrics(hidden: Tensor, positions: Positions) -> dict[Metric, NDArray[np.float64]]:
    """Mean squared difference and 1 − cosine of hidden states (1 + removal, token, width)."""
    if positions == "last":
        hidden = hidden[:, -1:]
    clean = hidden[0].float()
    unit = torch.nn.functional.normalize(clean, dim=-1)
    size = max(1, _CHUNK // (4 * clean.numel()))
    squares: list[Tensor] = []
    cosines: list[Tensor] = []
    for removed in (part.float() for part in torch.split(hidden[1:], size)):
        squares.append((removed - clean).square().mean((1, 2)))
        # Half the squared distance of unit vectors is one minus their cosine, without cancelling.
        apart = torch.nn.functional.normalize(removed, dim=-1) - unit
        cosines.append(apart.square().sum(-1).mean(1) / 2)
    return {
        "output_mse": _numpy(torch.cat(squares)),
        "output_cosine": _numpy(torch.cat(cosines)),
    }


def _numpy(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.double().cpu().numpy()
