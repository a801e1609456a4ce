"""From a request to a report: everything that the other questions say of one head."""

from __future__ import annotations

import re
from dataclasses import replace

from attnviz.engine.selection import single_head
from attnviz.inspect.head.job import CARD_TEXT, Steps, head_cards
from attnviz.inspect.head.records import HeadCard
from attnviz.inspect.head.request import HeadRequest
from attnviz.inspect.patterns.probes import reckoned_probe_tokens
from attnviz.models.model import Model
from attnviz.models.resolve import LoadOptions, reckoned_tokens
from attnviz.progress import UNWATCHED, Watch
from attnviz.prompts.study import load_apart
from attnviz.texts import Texts

_NAME = re.compile(r"\s*([Ll]?-?\d+\s*[.Hh]\s*-?\d+|[Hh]?-?\d+)\s*")


def names_a_head(typed: str) -> bool:
    """Return whether a string has the form of a head's name, such as ``L1H2``."""
    return _NAME.fullmatch(typed) is not None


def reckoned(texts: Texts) -> int:
    """Return about how many tokens the model runs on for a head's card.

    texts: over which the head is ablated.
    """
    return reckoned_probe_tokens(None, None) + sum(map(reckoned_tokens, texts.texts))


def open_model(name: str, options: LoadOptions, texts: Texts) -> Model:
    """Load a model with the faster of NumPy and torch to summarise one head on a card.

    texts: over which the head is ablated; their length decides which is faster.
    """
    return load_apart(name, replace(options, tokens=reckoned(texts), changed=True))


def head(
    model: Model,
    text: str | None,
    texts: Texts,
    request: HeadRequest,
    *,
    advance: Watch = UNWATCHED,
) -> HeadCard:
    """Return the card of one head: a one-page summary of all that is measured on it.

    text: of its map and of the prediction; None for a short one. texts: over which it is ablated,
        and in which its strongest links are searched. advance: is given the progress.
    The card of a run that Ctrl-C ended contains what was measured until then; ``complete`` is
    False. Raises UsageError if the request does not name a single head, and for texts that do not
    fit the model, UnsupportedError if its attention cannot be observed.
    """
    info = model.info
    place = single_head(request.head, info.layers, info.heads, request.index_base)
    steps = Steps(advance)
    (card,) = head_cards(model, [place], text or CARD_TEXT, texts, request, steps)
    return replace(card, asked=text is not None)
