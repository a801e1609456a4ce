"""Which words of a prompt a prediction needs: what it loses with another word there, or none.

Each word is replaced by others, and hidden: no other token attends to it, in any head, while all
places stay. Both are runs of the model, not estimates. A text that is too long for that has
integrated gradients instead, see ``integrated``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.attribution.parts import Attribution, Attributor
from attnviz.engine.backend import backend_of
from attnviz.engine.likely import answer_places, log_softmax
from attnviz.engine.observer import to_numpy
from attnviz.errors import UsageError
from attnviz.models.model import Model
from attnviz.progress import Advance
from attnviz.records import Input

LONG = 128
"""The most tokens of a text whose words are replaced and hidden one by one."""

_TOKENS, _LOGITS = 4096, 2**24
"""The most tokens, and the most logits, of texts that run together."""


@dataclass(frozen=True)
class InputEffects:
    """The change of a prediction without each token of its text, in nats or logits.

    quantity: ``log_probability`` of the answer, or ``logit_difference`` of answer and foil.
    own: that quantity over the text as it is. draws: how many other words replace each token.
    replaced, errors: (token,), ``own`` minus the mean with another word there, and its standard
        error; NaN for special tokens, and for the masked token of a masked model.
    hidden: (token,), ``own`` minus the quantity if no other token attends to this one.
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
        about: dict[str, Any] = {"draws": self.draws}
        columns = {"replaced": self.replaced, "se": self.errors, "hidden": self.hidden}
        if self.gap is not None:
            about = {"baseline": "mean row", "steps": self.steps, "gap": self.gap}
            about["converged"] = self.converged
            columns = {"integrated": self.replaced}
        tokens = [
            {"index": at, **{name: values[at] for name, values in columns.items()}}
            for at in range(len(self.replaced))
        ]
        return {"quantity": self.quantity, "value": self.own, **about, "tokens": tokens}

    @property
    def ordered(self) -> list[int]:
        """Return the indices of the measured tokens, the largest effect first."""
        tried = np.flatnonzero(np.isfinite(self.replaced)).tolist()
        return sorted(tried, key=lambda at: -abs(self.replaced[at]))


def input_effects(
    model: Model,
    given: Input,
    attribution: Attribution,
    others: Sequence[int],
    advance: Advance = lambda share: None,
) -> InputEffects:
    """Measure how much a prediction loses without each token of its text.

    attribution: the logit of the prediction. others: the ids of the words that replace each token.
    Raises UsageError for an encoder–decoder, UnsupportedError if tokens cannot be hidden, or if a
    long text needs gradients and NumPy runs the model.
    """
    if given.target is not None:
        raise UsageError("--inputs reads models of one stack: leave it out for an encoder-decoder")
    if len(given.text) > LONG:
        return _integrated(model, given, attribution)
    if len(others) < 2:
        raise UsageError(
            "--inputs: the vocabulary has fewer than 2 words that are not in the prompt: nothing "
            "could stand in a word's place"
        )
    attributor = backend_of(model).open_attributor(given)
    read = _Reader(attributor, attribution, len(given.text))
    (own,) = read.values([given])
    text = given.text
    plain = np.isin(text.ids, model.vocabulary().plain)
    tried = np.flatnonzero(plain & ~np.array(text.special)).tolist()
    rows = [given.masked(at, other) for at in tried for other in others]
    values = np.empty(len(rows))
    for part in read.parts(len(rows)):
        values[part] = read.values(rows[part])
        advance((part.stop or 0) / len(rows))
    drawn = own - values.reshape(len(tried), len(others))
    replaced, errors, hidden = (np.full(len(text), np.nan) for _ in range(3))
    replaced[tried] = drawn.mean(1)
    errors[tried] = drawn.std(1, ddof=1) / np.sqrt(len(others))
    for part in read.parts(len(text)):
        places = range(len(text))[part]
        hidden[part] = own - read.values([given] * len(places), places)
    return InputEffects(
        quantity=_quantity(attribution),
        own=float(own),
        draws=len(others),
        replaced=replaced,
        errors=errors,
        hidden=hidden,
    )


def _quantity(attribution: Attribution) -> str:
    return "log_probability" if attribution.foil is None else "logit_difference"


class _Reader:
    """Runs texts of one length, and returns the quantity that is explained of each."""

    def __init__(self, attributor: Attributor, attribution: Attribution, tokens: int) -> None:
        self._attributor = attributor
        self._attribution = attribution
        self._tokens = tokens
        self._rows = 1

    def values(self, texts: Sequence[Input], hidden: Sequence[int] = ()) -> NDArray[np.floating]:
        """Return ln p(answer), or logit(answer) − logit(foil), of each text: (text,).

        hidden: see ``Attributor.logits_of_texts``.
        """
        asked = self._attribution
        logits = self._attributor.logits_of_texts(texts, asked.position, hidden)
        self._rows = max(min(_TOKENS // self._tokens, _LOGITS // logits.shape[1]), 1)
        own = logits[:, asked.answer]
        if asked.foil is not None:
            own = own - logits[:, asked.foil]
        elif asked.span is None and not asked.several:
            on_host = isinstance(logits, np.ndarray)
            own = log_softmax(logits)[:, asked.answer] if on_host else own - logits.logsumexp(-1)
        found: NDArray[np.float64] = to_numpy(own).astype(np.float64, copy=False)
        return -np.logaddexp(0, -found) if asked.several and asked.foil is None else found

    def parts(self, texts: int) -> Iterator[slice]:
        """Yield slices of ``texts`` texts; the texts of one slice run together."""
        for start in range(0, texts, self._rows):
            yield slice(start, min(start + self._rows, texts))


def _integrated(model: Model, given: Input, asked: Attribution) -> InputEffects:
    """Return integrated gradients in place of replaced words, for a long text."""
    patchable = backend_of(model).open_patchable(model.kinds[0], given, labels=True, several=True)
    places = answer_places(given.text) if patchable.answers else []
    from torch import Tensor  # torch only where needed
    from torch.nn.functional import logsigmoid

    from attnviz.engine.attribution.on_torch import integrated_gradients

    def measure(logits: Tensor) -> Tensor:
        if places:
            return logits[:, places, asked.answer].log_softmax(-1)[:, places.index(asked.position)]
        logits = logits[:, 0]
        answer = logits[:, asked.answer]
        if asked.foil is not None:
            return answer - logits[:, asked.foil]
        return logsigmoid(answer) if asked.several else logits.log_softmax(-1)[:, asked.answer]

    place = None if places else asked.position
    shares = integrated_gradients(patchable, given, place, measure)
    none = np.full(len(given.text), np.nan)
    return InputEffects(
        quantity=_quantity(asked),
        own=shares.change,
        draws=0,
        replaced=shares.shares,
        errors=none,
        hidden=none,
        steps=shares.steps,
        gap=shares.gap,
        converged=shares.converged,
    )
