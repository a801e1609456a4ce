"""Let a language model continue a text token by token, and record where its heads look.

Temperature divides the scores before the softmax (Ackley et al. 1985). Top-k keeps the k likeliest
tokens (Fan et al. 2018, "Hierarchical Neural Story Generation"); top-p keeps the fewest tokens that
together reach the probability p (Holtzman et al. 2020, "The Curious Case of Neural Text
Degeneration").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnviz.engine.backend import backend_of
from attnviz.engine.head_run import Head
from attnviz.engine.likely import Likely, Texts, likeliest, log_softmax
from attnviz.errors import UsageError
from attnviz.models.model import Model, Reader, TwoStackModel, require_number
from attnviz.records import Floats, Kind, Tokens


@dataclass(frozen=True)
class Sampling:
    """The options of text generation: how each next token is chosen.

    tokens: the most. temperature: 0 is greedy. top_k, top_p: choose among the k likeliest, or the
    fewest of this probability; None: all. seed: one number is drawn a token. Raises UsageError.
    """

    tokens: int = 40
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UsageError(f"expected --tokens of at least 1, got {self.tokens}")
        if not 0 <= self.temperature < np.inf:
            raise UsageError(f"expected a --temperature of 0 or more, got {self.temperature:g}")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"expected a --top-k of at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"expected a --top-p above 0 and up to 1, got {self.top_p:g}")
        if self.seed < 0:
            raise UsageError(f"expected a --seed of 0 or more, got {self.seed}")

    @property
    def greedy(self) -> bool:
        """Return True if always the likeliest token is chosen, without a random number."""
        return self.temperature == 0

    def choose(self, scores: Floats, generator: np.random.Generator) -> int:
        """Return the id of the next token. scores: the logits (vocab,) of all tokens."""
        if self.greedy:
            return int(np.argmax(scores))
        order = np.argsort(-scores, kind="stable")[: self.top_k]
        powers = np.exp((scores[order] - scores[order[0]]) / self.temperature)
        shares = np.cumsum(powers / powers.sum())
        if self.top_p is not None:
            shares = shares[: int(np.searchsorted(shares, self.top_p)) + 1]
        drawn = generator.random() * shares[-1]
        return int(order[min(np.searchsorted(shares, drawn, side="right"), len(shares) - 1)])


@dataclass(frozen=True, eq=False)
class Step:
    """One generated token, the last query ``place`` before it, and where heads attend from there.

    probability: at temperature 1, in [0, 1]. likely: the five likeliest tokens. entropy: in nats.
    rows: weights (head, key) of each layer, over keys 0 to ``place`` or the encoder's text.
    """

    place: int
    id: int
    text: str
    probability: float
    likely: tuple[Likely, ...]
    entropy: float
    rows: Mapping[int, Floats]
    ended: bool = False


def generate(
    model: Model,
    tokens: Tokens,
    sampling: Sampling,
    *,
    kind: Kind | None = None,
    removed: Collection[Head] = (),
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Step]:
    """Yield each generation step as ``model`` continues ``tokens``, as soon as its token is known.

    tokens: the prompt, or an encoder's text. kind: the observed attention. removed: heads at zero.
    It ends with an end token, a full context, or when ``cancelled()``. Raises UnsupportedError for
    a model that predicts no next token, UsageError for a full prompt and unknown heads.
    """
    kind = written_kind(model, kind)
    context = written_context(model, kind)
    prompt = begun(model, tokens, kind)
    if not len(prompt):
        raise UsageError("the prompt has no tokens: expected at least one word")
    if context is not None and len(prompt) >= context:
        raise UsageError(
            f"the prompt has {len(prompt):,} tokens and the context of {model.info.name!r} ends at "
            f"{context:,}: there is no room to write, shorten it"
        )
    reader = backend_of(model).open_reader(tokens, prompt, kind, removed)
    ends: frozenset[int] = getattr(model, "end_ids", frozenset())
    room = sampling.tokens if context is None else min(sampling.tokens, context - len(prompt))
    return _steps(
        model, reader, ids=prompt.ids, sampling=sampling, room=room, ends=ends, cancelled=cancelled
    )


def written_kind(model: Model, kind: Kind | None = None) -> Kind:
    """Return the kind of attention to observe while a model generates text.

    Its queries are the generated tokens. kind: a requested kind, which is checked; None takes
    ``self`` or, of an encoder–decoder, ``decoder``. Raises UsageError for a kind that has no such
    queries.
    """
    kinds: tuple[Kind, ...] = ("self",) if "self" in model.kinds else ("decoder", "cross")
    if kind is not None and kind not in kinds:
        raise UsageError(
            f"the {kind} attention of {model.info.name!r} writes nothing: expected --kind "
            f"{' or '.join(kinds)}"
        )
    return kind or kinds[0]


def written_context(model: Model, kind: Kind) -> int | None:
    """Return how many tokens prompt and generated text may have together; None for no limit."""
    if kind != "self" and isinstance(model, TwoStackModel):
        return model.target_context
    return model.context


def begun(model: Model, tokens: Tokens, kind: Kind) -> Tokens:
    """Return the first tokens of the generated text: the prompt, or a decoder's start token."""
    if kind != "self" and isinstance(model, TwoStackModel):
        return model.greedy_target(tokens, 1)
    return tokens


def written(prompt: Tokens, steps: Sequence[Step], region: str = "written") -> Tokens:
    """Return the prompt's tokens and the generated ones, a region if the prompt has regions."""
    return Tokens(
        (*prompt.ids, *(step.id for step in steps)),
        (*prompt.texts, *(step.text for step in steps)),
        (*prompt.special, *(step.ended for step in steps)),
        regions=(*prompt.regions, *(region for _ in steps if prompt.regions)),
    )


def _steps(
    model: Model,
    reader: Reader,
    ids: tuple[int, ...],
    sampling: Sampling,
    room: int,
    ends: Collection[int],
    cancelled: Callable[[], bool],
) -> Iterator[Step]:
    generator = np.random.default_rng(sampling.seed)
    texts: Texts | None = None
    for _ in range(room):
        if cancelled():
            return
        raw, rows = reader.read(ids)
        scores = raw.astype(np.float64)
        require_number("prediction", float(scores.max()), model.info)
        logs = log_softmax(scores)
        chosen = sampling.choose(scores, generator)
        texts = texts or model.vocabulary().texts
        shares = np.exp(logs)
        yield Step(
            place=len(ids) - 1,
            id=chosen,
            text=texts([chosen])[0],
            probability=float(shares[chosen]),
            likely=likeliest(logs, texts),
            entropy=float(-(shares * np.where(shares > 0, logs, 0.0)).sum()),
            rows=rows,
            ended=chosen in ends,
        )
        if chosen in ends:
            return
        ids = (*ids, chosen)
