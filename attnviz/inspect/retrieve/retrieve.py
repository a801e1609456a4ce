"""Answers ``retrieve``: which heads fetch a needle, and what the answer's loss is without them.

Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality": a head scores at
a token of the answer if the token that it attends to most stands in the needle and is the one that
is generated. The answer is given (teacher forcing), so that every question counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.count.params.head_cost import ShortCache, counted_model, short_cache
from attnviz.engine.backend import backend_of
from attnviz.engine.head_run import Head
from attnviz.engine.likely import log_softmax
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.retrieve import haystacks as hay
from attnviz.inspect.retrieve.haystacks import Question
from attnviz.inspect.retrieve.records import (
    RECENT,
    SINK,
    STREAMS,
    HeadRetrieval,
    LossChange,
    RetrieveReport,
)
from attnviz.inspect.retrieve.request import RetrieveRequest
from attnviz.measures.bootstrap import LEAST_TEXTS, bootstrap_interval, few_note, student_quantile
from attnviz.models.memory import require_room
from attnviz.models.model import Model, NumpyModel, Reader, cannot_write, require_number
from attnviz.models.operations import sizes_of
from attnviz.models.pace import seconds
from attnviz.models.pool import in_turn
from attnviz.progress import UNWATCHED, Watch
from attnviz.records import Input, Tokens

Floats = NDArray[np.float64]
Haystack = tuple[Question, ...]
"""The questions about one text."""

LEAST_SCORE = 0.1
"""The least score of a retrieval head (Wu et al. 2024, section 2)."""

_DOUBT = 0.05
_CACHED = (32_768, 131_072)
_RUNS = 5
"""The runs of a haystack: as it is, shuffled, taken apart, without named and random heads."""

_MATRICES = 3
"""The matrices of a layer's weights that are in memory at once."""


class Answered(NamedTuple):
    """What heads do while a model reads one answer, as means over its tokens.

    heads: (3, layer, head), NaN for a head that was not seen: the retrieval score, that of needles
    that are not asked for, the weight on the first and last tokens. loss: of a token, in nats.
    predicted: the share of its tokens that the model predicts.
    """

    heads: Floats
    loss: float
    predicted: float


def reckoned(request: RetrieveRequest) -> tuple[int, int]:
    """Return about how many tokens a model runs on, and in how many texts."""
    lengths = request.tokens or hay.DEFAULT_LENGTHS
    return _RUNS * request.haystacks * sum(lengths), _RUNS * request.haystacks * len(lengths)


def retrieve(
    model: Model,
    sentences: Sequence[str],
    request: RetrieveRequest,
    *,
    advance: Watch = UNWATCHED,
) -> RetrieveReport:
    """Measure which heads of a causal model fetch a needle from a haystack.

    sentences: of the haystacks. advance: is given the progress.
    Raises UsageError for lengths and needles that do not fit the model, UnsupportedError for a
    model that does not predict the next token.
    """
    if model.kinds != ("self",) or not getattr(model, "causal", True):
        raise cannot_write(model.info)
    lengths, info, seed = hay.lengths_of(model, request), model.info, request.seed
    weights = _MATRICES * 4 * info.heads * lengths[-1] ** 2
    what = f"the weights of a layer over {lengths[-1]:,} tokens take"
    require_room(what, weights, "give shorter --lengths")
    made_of = hay.material(model, sentences, request)
    numbers = [(length, each) for length in lengths for each in range(request.haystacks)]
    study = _Study(model, [hay.questions(made_of, *each, seed) for each in numbers], advance)
    found = study.read("fetching needles")
    scores, unasked, near = np.stack([_mean(each) for each in found], 1)  # (haystack, layer, head)
    mixed = [
        tuple(one.shuffled((seed, at)) for one in each) for at, each in enumerate(study.haystacks)
    ]
    others = _Study(model, mixed, advance).read("fetching needles from shuffled haystacks")
    shuffled = np.stack([_mean(each)[0] for each in others])
    named = retrieval_heads(scores, unasked, shuffled)
    written, notes = study.written()
    heads = []
    for layer, head in np.argwhere(np.isfinite(scores[0])).tolist():
        heads.append(
            HeadRetrieval(
                layer,
                head,
                *_change(scores[:, layer, head], seed, (0.0, 1.0)),
                unasked=float(unasked[:, layer, head].mean()),
                shuffled=float(shuffled[:, layer, head].mean()),
                written=None if written is None else float(written[layer, head]),
                near=float(near[:, layer, head].mean()),
                retrieves=(layer, head) in named,
                streams=bool(near[:, layer, head].mean() >= STREAMS and (layer, head) not in named),
            )
        )
    heads.sort(key=lambda one: -one.score)
    answers = [one for each in found for one in each]
    asked = [one for each in study.haystacks for one in each]
    places = [(one.length, one.depth) for one in asked]
    best = {at: answer.heads[0][heads[0].place] for at, answer in enumerate(answers)}
    without, random = study.ablated(
        named, [float(np.mean([one.loss for one in each])) for each in found], seed
    )
    caches, more = _caches(model, named)
    size = sum(map(len, made_of.sentences))
    short = size < lengths[-1] and f"the haystack has {size:,} tokens and repeats: --haystack FILE"
    return RetrieveReport(
        model=info,
        lengths=lengths,
        haystacks=len(found),
        questions=len(asked),
        tokens=sum(len(one.right) for one in asked),
        predicted=float(np.mean([one.predicted for one in answers])),
        loss=float(np.mean([one.loss for one in answers])),
        heads=tuple(heads),
        cells={
            place: float(np.mean([best[at] for at, one in enumerate(places) if one == place]))
            for place in sorted(set(places))
        },
        without=without,
        random=random,
        caches=caches,
        top=request.top,
        chat=request.chat,
        source="built-in passages" if request.haystack is None else request.haystack.name,
        notes=(*few_note(len(found), "haystacks"), *([short] if short else []), *notes, *more),
        seed=seed,
        index_base=request.index_base,
    )


def retrieval_heads(scores: Floats, unasked: Floats, shuffled: Floats) -> tuple[Head, ...]:
    """Return the (layer, head) whose score exceeds both base rates, the highest score first.

    scores, unasked, shuffled: (haystack, layer, head). A head is named if its mean score is at
    least ``LEAST_SCORE``, and if Student's interval of its difference to the higher base rate is
    above zero, at 95% for all heads together (Bonferroni). Empty for fewer than five haystacks.
    """
    count = len(scores)
    if count < LEAST_TEXTS:
        return ()
    margin = scores - np.where(unasked.mean(0) >= shuffled.mean(0), unasked, shuffled)
    z = NormalDist().inv_cdf(1 - _DOUBT / 2 / scores[0].size)
    reach = student_quantile(z, count - 1) * margin.std(0, ddof=1) / np.sqrt(count)
    mean = scores.mean(0)
    named = np.argwhere((mean >= LEAST_SCORE) & (margin.mean(0) > reach)).tolist()
    return tuple(sorted(((layer, head) for layer, head in named), key=lambda head: -mean[head]))


def answered(reader: Reader, question: Question, layers: int, heads: int) -> Answered:
    """Return what the heads do at each token of an answer, as a mean over these tokens.

    reader: runs the model on a growing text. layers, heads: of the model.
    """
    found = np.full((len(question.right), 3, layers, heads), np.nan)
    losses, predicted = [], []
    for step, (right, others) in enumerate(zip(question.right, question.others, strict=True)):
        scores, rows = reader.read(question.ids[: question.start + step])
        token = question.ids[question.start + step]
        logs = log_softmax(scores.astype(np.float64))
        losses.append(-float(logs[token]))
        predicted.append(int(logs.argmax()) == token)
        for layer, weights in rows.items():
            top, last = weights.argmax(-1), max(weights.shape[1] - RECENT, SINK)
            elsewhere = np.isin(top, others) / len(others) if others else np.nan
            near = weights[:, :SINK].sum(-1) + weights[:, last:].sum(-1)
            for part, values in enumerate((np.isin(top, right), elsewhere, near)):
                found[step, part, layer, : len(top)] = values
    known = np.isfinite(found)
    with np.errstate(invalid="ignore"):  # a head that was not seen has no mean
        means = np.where(known, found, 0.0).sum(0) / known.sum(0)
    return Answered(means, float(np.mean(losses)), float(np.mean(predicted)))


class _Study:
    """Runs one model over haystacks: as it is, without some heads, taken apart."""

    def __init__(self, model: Model, haystacks: Sequence[Haystack], advance: Watch) -> None:
        self._model, self.haystacks, self._advance = model, haystacks, advance
        self._backend = backend_of(model)

    def read(
        self, what: str, without: Callable[[int], Sequence[Head]] = lambda haystack: ()
    ) -> list[list[Answered]]:
        """Return for each haystack what the heads do at the answer to each of its questions.

        what: the words for the progress. without: returns the heads that are ablated, given the
        index of a haystack.
        """
        info, readers = self._model.info, dict[tuple[Head, ...], Reader]()

        def one(at: int) -> list[Answered]:
            removed, begun = tuple(without(at)), Tokens.bare(self.haystacks[at][0].ids[:2])
            reader = readers.get(removed)
            if reader is None:
                reader = self._backend.open_reader(begun, begun, "self", removed)
            if not isinstance(self._model, NumpyModel):  # its threads cannot share a reader
                readers[removed] = reader
            return [answered(reader, each, info.layers, info.heads) for each in self.haystacks[at]]

        every = in_turn if isinstance(self._model, NumpyModel) else map
        found = []
        for answers in every(one, self._announced(what)):
            require_number("loss", sum(each.loss for each in answers), info)
            found.append(answers)
            self._advance(len(found) / len(self.haystacks))
        return found

    def written(self) -> tuple[Floats | None, tuple[str, ...]]:
        """Return what each head writes towards the answer, (layer, head), and notes.

        It is the direct contribution to logit(answer) − logit(foil) that is read at the needle, for
        one token of one answer of each haystack in turn. The foil is the token at that place of an
        answer that is not asked for. None if it cannot be measured.
        """
        found = []
        try:
            attributor = self._backend.open_attributor(Input.of_ids(self.haystacks[0][0].ids[:2]))
            for at in self._announced("measuring what heads write"):
                question = self.haystacks[at][at % len(self.haystacks[at])]
                step = at % len(question.right)
                end = question.start + step
                foils = [question.ids[place] for place in question.others[step]]
                foil = next((each for each in foils if each != question.ids[end]), None)
                if foil is not None:
                    given = Input.of_ids(question.ids[:end])
                    apart = attributor.attribute(given, answer=question.ids[end], foil=foil)
                    values = np.zeros((self._model.info.layers, self._model.info.heads))
                    for (_, layer, head), row in apart.rows.items():
                        values[layer, head] = row[list(question.span)].sum()
                    found.append(values)
                self._advance((at + 1) / len(self.haystacks))
        except (UnsupportedError, UsageError) as error:
            return None, (f"what heads write is not measured: {error}",)
        return (np.mean(found, 0) if found else None), ()

    def ablated(
        self, named: Sequence[Head], losses: Sequence[float], seed: int
    ) -> tuple[LossChange | None, LossChange | None]:
        """Return the rise of the answers' loss without the named heads, and without random others.

        losses: of the whole model, by haystack. seed: of the random heads; each haystack has its
        own, as many as were named if there are as many. None if there are no such heads.
        """
        if not named:
            return None, None
        heads = self._model.info.heads_of_layers.items()
        rest = [(at, one) for at, count in heads for one in range(count) if (at, one) not in named]

        def drawn(haystack: int) -> list[Head]:
            order = np.random.default_rng((seed, haystack)).permutation(len(rest))
            return sorted(rest[place] for place in order[: len(named)])

        def change(what: str, without: Callable[[int], Sequence[Head]]) -> LossChange:
            found = self.read(what, without)
            means = [np.mean([each.loss for each in answers]) for answers in found]
            return _change(np.array(means) - losses, seed)

        lost = change("ablating retrieval heads", lambda haystack: sorted(named))
        return lost, change("ablating random heads", drawn) if rest else None

    def _announced(self, what: str) -> range:
        """Announce a run over all haystacks, and return their indices. what: its words."""
        sizes, count = sizes_of(self._model), len(self.haystacks)
        operations = sum(sizes.forward(each[0].length) for each in self.haystacks)
        self._advance.expect(what, lambda: seconds(self._model, operations, count))
        return range(count)


def _mean(answers: Sequence[Answered]) -> Floats:
    mean: Floats = np.mean([each.heads for each in answers], 0)
    return mean


def _change(values: Floats, seed: int, ends: tuple[float, float] = (-np.inf, np.inf)) -> LossChange:
    """Return the mean over haystacks with its interval. ends: the least and largest value."""
    if len(values) < LEAST_TEXTS:
        return LossChange(float(values.mean()), None, None)
    low, high = np.clip(np.ravel(bootstrap_interval(values[:, None], seed)), *ends).tolist()
    return LossChange(float(values.mean()), low, high)


def _caches(model: Model, named: Sequence[Head]) -> tuple[tuple[ShortCache, ...], tuple[str, ...]]:
    """Return the caches at long lengths if only these heads kept every token, and notes."""
    info = model.info
    kept = {(layer, head * info.kv_heads // info.heads) for layer, head in named}
    try:
        counted = counted_model(model) if named else None
        return tuple(short_cache(counted, each, kept) for each in _CACHED if counted), ()
    except (UnsupportedError, UsageError) as error:
        return (), (f"the cache is not counted: {error}",)
