"""Answers ``retrieve``: which heads fetch a needle, and what the answer's loss is without them.

Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality": a head scores at
a token of the answer if the token that it attends to most stands in the needle and is the one that
is generated. The answer is given (teacher forcing), so that every question counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.count.params.params import ShortCache, counted_model, short_cache
from attnviz.engine.backend import backend_of
from attnviz.engine.head_run import Head
from attnviz.engine.likely import log_softmax
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.retrieve import haystacks as hay
from attnviz.inspect.retrieve.haystacks import Question
from attnviz.inspect.retrieve.report import (
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
from attnviz.models.pool import in_turn
from attnviz.models.work import CORPUS_WORK, Work
from attnviz.progress import UNWATCHED, Watch
from attnviz.records import Input, ModelInfo, Tokens

if TYPE_CHECKING:
    from attnviz.corpus import TextCorpus

LEAST_SCORE = 0.1
"""The least score of a retrieval head (Wu et al. 2024, section 2)."""

_DOUBT = 0.05
_CACHED = (32_768, 131_072)
_RUNS = 5  # the runs of a haystack: as it is, shuffled, taken apart, without named and random heads

_CACHES = 3
"""The keys and values in memory at once: a text's, those of a pass that is compared, the next's."""


def work(corpus: TextCorpus | None, request: RetrieveRequest) -> Work:
    """Return the planned work over haystacks, from which the loader chooses NumPy or torch."""
    if corpus is not None:
        return CORPUS_WORK
    lengths, runs = request.tokens or hay.DEFAULT_LENGTHS, _RUNS * request.haystacks
    return Work(runs * sum(lengths), texts=runs * len(lengths))


def retrieve(
    model: Model, sentences: Sequence[str], request: RetrieveRequest, *, advance: Watch = UNWATCHED
) -> RetrieveReport:
    """Measure which heads of a causal model fetch a needle from a haystack.

    Raises UsageError for lengths and needles that do not fit the model, UnsupportedError for a
    model that does not predict the next token.
    """
    lengths, info, seed = checked_lengths(model, request), model.info, request.seed
    made_of = hay.material(model, sentences, request)
    haystacks = [
        hay.questions(made_of, length, number, seed)
        for length in lengths
        for number in range(request.haystacks)
    ]
    study = HaystackStudy(model, haystacks, advance)
    fetched, by_haystack = study.fetched(seed)
    named = retrieval_heads(*fetched[:3])
    pieces, notes = study.written()
    heads = head_records(
        np.isfinite(fetched[0, 0]),
        lambda head: _change(fetched[0][:, *head], seed, (0.0, 1.0)),
        np.apply_along_axis(np.mean, 1, fetched),
        np.mean(pieces, 0) if pieces else None,
        named,
    )
    answers = [answer for of_haystack in by_haystack for answer in of_haystack]
    asked = [question for haystack in study.haystacks for question in haystack]
    scores_at: dict[tuple[int, int], list[float]] = {}
    for question, answer in zip(asked, answers, strict=True):
        score = answer.heads[0][heads[0].place]
        scores_at.setdefault((question.length, question.depth), []).append(score)
    changes = study.changes(named, by_haystack, seed) or (None, None)
    without, random = (None if rises is None else _change(rises, seed) for rises in changes)
    sizes, more = cache_sizes(model) if named else ((), ())
    size = sum(map(len, made_of.sentences))
    short = f"the haystack has {size:,} tokens and repeats: --haystack FILE"
    short *= size < lengths[-1]
    return RetrieveReport(
        model=info,
        lengths=lengths,
        haystacks=len(by_haystack),
        questions=len(asked),
        tokens=sum(len(question.right) for question in asked),
        predicted=float(np.mean([answer.predicted for answer in answers])),
        loss=float(np.mean([answer.loss for answer in answers])),
        heads=heads,
        cells={at: float(np.mean(scores_at[at])) for at in sorted(scores_at)},
        without=without,
        random=random,
        caches=short_caches(info, sizes, named),
        top=request.top,
        ablated=tuple(sorted(named)),
        chat=request.chat,
        source="built-in passages" if request.haystack is None else request.haystack.name,
        notes=tuple(filter(None, (*few_note(len(haystacks), "haystacks"), short, *notes, *more))),
        seed=seed,
        index_base=request.index_base,
    )


def checked_lengths(model: Model, request: RetrieveRequest) -> tuple[int, ...]:
    """Return the lengths in tokens, by default up to the context; raise as ``retrieve`` does."""
    if model.kinds != ("self",) or not getattr(model, "causal", True):
        raise cannot_write(model.info)
    info, lengths, most = model.info, request.tokens, model.context or max(hay.DEFAULT_LENGTHS)
    if not lengths:
        fits = most >= hay.DEFAULT_LENGTHS[-1]
        lengths = hay.DEFAULT_LENGTHS if fits else (most // 4, most // 2, most)
    elif model.context is not None and lengths[-1] > most:
        raise UsageError(
            f"--lengths {lengths[-1]:,} is beyond the context of {info.name!r}: expected at most "
            f"{most:,} tokens"
        )
    cached = 2 * 4 * info.layers * info.kv_heads * info.head_dim * lengths[-1]
    needed = f"the keys and values of {lengths[-1]:,} tokens take"
    require_room(needed, _CACHES * cached, "give shorter --lengths")
    return lengths


def head_records(
    seen: NDArray[np.bool_],
    change: Callable[[Head], LossChange],
    means: Floats,
    written: Floats | None,
    named: Collection[Head],
) -> tuple[HeadRetrieval, ...]:
    """Return what was measured of each head that was seen, the highest score first.

    seen: (layer, head). change: returns a head's score with its interval. means: (4, layer, head)
        over haystacks, with the first axis of ``HaystackStudy.fetched``. written: (layer, head),
        what heads write; None if it is not known. named: the retrieval heads.
    """
    _, unasked, shuffled, near = means
    at: Head
    heads = [
        HeadRetrieval(
            layer,
            head,
            *change(at := (layer, head)),
            unasked=float(unasked[at]),
            shuffled=float(shuffled[at]),
            written=None if written is None else float(written[at]),
            near=float(near[at]),
            retrieves=at in named,
            streams=bool(near[at] >= STREAMS and at not in named),
        )
        for layer, head in np.argwhere(seen).tolist()
    ]
    return tuple(sorted(heads, key=lambda head: -head.score))


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
    return above_chance(scores.mean(0), margin.mean(0), margin.var(0, ddof=1), count)


def above_chance(mean: Floats, margin: Floats, spread: Floats, count: int) -> tuple[Head, ...]:
    """Return the (layer, head) that ``retrieval_heads`` names.

    mean: of the scores, (layer, head). margin, spread: mean and variance of the difference to the
    higher base rate. count: the number of haystacks, at least ``LEAST_TEXTS``.
    """
    z = NormalDist().inv_cdf(1 - _DOUBT / 2 / mean.size)
    reach = student_quantile(z, count - 1) * np.sqrt(spread / count)
    named = np.argwhere((mean >= LEAST_SCORE) & (margin > reach)).tolist()
    return tuple(sorted(((layer, head) for layer, head in named), key=lambda head: -mean[head]))


def _change(values: Floats, seed: int, ends: tuple[float, float] = (-np.inf, np.inf)) -> LossChange:
    """Return the mean over haystacks with its interval. ends: the least and largest value."""
    if len(values) < LEAST_TEXTS:
        return LossChange(float(values.mean()), None, None)
    low, high = np.clip(np.ravel(bootstrap_interval(values[:, None], seed)), *ends).tolist()
    return LossChange(float(values.mean()), low, high)


class CacheSize(NamedTuple):
    """The bytes of a key/value cache at one length, from which partial caches are computed.

    whole: the bytes if every head keeps every token. least: if no head does.
    added: by layer, the bytes that one key/value head adds by keeping all.
    """

    tokens: int
    whole: int
    least: int
    added: Sequence[int]
    dtype: str


def cache_sizes(model: Model) -> tuple[tuple[CacheSize, ...], tuple[str, ...]]:
    """Return the sizes of the model's cache at long lengths; if not possible, () and a reason."""
    sizes = []
    try:
        counted = counted_model(model)
        for tokens in _CACHED:
            least = short_cache(counted, tokens, ())
            kept = (short_cache(counted, tokens, {(at, 0)}) for at in range(model.info.layers))
            added = tuple(cache.short - least.short for cache in kept)
            sizes.append(CacheSize(tokens, least.whole, least.short, added, least.dtype))
    except (UnsupportedError, UsageError) as error:
        return (), (f"the cache is not counted: {error}",)
    return tuple(sizes), ()


def short_caches(
    info: ModelInfo, sizes: Sequence[CacheSize], named: Sequence[Head]
) -> tuple[ShortCache, ...]:
    """Return the cache sizes if only the query heads ``named`` kept all their keys and values."""
    kept = {(layer, head * info.kv_heads // info.heads) for layer, head in named}
    return tuple(
        ShortCache(tokens, whole, least + sum(added[layer] for layer, _ in kept), dtype)
        for tokens, whole, least, added, dtype in sizes
    )


# Passes over haystacks -------------------------------------------------------------------------


Floats = NDArray[np.float64]
Haystack = tuple[Question, ...]  # the questions about one text
_SHUFFLED = "fetching needles from shuffled haystacks"


class Answered(NamedTuple):
    """The measurements on all heads while a model reads one answer, as means over its tokens.

    heads: (3, layer, head), NaN for a head that was not seen: the retrieval score, that of needles
    that are not asked for, the weight on the first and last tokens. loss: of a token, in nats.
    predicted: the share of the answer's tokens that the model predicts.
    """

    heads: Floats
    loss: float
    predicted: float


def answered(reader: Reader, question: Question, layers: int, heads: int) -> Answered:
    """Measure the heads at each token of an answer; return the means over these tokens."""
    measured = np.full((len(question.right), 3, layers, heads), np.nan)
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
                measured[step, part, layer, : len(top)] = values
    known = np.isfinite(measured)
    with np.errstate(invalid="ignore"):  # a head that was not seen has no mean
        means = np.where(known, measured, 0.0).sum(0) / known.sum(0)
    return Answered(means, float(np.mean(losses)), float(np.mean(predicted)))


class HaystackStudy:
    """Runs one model over haystacks: as it is, without some heads, and split by heads.

    advance: is given the progress. numbers: of the haystacks, which seed what is random about each;
    by default they are counted from 0.
    """

    def __init__(
        self,
        model: Model,
        haystacks: Sequence[Haystack],
        advance: Watch = UNWATCHED,
        numbers: Sequence[int] = (),
    ) -> None:
        self._model, self.haystacks, self._advance = model, haystacks, advance
        self._numbers = numbers or range(len(haystacks))
        self._backend = backend_of(model)

    def fetched(self, seed: int) -> tuple[Floats, list[list[Answered]]]:
        """Return the heads' scores (4, haystack, layer, head), and for each haystack its answers.

        The first axis has the retrieval score, that of needles that are not asked for, the score
        over shuffled haystacks, and the weight on the first and last tokens.
        """
        by_haystack = self.read("fetching needles")
        scores, unasked, near = np.stack([*map(_mean, by_haystack)], 1)
        mixed = [
            tuple(question.shuffled((seed, number)) for question in haystack)
            for number, haystack in zip(self._numbers, self.haystacks, strict=True)
        ]
        others = HaystackStudy(self._model, mixed, self._advance)
        shuffled = [_mean(answers)[0] for answers in others.read(_SHUFFLED)]
        return np.stack([scores, unasked, np.stack(shuffled), near]), by_haystack

    def read(
        self, doing: str, without: Callable[[int], Sequence[Head]] = lambda haystack: ()
    ) -> list[list[Answered]]:
        """Announce ``doing``, run all questions, and return the answers by haystack."""
        info, readers = self._model.info, dict[tuple[Head, ...], Reader]()

        def measured(at: int) -> list[Answered]:
            removed, begun = tuple(without(at)), Tokens.bare(self.haystacks[at][0].ids[:2])
            reader = readers.get(removed)
            if reader is None:
                reader = self._backend.open_reader(begun, begun, "self", removed)
            if not isinstance(self._model, NumpyModel):  # its threads cannot share a reader
                readers[removed] = reader
            asked = self.haystacks[at]
            return [answered(reader, question, info.layers, info.heads) for question in asked]

        self._advance.begin(doing)
        every = in_turn if isinstance(self._model, NumpyModel) else map
        by_haystack = []
        for answers in every(measured, range(len(self.haystacks))):
            require_number("loss", sum(answer.loss for answer in answers), info)
            by_haystack.append(answers)
            self._advance(len(by_haystack) / len(self.haystacks))
        return by_haystack

    def written(self) -> tuple[list[Floats], tuple[str, ...]]:
        """Return by haystack what each head writes towards the answers, (layer, head), and notes.

        It is the direct contribution to logit(answer) − logit(foil) by what a head reads at the
        needle, for one token of one answer; the next haystack takes the next answer. The foil is
        the token at the same place of an answer that is not asked for; a haystack without one is
        left out. The list is empty if contributions cannot be measured.
        """
        written = list[Floats]()
        try:
            attributor = self._backend.open_attributor(Input.of_ids(self.haystacks[0][0].ids[:2]))
            self._advance.begin("measuring what heads write")
            for at, haystack in enumerate(self.haystacks):
                number = self._numbers[at]
                question = haystack[number % len(haystack)]
                step = number % len(question.right)
                end = question.start + step
                foils = (question.ids[position] for position in question.others[step])
                foil = next((token for token in foils if token != question.ids[end]), None)
                if foil is not None:
                    given = Input.of_ids(question.ids[:end])
                    apart = attributor.attribute(given, answer=question.ids[end], foil=foil)
                    values = np.zeros((self._model.info.layers, self._model.info.heads))
                    for (_, layer, head), row in apart.rows.items():
                        values[layer, head] = row[list(question.span)].sum()
                    written.append(values)
                self._advance((at + 1) / len(self.haystacks))
        except (UnsupportedError, UsageError) as error:
            return [], (f"what heads write is not measured: {error}",)
        return written, ()

    def changes(
        self, removed: Sequence[Head], whole: Sequence[Sequence[Answered]], seed: int
    ) -> tuple[Floats, Floats | None] | None:
        """Return the rise of each haystack's loss without some heads, and without random others.

        whole: the answers by haystack with all heads. seed: of the random heads, which are drawn
        for each haystack, as many as ``removed`` or as there are. None if ``removed`` is empty.
        """
        if not removed:
            return None
        losses, heads = _losses(whole), self._model.info.heads_of_layers.items()
        every = [(layer, head) for layer, count in heads for head in range(count)]
        rest = [head for head in every if head not in removed]

        def drawn(at: int) -> list[Head]:
            order = np.random.default_rng((seed, self._numbers[at])).permutation(len(rest))
            return sorted(rest[head] for head in order[: len(removed)])

        lost = self.read("ablating retrieval heads", lambda at: sorted(removed))
        random = self.read("ablating random heads", drawn) if rest else None
        return _losses(lost) - losses, None if random is None else _losses(random) - losses


def _mean(answers: Sequence[Answered]) -> Floats:
    mean: Floats = np.mean([answer.heads for answer in answers], 0)
    return mean


def _losses(by_haystack: Sequence[Sequence[Answered]]) -> Floats:
    return np.array([np.mean([answer.loss for answer in answers]) for answers in by_haystack])
