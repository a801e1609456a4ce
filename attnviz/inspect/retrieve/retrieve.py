"""Answers ``retrieve``: which heads fetch a needle, and what the answer's loss is without them.

Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality": a head scores at
a token of the answer if the token that it attends to most stands in the needle and is the one that
is generated. The answer is given (teacher forcing), so that every question counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnviz.count.params.head_cost import ShortCache, counted_model, short_cache
from attnviz.engine.head_run import Head
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.retrieve import haystacks as hay
from attnviz.inspect.retrieve.report import STREAMS, HeadRetrieval, LossChange, RetrieveReport
from attnviz.inspect.retrieve.request import RetrieveRequest
from attnviz.inspect.retrieve.study import Floats, HaystackStudy
from attnviz.measures.bootstrap import LEAST_TEXTS, bootstrap_interval, few_note, student_quantile
from attnviz.models.memory import require_room
from attnviz.models.model import Model, cannot_write
from attnviz.models.work import CORPUS_WORK, Work
from attnviz.progress import UNWATCHED, Watch
from attnviz.records import ModelInfo

if TYPE_CHECKING:
    from attnviz.corpus import TextCorpus

LEAST_SCORE = 0.1
"""The least score of a retrieval head (Wu et al. 2024, section 2)."""

_DOUBT = 0.05
_CACHED = (32_768, 131_072)
_RUNS = 5
"""The runs of a haystack: as it is, shuffled, taken apart, without named and random heads."""

_CACHES = 3
"""The keys and values in memory at once: a text's, those of a pass that is compared, the next's."""


def work(corpus: TextCorpus | None, request: RetrieveRequest) -> Work:
    """Return the planned work over haystacks, from which the loader chooses NumPy or torch.

    corpus: its texts are the haystacks; None for haystacks that the request describes.
    """
    if corpus is not None:
        return CORPUS_WORK
    lengths, runs = request.tokens or hay.DEFAULT_LENGTHS, _RUNS * request.haystacks
    return Work(runs * sum(lengths), texts=runs * len(lengths))


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
    lengths, info, seed = checked_lengths(model, request), model.info, request.seed
    made_of = hay.material(model, sentences, request)
    haystacks = [
        hay.questions(made_of, length, number, seed)
        for length in lengths
        for number in range(request.haystacks)
    ]
    study = HaystackStudy(model, haystacks, advance)
    (scores, unasked, shuffled, near), found = study.fetched(seed)
    named = retrieval_heads(scores, unasked, shuffled)
    pieces, notes = study.written()
    written = np.mean(pieces, 0) if pieces else None
    heads = []
    for layer, head in np.argwhere(np.isfinite(scores[0])).tolist():
        of, own_near = (slice(None), layer, head), float(near[:, layer, head].mean())
        own = HeadRetrieval(
            layer,
            head,
            *_change(scores[of], seed, (0.0, 1.0)),
            unasked=float(unasked[of].mean()),
            shuffled=float(shuffled[of].mean()),
            written=None if written is None else float(written[layer, head]),
            near=own_near,
            retrieves=(layer, head) in named,
            streams=own_near >= STREAMS and (layer, head) not in named,
        )
        heads.append(own)
    heads.sort(key=lambda head: -head.score)
    answers = [answer for of_haystack in found for answer in of_haystack]
    asked = [question for haystack in study.haystacks for question in haystack]
    scores_at: dict[tuple[int, int], list[float]] = {}
    for question, answer in zip(asked, answers, strict=True):
        score = answer.heads[0][heads[0].place]
        scores_at.setdefault((question.length, question.depth), []).append(score)
    changes = study.changes(named, found, seed) or (None, None)
    without, random = (None if rises is None else _change(rises, seed) for rises in changes)
    sizes, more = cache_sizes(model) if named else ((), ())
    size = sum(map(len, made_of.sentences))
    short = size < lengths[-1] and f"the haystack has {size:,} tokens and repeats: --haystack FILE"
    return RetrieveReport(
        model=info,
        lengths=lengths,
        haystacks=len(found),
        questions=len(asked),
        tokens=sum(len(question.right) for question in asked),
        predicted=float(np.mean([answer.predicted for answer in answers])),
        loss=float(np.mean([answer.loss for answer in answers])),
        heads=tuple(heads),
        cells={at: float(np.mean(scores_at[at])) for at in sorted(scores_at)},
        without=without,
        random=random,
        caches=short_caches(info, sizes, named),
        top=request.top,
        ablated=tuple(sorted(named)),
        chat=request.chat,
        source="built-in passages" if request.haystack is None else request.haystack.name,
        notes=(*few_note(len(found), "haystacks"), *([short] if short else []), *notes, *more),
        seed=seed,
        index_base=request.index_base,
    )


def checked_lengths(model: Model, request: RetrieveRequest) -> tuple[int, ...]:
    """Return the haystacks' lengths in tokens; raise as ``retrieve`` does if they do not fit."""
    if model.kinds != ("self",) or not getattr(model, "causal", True):
        raise cannot_write(model.info)
    lengths = hay.lengths_of(model, request)
    info = model.info
    cached = 2 * 4 * info.layers * info.kv_heads * info.head_dim * lengths[-1]
    what = f"the keys and values of {lengths[-1]:,} tokens take"
    require_room(what, _CACHES * cached, "give shorter --lengths")
    return lengths


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

    tokens: the length. whole: the bytes if every head keeps every token. least: if no head does.
    each: by layer, the bytes that one key/value head adds by keeping all. dtype: of the numbers.
    """

    tokens: int
    whole: int
    least: int
    each: Sequence[int]
    dtype: str


def cache_sizes(model: Model) -> tuple[tuple[CacheSize, ...], tuple[str, ...]]:
    """Return the sizes of the model's cache at long lengths; if not possible, () and a reason."""
    found = []
    try:
        counted = counted_model(model)
        for tokens in _CACHED:
            least = short_cache(counted, tokens, ())
            kept = (short_cache(counted, tokens, {(at, 0)}) for at in range(model.info.layers))
            each = tuple(one.short - least.short for one in kept)
            found.append(CacheSize(tokens, least.whole, least.short, each, least.dtype))
    except (UnsupportedError, UsageError) as error:
        return (), (f"the cache is not counted: {error}",)
    return tuple(found), ()


def short_caches(
    info: ModelInfo, sizes: Sequence[CacheSize], named: Sequence[Head]
) -> tuple[ShortCache, ...]:
    """Return the cache sizes if only the query heads ``named`` kept all their keys and values."""
    kept = {(layer, head * info.kv_heads // info.heads) for layer, head in named}
    return tuple(
        ShortCache(
            one.tokens, one.whole, one.least + sum(one.each[layer] for layer, _ in kept), one.dtype
        )
        for one in sizes
    )
