"""Patch pairs of prompts: all sites in one pass if the model allows it, for every backend.

In the base run of a pair, sites are replaced by their values in the other run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array, namespace
from attnviz.engine.device_sizes import sizes_of
from attnviz.engine.likely import log_softmax
from attnviz.engine.observer import to_numpy
from attnviz.engine.patching import (
    SITES,
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
from attnviz.engine.replacing import Held, Replace, head_of
from attnviz.engine.scan.runner import ChangedRuns, SiteRunner
from attnviz.engine.scan.unembedding import Unembedding
from attnviz.errors import UnsupportedError, UsageError
from attnviz.measures.divergence import kl_divergence
from attnviz.measures.rows import all_on_host
from attnviz.records import Input

Measured = dict[PatchMetric, NDArray[np.float64]]


@dataclass(frozen=True)
class PlainRun:
    """The result of running the unchanged model on one prompt.

    position: the token that predicts. row: (1, width), the vocabulary projection's input there.
    logits: (vocab,).
    """

    given: Input
    position: int
    row: Array
    logits: NDArray[np.float64]

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """Return the log probabilities (vocab,)."""
        return log_softmax(self.logits)


@dataclass(frozen=True)
class PatchWork:
    """One prompt pair that is ready to be patched, with the values of both runs.

    pair: its index. sorts: those of its sites. clean, corrupt: the unpatched runs of both
        prompts. base: the run that is patched, one of these two. own: the values of ``base``.
    held: the values of the other run, at the tokens of ``base``.
    answer, foil: token ids. same: how many tokens at the beginning are surely equal in both runs.
    rounding: how far equal values may differ in two runs, relative to the largest.
    """

    pair: int
    sorts: frozenset[What]
    clean: PlainRun
    corrupt: PlainRun
    base: PlainRun
    own: Held
    held: Held
    answer: int
    foil: int | None
    same: int = 0
    rounding: float = 0.0

    def plain(self, run: PlainRun) -> dict[PatchMetric, float]:
        """Return the metrics of one of the two unpatched runs."""
        metrics: dict[PatchMetric, float] = {
            "log_prob": float(run.scores[self.answer]),
            "kl": float(kl_divergence(self.clean.scores, run.scores)),
        }
        if self.foil is not None:
            metrics["logit_diff"] = float(run.logits[self.answer] - run.logits[self.foil])
        return metrics

    def starts(self, patches: Sequence[Patch]) -> list[int | None]:
        """Return for each patch the first token at which it changes a value, None if none."""
        differ = dict(zip(self.own, all_on_host([*map(self._differ, self.own)]), strict=True))
        for tokens in differ.values():
            tokens[: self.same] = False

        def first(site: Site) -> int | None:
            here = differ[site.sort, site.layer][:, head_of(site)]
            tokens = np.arange(len(here)) if site.tokens is None else np.array(site.tokens)
            return next(iter(tokens[here[tokens]].tolist()), None)

        firsts = (map(first, patch.sites) for patch in patches)
        return [min((at for at in some if at is not None), default=None) for some in firsts]

    def _differ(self, key: tuple[What, int]) -> Array:
        """Return a boolean (token, head), True where the values of the two runs differ."""
        own, held = self.own[key], self.held[key]
        if self.rounding:
            return abs(own - held).max(-1) > self.rounding * abs(own).max()
        return (own != held).any(-1)


class Patching:
    """Patches prompt pairs: puts values of one prompt's run into the run of the other prompt.

    runner: runs the model. estimate: returns first-order estimates of patches.
    notes: sentences about how it was done; more may come while it runs. labels: the names of a
        classifier's labels, which are its answers. answers: True for question answering, where the
        prediction is the prompt's token to start at. queries: the query heads of each layer.
    """

    def __init__(
        self,
        runner: SiteRunner,
        pairs: Sequence[Pair],
        options: PatchOptions,
        estimate: Callable[[PatchWork, Sequence[Patch]], Measured] | None = None,
    ) -> None:
        self._runner = runner
        assert (estimate is None) == (options.method == "exact")
        self._estimate, self._pairs, self._options = estimate, pairs, options
        self._plain: dict[int, tuple[PlainRun, PlainRun]] = {}
        self.notes, self.labels, self.answers = runner.notes, runner.labels, runner.answers
        self.queries = runner.heads

    def heads(self, sort: What) -> Mapping[int, int]:
        """Return by layer how many sites of one sort there are; UnsupportedError if none."""
        with self._runner.open():
            return self._runner.sites(frozenset({sort}))[sort]

    def sites(self, sort: What, tokens: Sequence[tuple[int, ...] | None] = (None,)) -> list[Site]:
        """Return every site of one sort by layer, head and tokens; None of these means all."""
        return [
            Site(sort, layer, None if sort in WHOLE_LAYER else head, some)
            for layer, count in self.heads(sort).items()
            for head in range(count)
            for some in tokens
        ]

    def served(self, site: Site) -> tuple[int, ...]:
        """Return the query heads that a patch site affects; several share a key/value head."""
        if site.head is None:
            return ()
        group = self.queries[site.layer] // self.heads(site.sort)[site.layer]
        return tuple(range(site.head * group, (site.head + 1) * group))

    def predictions(self, pair: int) -> tuple[Prediction, Prediction]:
        """Return the unpatched model's predictions for the clean and corrupt prompt of a pair."""
        with self._runner.open():
            clean, corrupt = (Prediction(run.position, run.logits) for run in self._plainly(pair))
        return clean, corrupt

    def patch(
        self,
        pair: int,
        patches: Sequence[Patch],
        wanted: Sequence[int],
        answer: int,
        foil: int | None = None,
    ) -> Iterator[PatchScores]:
        """Yield the effects of patches on one prompt pair, as many at a time as fit into memory.

        pair: its index. wanted: the indices of the patches in ``patches``. answer, foil: token ids.
        Raises UsageError for a site that does not exist, UnsupportedError if the model does not let
        values of some kind be replaced.
        """
        if not wanted:
            return
        runner = self._runner
        sorts = frozenset(site.sort for at in wanted for site in patches[at].sites)
        with runner.open():
            heads = runner.sites(sorts)
            for at in wanted:
                self._require_sites(pair, heads, patches[at])
            work, tokens = self._work(pair, sorts, answer, foil)
            size = runner.size(work.base.given, len(wanted))
        there = {at: patch for at in wanted if (patch := reached(patches[at], tokens)) is not None}
        starts = dict(zip(there, work.starts(list(there.values())), strict=True))
        moving = [at for at in there if starts[at] is not None]
        idle = tuple(at for at in wanted if at not in moving)
        if idle:  # equal values in both runs change nothing
            nothing = work.plain(work.base).items()
            yield _piece(work, idle, {name: np.full(len(idle), value) for name, value in nothing})
        order = [moving[at] for at in runner.ordered([there[at] for at in moving])]
        size = size if self._estimate is None else max(1, len(order))
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            some = [there[at] for at in chosen]
            if self._estimate is not None:
                yield _piece(work, tuple(chosen), self._estimate(work, some))
                continue
            # It is opened for each chunk, because between chunks the caller's own code runs.
            with runner.open():
                begin = [starts[at] or 0 for at in chosen]
                measure = partial(_measured, runner, work, some, begin, self._options.metrics)
                measured = runner.attempt(work.base.given, len(some), measure)
            yield _piece(work, tuple(chosen), measured)

    def _require_sites(
        self, pair: int, counts: Mapping[What, Mapping[int, int]], patch: Patch
    ) -> None:
        corrupt = self._pairs[pair].corrupt
        for site in patch.sites:
            heads = counts[site.sort]
            if site.layer not in heads:
                raise UsageError(
                    f"no {site.sort} in layer {site.layer}: expected one of "
                    f"{', '.join(map(str, heads))}"
                )
            if not 0 <= (site.head or 0) < heads[site.layer]:
                raise UsageError(
                    f"no {site.sort} of head {site.head} in layer {site.layer}: expected 0 to "
                    f"{heads[site.layer] - 1}"
                )
            looks = corrupt.keys if SITES[site.sort].shared else corrupt.queries
            tokens = len(looks(self._runner.kind))
            if not all(0 <= token < tokens for token in site.tokens or ()):
                raise UsageError(f"no token {max(site.tokens or ())}: expected 0 to {tokens - 1}")

    def _work(
        self, pair: int, sorts: frozenset[What], answer: int, foil: int | None
    ) -> tuple[PatchWork, tuple[int, ...] | None]:
        """Return a pair ready for patching, and the base run's positions that can be; None: all."""
        clean, corrupt = self._plainly(pair)
        for token in (answer, foil):
            if token is not None and not 0 <= token < len(clean.logits):
                raise UsageError(
                    f"no token {token}: expected an id from 0 to {len(clean.logits) - 1}"
                )
        held = [self._runner.held(run.given, sorts) for run in (clean, corrupt)]
        aligned, same = self._pairs[pair].aligned, 0
        if aligned is None and self._runner.causal and clean.given.target is None:
            differs = np.array(clean.given.ids) != np.array(corrupt.given.ids)
            same = int(differs.argmax()) if differs.any() else len(differs)
        if self._options.direction == "denoise":
            base, own, other = corrupt, held[1], held[0]
        else:
            base, own, other = clean, held[0], held[1]
            if aligned is not None:
                back = {token: at for at, token in enumerate(aligned)}
                aligned = tuple(back.get(at, -1) for at in range(len(clean.given.text)))
        if aligned is not None:
            moved = sorted(sort for sort in sorts if SITES[sort].by_position)
            if moved:
                raise UsageError(
                    f"the {moved[0]} of a token depends on where it stands, and aligned prompts "
                    f"have it elsewhere: patch outputs, values, mlp or residual"
                )
            other = {key: values[list(aligned)] for key, values in other.items()}
        work = PatchWork(
            pair=pair,
            sorts=sorts,
            clean=clean,
            corrupt=corrupt,
            base=base,
            own=own,
            held=other,
            answer=answer,
            foil=foil,
            same=same,
            rounding=self._runner.rounding,
        )
        if aligned is None:
            return work, None
        return work, tuple(at for at, token in enumerate(aligned) if token >= 0)

    def _plainly(self, pair: int) -> tuple[PlainRun, PlainRun]:
        """Return the unpatched runs of the clean and the corrupt prompt; recent ones are reused."""
        if pair not in self._plain:
            clean, corrupt = self._prompts(self._pairs[pair])
            runs = self._plain[pair] = self._run(*clean), self._run(*corrupt)
            size = sum(run.logits.nbytes for run in runs)
            most = sizes_of(runs[0].row).kept_bytes
            for other in list(self._plain)[: -max(1, most // size)]:
                del self._plain[other]
        return self._plain[pair]

    def _prompts(self, pair: Pair) -> list[tuple[Input, int]]:
        """Return the clean and the corrupt prompt, each with the position that predicts.

        A masked model predicts at its mask token, which replaces the token at a requested position.
        """
        _read_out(self._runner, pair.corrupt)
        at = self._options.position
        length = len(pair.corrupt.predicted)
        if at is not None and not 0 <= at < length:
            raise UsageError(f"no position {at}: the prompt has tokens 0 to {length - 1}")
        other = at if at is None or pair.aligned is None else pair.aligned[at]
        if other == -1:
            raise UsageError(f"the clean prompt has no token that corresponds to token {at}")
        mask, prompts = self._runner.mask_id, []
        for given, position in ((pair.clean, other), (pair.corrupt, at)):
            labelled = self._runner.label_places(given)
            if labelled or self._runner.causal:
                last = labelled[-1] if labelled else len(given.predicted) - 1
                prompts.append((given, last if position is None else position))
                continue
            if mask is None:
                raise UnsupportedError(
                    f"{self._runner.name} is bidirectional and has no mask token: it "
                    f"predicts nothing"
                )
            holes = [token for token, number in enumerate(given.ids) if number == mask]
            if position is None and len(holes) != 1:
                raise UsageError(
                    f"this model predicts where a token is masked: expected one mask token, "
                    f"{mask.text!r}, in each prompt; got {len(holes)}"
                )
            position = holes[0] if position is None else position
            prompts.append((given.masked(position, mask), position))
        return prompts

    def _run(self, given: Input, position: int) -> PlainRun:
        ends = self._runner.plain(given)
        assert ends.read is not None
        read = _rows(self._runner, given, position, ends.read)
        row = namespace(read).asarray(read, copy=True)  # outlives the rest
        logits = to_numpy(_read_out(self._runner, given).logits(row)[0]).astype(np.float64)
        if self._runner.answers:
            position = int(logits.argmax())
        return PlainRun(given, position, row, logits)


def _rows(runner: SiteRunner, given: Input, position: int, read: Array) -> Array:
    """Return what the projection reads where the model predicts: a token, or all for an answer."""
    if runner.answers:
        return read.reshape(len(read), -1)
    return read[:, position - len(given.predicted)]


def _read_out(runner: SiteRunner, given: Input) -> Unembedding:
    """Return what turns the rows of ``_rows`` into logits: over words, labels, or places."""
    if runner.read_out is None:
        raise UnsupportedError(
            f"{runner.name} has no language-model head: there is no prediction "
            f"that a patch could change; choose a model that predicts tokens, and give an "
            f"encoder-decoder a decoder text"
        )
    if runner.answers:
        return runner.read_out.of_answers(runner.label_places(given), len(given.text))
    return runner.read_out


def _measured(
    runner: SiteRunner,
    work: PatchWork,
    patches: Sequence[Patch],
    starts: Sequence[int],
    metrics: Collection[PatchMetric],
) -> Measured:
    """Return the metrics of the patched runs, all from one pass if the model allows it."""
    base, read_out = work.base, _read_out(runner, work.base.given)
    back = base.position - len(base.given.predicted)  # counted from the end
    replaced = partial(Replace, runner.kind, values=work.held)
    last = None if runner.answers else -back
    ends = runner.ends(ChangedRuns(base.given, patches, replaced, last, starts))
    assert ends.read is not None
    rows, wanted = _rows(runner, base.given, base.position, ends.read), [work.answer]
    plain = work.plain(base)
    measured: Measured = {}
    if "log_prob" in metrics:
        compared = read_out.compare(rows[:1], rows[1:, None], wanted)
        measured["log_prob"] = plain["log_prob"] - compared.loss_delta[:, 0].astype(np.float64)
    if "kl" in metrics:
        if "log_prob" not in metrics or base is not work.clean:
            clean = rows[:1] if base is work.clean else work.clean.row
            compared = read_out.compare(clean, rows[1:, None], wanted)
        measured["kl"] = compared.kl[:, 0].astype(np.float64)
    if "logit_diff" in metrics and work.foil is not None:
        _, change = read_out.logit_difference(rows[0], rows[1:], work.answer, work.foil)
        measured["logit_diff"] = plain["logit_diff"] + change
    return measured


def reached(patch: Patch, tokens: Collection[int] | None) -> Patch | None:
    """Return the patch limited to some tokens, None being all; None if no site is left."""
    if tokens is None:
        return patch
    sites = []
    for site in patch.sites:
        if some := tuple(token for token in (site.tokens or sorted(tokens)) if token in tokens):
            sites.append(replace(site, tokens=some))
    return Patch(tuple(sites)) if sites else None


def _piece(work: PatchWork, patches: tuple[int, ...], measured: Measured) -> PatchScores:
    clean, corrupt = work.plain(work.clean), work.plain(work.corrupt)
    return PatchScores(work.pair, patches, measured, clean, corrupt)
