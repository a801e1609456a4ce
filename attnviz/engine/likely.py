"""The likeliest outcomes of a model: its next tokens, or the span of an answer in a text.

A question-answering model gives each token a logit as the start and one as the end of the answer.
Both are chosen among the tokens of the context (Devlin et al. 2019, "BERT", section 4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnviz.errors import UsageError
from attnviz.records import PAIR, Tokens

_Number = TypeVar("_Number", bound=np.floating)

Texts = Callable[[Sequence[int]], tuple[str, ...]]
"""Returns the text of each token id."""


class Likely(NamedTuple):
    """A possible next token and its probability in [0, 1]. text: the token. id: its number."""

    text: str
    id: int
    probability: float


def likeliest(logs: NDArray[np.float64], texts: Texts, count: int = 5) -> tuple[Likely, ...]:
    """Return the ``count`` likeliest tokens of log-probabilities (vocab,), the likeliest first."""
    some = np.argpartition(-logs, min(count, len(logs)) - 1)[:count]  # sorting all takes longer
    ids = some[np.lexsort((some, -logs[some]))].tolist()
    pairs = zip(texts(ids), ids, strict=True)
    return tuple(Likely(text, number, float(np.exp(logs[number]))) for text, number in pairs)


def log_softmax(logits: NDArray[_Number]) -> NDArray[_Number]:
    """Return the log-probabilities (..., vocab) of logits, in the dtype of the logits."""
    logs: NDArray[_Number] = logits - logits.max(-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    return logs


# The answer of a question-answering model ---------------------------------------------------------

START_END = ("start", "end")
"""The two labels of a question-answering model."""

ALONE = "the answer is sought in the question itself: give its context with --and"
"""The note on a question without a context."""


class AnswerSpan(NamedTuple):
    """An answer's first and last token, and their probabilities among the tokens of the context."""

    start: int
    end: int
    start_probability: float
    end_probability: float


def answer_places(text: Tokens) -> list[int]:
    """Return the tokens among which an answer is: the second text's, or all plain ones."""
    if text.joined:
        tokens = [at for at, region in enumerate(text.regions) if region == PAIR[1]]
    else:
        tokens = [at for at, special in enumerate(text.special) if not special]
    if not tokens:
        raise UsageError("the text has no token that could be an answer: expected at least 1")
    return tokens


def log_chances_of_places(logits: NDArray[np.float64], text: Tokens) -> NDArray[np.float64]:
    """Return ln p (..., token, 2) of each token as start and as end; -inf for what is no answer."""
    places = answer_places(text)
    logs = np.full(logits.shape, -np.inf)
    logs[..., places, :] = log_softmax(logits[..., places, :].swapaxes(-1, -2)).swapaxes(-1, -2)
    return logs


def likeliest_answer(logs: NDArray[np.float64]) -> AnswerSpan:
    """Return the answer of the largest p(start) · p(end), start ≤ end, the first of equal ones."""
    both = np.triu(np.exp(logs[:, 0])[:, None] * np.exp(logs[:, 1]))
    start, end = (int(at) for at in np.unravel_index(both.argmax(), both.shape))
    return AnswerSpan(start, end, float(np.exp(logs[start, 0])), float(np.exp(logs[end, 1])))


def no_foil() -> UsageError:
    """Return the error for ``--foil`` with a question-answering model, which has no foils."""
    return UsageError(
        "--foil: the start and the end of an answer are chosen among tokens, not against each "
        "other; leave it out"
    )
