"""Patches pairs of prompts with a torch model: all sites in one pass where the model allows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.engine.hook_points import LostTrackError
from attnviz.engine.patchable import Keep, PatchableModel, run_pass
from attnviz.engine.patching import (
    WHOLE_LAYER,
    Pair,
    Patch,
    PatchMetric,
    PatchOptions,
    PatchScores,
    Prediction,
    Site,
    What,
)
from attnviz.engine.plain_pass import ends_alike, not_its_own
from attnviz.engine.replacing import Held, Replace
from attnviz.engine.scan.plan import ENDING, ScanPlan, check_clean_row, ordered
from attnviz.engine.scan.session import Session
from attnviz.engine.scan.sites import (
    Slopes,
    Way,
    find_way,
    reached,
    run_alone,
    run_changed,
    values_of,
)
from attnviz.engine.scan.unembedding import Unembedding
from attnviz.errors import UnsupportedError, UsageError
from attnviz.records import Input

_Found = dict[PatchMetric, NDArray[np.float64]]

_BY_PLACE: frozenset[What] = frozenset({"query", "key", "pattern"})
"""What says where a token stands, and means something else at another place."""


@dataclass(frozen=True)
class _Run:
    """A prompt that was run with nobody watching.

    position: the token at which is predicted. hidden: final hidden states (1, token, width).
    row: (1, width) what the vocabulary projection is given there. logits: (word,) float64.
    """

    given: Input
    position: int
    hidden: Tensor
    row: Tensor
    logits: Tensor


@dataclass(frozen=True)
class _Work:
    """One pair to be patched.

    clean, corrupt: plain runs. base: the one that is patched.
    own: what the base run holds. held: what the other one does, at the base's tokens.
    answer, foil: token ids.
    """

    pair: int
    way: Way
    clean: _Run
    corrupt: _Run
    base: _Run
    own: Held
    held: Held
    answer: int
    foil: int | None

    def plain(self, run: _Run) -> dict[PatchMetric, float]:
        """Return the metrics of a plain run."""
        scores, clean = (each.logits.log_softmax(-1) for each in (run, self.clean))
        chances = clean.exp()
        terms = chances * (clean - scores)
        found: dict[PatchMetric, float] = {
            "log_prob": float(scores[self.answer]),
            "kl": max(float(terms.where(chances > 0, chances).sum()), 0.0),  # of NaN NaN
        }
        if self.foil is not None:
            found["logit_diff"] = float(run.logits[self.answer] - run.logits[self.foil])
        return found


class TorchPatching:
    """A model and pairs of prompts that are ready to be patched.

    notes: sentences about how it was done; more may come while it runs.
    """

    def __init__(self, model: PatchableModel, pairs: Sequence[Pair], options: PatchOptions) -> None:
        self._model = model
        self._pairs = pairs
        self._options = options
        self._session = Session(model, pairs[0].corrupt, "last", options.max_memory)
        self._ways: dict[frozenset[What], Way] = {}
        self._plain: tuple[int, tuple[_Run, _Run]] | None = None
        self.notes = self._session.notes

    @property
    def queries(self) -> Mapping[int, int]:
        """Return the number of query heads of each layer that can be patched."""
        return self._model.heads

    def heads(self, what: What) -> Mapping[int, int]:
        """By layer how many sites of this kind there are: query heads, key/value heads, or one.

        Raises UnsupportedError where the model does not let this be replaced, and says what it
        does.
        """
        with self._session.open() as plan:
            return self._way(plan, frozenset({what})).heads[what]

    def sites(self, what: What, tokens: Sequence[tuple[int, ...] | None] = (None,)) -> list[Site]:
        """Return every site of one kind, by layer, head and then each of ``tokens``."""
        return [
            Site(what, layer, None if what in WHOLE_LAYER else head, some)
            for layer, count in self.heads(what).items()
            for head in range(count)
            for some in tokens
        ]

    def served(self, site: Site) -> tuple[int, ...]:
        """Return the query heads that a site is of: more than one where they share a key/value
        head.
        """
        if site.head is None:
            return ()
        group = self.queries[site.layer] // self.heads(site.what)[site.layer]
        return tuple(range(site.head * group, (site.head + 1) * group))

    def predictions(self, pair: int) -> tuple[Prediction, Prediction]:
        """Return what the plain model predicts: clean, corrupt."""
        with self._session.open() as plan:
            clean, corrupt = (
                Prediction(run.position, run.logits.double().cpu().numpy())
                for run in self._plainly(plan, pair)
            )
        return clean, corrupt

    def patch(
        self,
        pair: int,
        patches: Sequence[Patch],
        wanted: Sequence[int],
        answer: int,
        foil: int | None = None,
    ) -> Iterator[PatchScores]:
        """Measure the ``wanted`` ones of ``patches`` over one pair, piece by piece.

        answer, foil: token ids. Raises UsageError for a site that does not exist, UnsupportedError
        as ``heads`` does.
        """
        if not wanted:
            return
        what = frozenset(site.what for at in wanted for site in patches[at].sites)
        with self._session.open() as plan:
            way = self._way(plan, what)
            for at in wanted:
                self._require_sites(pair, way, patches[at])
            work, places = self._work(plan, pair, way, answer, foil)
            size = self._session.size(plan, work.base.given, len(wanted))
        moving: dict[int, Patch] = {}
        for at in wanted:
            patch = reached(patches[at], places)
            if patch is not None and any(_moves(work, site) for site in patch.sites):
                moving[at] = patch
        idle = tuple(at for at in wanted if at not in moving)
        if idle:  # what both runs hold alike changes nothing
            nothing = work.plain(work.base).items()
            yield _piece(work, idle, {name: np.full(len(idle), value) for name, value in nothing})
        order = [list(moving)[at] for at in ordered(self._model, list(moving.values()))]
        if self._options.method == "gradient":
            size = max(1, len(order))
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            some = [moving[at] for at in chosen]
            # Opened for each chunk: between them the caller's own code runs.
            if self._options.method == "gradient":
                with self._session.open(learning=True) as plan:
                    found = _estimated(plan, work, some)
            else:
                with self._session.open() as plan:
                    measure = partial(_measured, work=work, patches=some)
                    found = self._session.attempt(plan, work.base.given, len(some), measure)
            yield _piece(work, tuple(chosen), found)

    def _way(self, plan: ScanPlan, what: frozenset[What]) -> Way:
        if what not in self._ways:
            way = self._ways[what] = find_way(plan, what)
            if way.strategy is None and plan.strategy is not None:
                self._session.note_one_by_one()
        return self._ways[what]

    def _require_sites(self, pair: int, way: Way, patch: Patch) -> None:
        corrupt = self._pairs[pair].corrupt
        for site in patch.sites:
            heads = way.heads[site.what]
            if site.layer not in heads:
                raise UsageError(
                    f"no {site.what} in layer {site.layer}: expected one of "
                    f"{', '.join(map(str, heads))}"
                )
            if not 0 <= (site.head or 0) < heads[site.layer]:
                raise UsageError(
                    f"no {site.what} of head {site.head} in layer {site.layer}: expected 0 to "
                    f"{heads[site.layer] - 1}"
                )
            looks = corrupt.keys if site.what in ("key", "value") else corrupt.queries
            tokens = len(looks(self._model.kind))
            if not all(0 <= token < tokens for token in site.tokens or ()):
                raise UsageError(f"no token {max(site.tokens or ())}: expected 0 to {tokens - 1}")

    def _work(
        self, plan: ScanPlan, pair: int, way: Way, answer: int, foil: int | None
    ) -> tuple[_Work, tuple[int, ...] | None]:
        """Return the pair, and the tokens of the base run that the other one has; None for all."""
        clean, corrupt = self._plainly(plan, pair)
        for token in (answer, foil):
            if token is not None and not 0 <= token < len(clean.logits):
                raise UsageError(
                    f"no token {token}: expected an id from 0 to {len(clean.logits) - 1}"
                )
        held = [self._held(plan, way, run) for run in (clean, corrupt)]
        places = self._pairs[pair].places
        if self._options.direction == "denoise":
            base, own, other = corrupt, held[1], held[0]
        else:
            base, own, other = clean, held[0], held[1]
            if places is not None:
                back = {place: at for at, place in enumerate(places)}
                places = tuple(back.get(at, -1) for at in range(len(clean.given.text)))
        if places is not None:
            moved = sorted(_BY_PLACE & way.heads.keys())
            if moved:
                raise UsageError(
                    f"the {moved[0]} of a token depends on where it stands, and aligned prompts "
                    f"have it elsewhere: patch outputs, values, mlp or residual"
                )
            other = {key: values[list(places)] for key, values in other.items()}
        work = _Work(
            pair=pair,
            way=way,
            clean=clean,
            corrupt=corrupt,
            base=base,
            own=own,
            held=other,
            answer=answer,
            foil=foil,
        )
        if places is None:
            return work, None
        return work, tuple(at for at, place in enumerate(places) if place >= 0)

    def _held(self, plan: ScanPlan, way: Way, run: _Run) -> Held:
        keep = Keep(self._model.kind, way.heads)
        try:
            hidden = run_alone(plan, way.inside, run.given, keep).hidden
        except LostTrackError as error:
            raise not_its_own(self._model.root, str(error)) from error
        if not ends_alike(self._model.root, hidden, run.hidden, exact=False):
            raise not_its_own(self._model.root, "it ends in other numbers")
        return keep.held

    def _plainly(self, plan: ScanPlan, pair: int) -> tuple[_Run, _Run]:
        if self._plain is None or self._plain[0] != pair:
            clean, corrupt = self._prompts(plan, self._pairs[pair])
            self._plain = pair, (_plain_run(plan, *clean), _plain_run(plan, *corrupt))
        return self._plain[1]

    def _prompts(self, plan: ScanPlan, pair: Pair) -> list[tuple[Input, int]]:
        """Return both prompts, and where each predicts; of a masked model with that token
        masked.
        """
        _unembedding(plan)
        at = self._options.position
        length = len(pair.corrupt.predicted)
        if at is not None and not 0 <= at < length:
            raise UsageError(f"no position {at}: the prompt has tokens 0 to {length - 1}")
        other = at if at is None or pair.places is None else pair.places[at]
        if other == -1:
            raise UsageError(f"the clean prompt has no token that corresponds to token {at}")
        mask, prompts = self._model.mask_id, []
        for given, place in ((pair.clean, other), (pair.corrupt, at)):
            if plan.causal:
                prompts.append((given, len(given.predicted) - 1 if place is None else place))
                continue
            if mask is None:
                raise UnsupportedError(
                    f"{type(self._model.root).__name__} reads both ways and has no mask token: it "
                    f"predicts nothing"
                )
            holes = [token for token, number in enumerate(given.ids) if number == mask]
            if place is None and len(holes) != 1:
                raise UsageError(
                    f"this model predicts where a token is masked: expected one mask token in "
                    f"each prompt; got {len(holes)}"
                )
            place = holes[0] if place is None else place
            prompts.append((given.masked(place, mask), place))
        return prompts


def _unembedding(plan: ScanPlan) -> Unembedding:
    if plan.unembedding is None:
        raise UnsupportedError(
            f"{type(plan.model.root).__name__} has no language-model head: there is no prediction "
            f"that a patch could change; choose a model that predicts tokens, and give an "
            f"encoder-decoder a decoder text"
        )
    return plan.unembedding


def _plain_run(plan: ScanPlan, given: Input, position: int) -> _Run:
    unembedding = _unembedding(plan)
    answer = run_pass(plan.model, given, None)
    assert answer.projected is not None
    row = answer.projected[:, position]
    return _Run(given, position, answer.hidden, row, unembedding.logits(row)[0].double())


def _moves(work: _Work, site: Site) -> bool:
    """Return whether the two runs hold something else there."""
    return not torch.equal(values_of(work.own, site), values_of(work.held, site))


def _measured(plan: ScanPlan, work: _Work, patches: Sequence[Patch]) -> _Found:
    """Return the metrics of ``ordered`` patches, all in one pass where the model allows it."""
    base, unembedding = work.base, _unembedding(plan)
    way = work.way if plan.strategy is not None else replace(work.way, strategy=None)
    tokens = len(base.given.predicted)
    short = way.ends_short and ENDING < tokens <= base.position + ENDING
    kept = ENDING if short else None
    replaced = partial(Replace, plan.model.kind, values=work.held)
    at_once = plan.at_once(base.given)
    answer = run_changed(plan, way, base.given, patches, replaced, at_once=at_once, kept=kept)
    check_clean_row(plan, answer.hidden[0], base.hidden[0], short=short)
    assert answer.projected is not None
    rows = answer.projected[:, base.position]
    wanted = torch.tensor([work.answer], device=rows.device)
    compared = unembedding.compare(rows[:1], rows[1:, None], wanted)
    kl = compared.kl
    if base is not work.clean:
        kl = unembedding.compare(work.clean.row, rows[1:, None], wanted).kl
    plain = work.plain(base)
    found: _Found = {
        "log_prob": plain["log_prob"] - _numpy(compared.loss_delta[:, 0]),
        "kl": _numpy(kl[:, 0]),
    }
    if work.foil is not None:
        _, change = unembedding.logit_difference(rows[0], rows[1:], work.answer, work.foil)
        found["logit_diff"] = plain["logit_diff"] + _numpy(change)
    return found


def _estimated(plan: ScanPlan, work: _Work, patches: Sequence[Patch]) -> _Found:
    """Return the same to first order: M + ⟨∂M/∂z, z of the other run − z⟩ over the sites of a
    patch.

    Nanda 2023, "Attribution Patching: Activation Patching At Industrial Scale". One forward and one
    backward pass for each metric, whatever the number of patches.
    """
    base = work.base
    slopes = Slopes(plan.model.kind, work.way.heads)
    answer = run_alone(plan, work.way.inside, base.given, slopes)
    assert answer.projected is not None
    logits = _unembedding(plan).logits(answer.projected[:, base.position])[0].double()
    scores, clean = logits.log_softmax(-1), work.clean.logits.clone().log_softmax(-1)
    measures: dict[PatchMetric, Tensor] = {
        "log_prob": scores[work.answer],
        "kl": (clean.exp() * (clean - scores)).sum(),
    }
    if work.foil is not None:
        measures["logit_diff"] = logits[work.answer] - logits[work.foil]
    found: _Found = {}
    for name, value in measures.items():
        zeros = list(slopes.zeros.values())
        slope = torch.autograd.grad(value, zeros, retain_graph=True, allow_unused=True)
        of = {
            place: torch.zeros_like(zero[0]) if each is None else each[0]
            for (place, zero), each in zip(slopes.zeros.items(), slope, strict=True)
        }
        changes = [
            sum(
                float(
                    (values_of(of, site) * (values_of(work.held, site) - values_of(work.own, site)))
                    .double()
                    .sum()
                )
                for site in patch.sites
            )
            for patch in patches
        ]
        found[name] = work.plain(base)[name] + np.array(changes)
    return found


def _piece(work: _Work, patches: tuple[int, ...], found: _Found) -> PatchScores:
    clean, corrupt = work.plain(work.clean), work.plain(work.corrupt)
    return PatchScores(work.pair, patches, found, clean, corrupt)


def _numpy(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.double().cpu().numpy()
