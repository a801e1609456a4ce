"""Which words of a prompt a prediction needs: what it loses with another word there, or none.

Each word is replaced by others, and hidden: no other token attends to it, in any head, while all
places stay. Both are runs of the model, not estimates. A text that is too long for that has
integrated gradients instead, see ``integrated``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.values import json_number
from attnviz.engine.answers import answer_places
from attnviz.engine.attribution.parts import Attribution, Attributor
from attnviz.engine.backend import backend_of
from attnviz.engine.likely import log_softmax
from attnviz.errors import UsageError
from attnviz.models.model import Model
from attnviz.progress import Advance
from attnviz.records import Input, Tokens

LONG = 128
"""The most tokens of a text whose words are replaced and hidden one by one."""

_TOKENS, _LOGITS = 4096, 2**24
"""The most tokens, and the most logits, of texts that run together."""


@dataclass(frozen=True)
class InputEffects:
    """What a prediction loses without each token of its text, in nats or logits.

    quantity: ``log_probability`` of the answer, or ``logit_difference`` of answer and foil.
    own: that quantity over the text as it is. draws: how many other words replace each.
    replaced, errors: (token,), own less the mean with another word there, and its standard error;
        NaN for special tokens, and for the masked token of a masked model.
    hidden: (token,), own less the quantity where no other token attends to this one.
    steps, gap: of integrated gradients, whose shares are ``replaced`` then, without errors and
        ``hidden``; 0 and None where the words were replaced.
    """

    quantity: str
    own: float
    draws: int
    replaced: NDArray[np.float64]
    errors: NDArray[np.float64]
    hidden: NDArray[np.float64]
    steps: int = 0
    gap: float | None = None
    converged: bool = True

    def data(self) -> dict[str, Any]:
        """Return the JSON object ``inputs`` of ``attnviz.why/1``."""
        names = ("integrated",) if self.steps else ("replaced", "se", "hidden")
        columns = zip(self.replaced, self.errors, self.hidden, strict=True)
        tokens = [
            {"index": at, **{n: json_number(float(x)) for n, x in zip(names, row, strict=False)}}
            for at, row in enumerate(columns)
        ]
        about: dict[str, Any] = {"quantity": self.quantity, "value": json_number(self.own)}
        if self.gap is not None:
            about |= {"baseline": "mean row", "steps": self.steps, "gap": json_number(self.gap)}
            about["converged"] = self.converged
        else:
            about["draws"] = self.draws
        return {**about, "tokens": tokens}

    @property
    def ordered(self) -> list[int]:
        """Return the indices of the tokens that were tried, the largest effect first."""
        tried = np.flatnonzero(np.isfinite(self.replaced)).tolist()
        return sorted(tried, key=lambda at: -abs(self.replaced[at]))


def input_effects(
    model: Model,
    given: Input,
    found: Attribution,
    others: Sequence[int],
    advance: Advance = lambda share: None,
) -> InputEffects:
    """Return what a prediction loses without each token of its text.

    found: the logit of the prediction. others: the ids of the words that replace each token.
    Raises UsageError for an encoder–decoder, UnsupportedError if tokens cannot be hidden, or if a
    long text needs gradients and NumPy runs the model.
    """
    if given.target is not None:
        raise UsageError("--inputs reads models of one stack: leave it out for an encoder-decoder")
    if len(given.text) > LONG:
        return _integrated(model, given, found)
    if len(others) < 2:
        raise UsageError(
            "--inputs: the vocabulary has fewer than 2 words that are not in the prompt: nothing "
            "could stand in a word's place"
        )
    attributor = backend_of(model).open_attributor(given)
    read = _Reader(attributor, found, len(given.text))
    (own,) = read.values([given])
    text = given.text
    plain = np.isin(text.ids, model.vocabulary().plain)
    tried = np.flatnonzero(plain & ~np.array(text.special)).tolist()
    rows = [replace(given, text=_with(text, at, other)) for at in tried for other in others]
    values = np.empty(len(rows))
    for part in read.parts(len(rows)):
        values[part] = read.values(rows[part])
        advance((part.stop or 0) / len(rows))
    drawn = own - values.reshape(len(tried), len(others))
    replaced, errors, hidden = (np.full(len(text), np.nan) for _ in range(3))
    replaced[tried] = drawn.mean(1)
    errors[tried] = drawn.std(1, ddof=1) / np.sqrt(len(others))
    every = range(len(text))
    for part in read.parts(len(text)):
        places = every[part]
        hidden[part] = own - read.values([given] * len(places), places)
    quantity = "log_probability" if found.foil is None else "logit_difference"
    return InputEffects(quantity, float(own), len(others), replaced, errors, hidden)


class _Reader:
    """Runs texts of one length, and returns the quantity that is explained of each."""

    def __init__(self, attributor: Attributor, found: Attribution, tokens: int) -> None:
        self._attributor = attributor
        self._found = found
        self._tokens = tokens
        self._rows = 1

    def values(self, texts: Sequence[Input], hidden: Sequence[int] = ()) -> NDArray[np.float64]:
        """Return ln p(answer), or logit(answer) − logit(foil), of each text: (text,).

        hidden: see ``Attributor.logits_of_texts``.
        """
        logits = self._attributor.logits_of_texts(texts, self._found.position, hidden)
        self._rows = max(min(_TOKENS // self._tokens, _LOGITS // logits.shape[1]), 1)
        answer, foil = self._found.answer, self._found.foil
        if foil is not None:
            return logits[:, answer] - logits[:, foil]
        if self._found.several:
            return -np.logaddexp(0, -logits[:, answer])
        logs = logits if self._found.span is not None else log_softmax(logits)
        found: NDArray[np.float64] = logs[:, answer]
        return found

    def parts(self, texts: int) -> Iterator[slice]:
        """Yield slices of ``texts`` texts; the texts of one slice run together."""
        for start in range(0, texts, self._rows):
            yield slice(start, min(start + self._rows, texts))


def _with(tokens: Tokens, place: int, other: int) -> Tokens:
    ids = (*tokens.ids[:place], other, *tokens.ids[place + 1 :])
    return replace(tokens, ids=ids)


def _integrated(model: Model, given: Input, found: Attribution) -> InputEffects:
    """Return integrated gradients in place of replaced words, for a long text."""
    patchable = backend_of(model).open_patchable(model.kinds[0], given, labels=True, several=True)
    places = answer_places(given.text) if patchable.answers else []
    from torch import Tensor  # torch only where needed
    from torch.nn.functional import logsigmoid

    from attnviz.engine.attribution.integrated import integrated_gradients

    def measure(logits: Tensor) -> Tensor:
        if places:
            return logits[:, places, found.answer].log_softmax(-1)[:, places.index(found.position)]
        logits = logits[:, 0]
        answer = logits[:, found.answer]
        if found.foil is not None:
            return answer - logits[:, found.foil]
        return logsigmoid(answer) if found.several else logits.log_softmax(-1)[:, found.answer]

    place = None if places else found.position
    shares = integrated_gradients(patchable, given, place, measure)
    none = np.full(len(given.text), np.nan)
    return InputEffects(
        quantity="log_probability" if found.foil is None else "logit_difference",
        own=shares.change,
        draws=0,
        replaced=shares.shares,
        errors=none,
        hidden=none,
        steps=shares.steps,
        gap=shares.gap,
        converged=shares.converged,
    )
