"""What is said and shown of the words that a prediction needs."""

from __future__ import annotations

import math

from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, listed
from attnviz.draw.provenance import probability
from attnviz.draw.signed import ranked_table
from attnviz.inspect.why.inputs import InputEffects
from attnviz.inspect.why.records import WhyReport
from attnviz.inspect.why.words import next_word, placed, quoted
from attnviz.records import Tokens

_NAMED, _MAIN = 3, 0.25
"""The most words that the finding names, and the least share of the largest effect of each."""

_ERRORS = 3.0
"""How many standard errors an effect must be from zero to be named."""

_SMALL = 0.01
"""The least effect, in nats or logits, that is named: less may be rounding in the model."""

_LEAST = 3


def input_finding(report: WhyReport, inputs: InputEffects) -> str:
    """Return which words the prediction needs, and by how much, in a sentence."""
    first = report.first
    found, tokens = first.found, first.given.predicted
    word = quoted(first.answer)
    if found.span is not None:
        word = f"{first.answer.capitalize()} at {placed(tokens, found.position)}"
    elif not found.labels:
        word = next_word(tokens, found.position, first.answer)
    what = "ln p"
    if first.foil is not None:
        what = f"{quoted(first.answer)} over {quoted(first.foil)}"
    if report.model.weights == "random":
        return f"Random weights: which words the prediction {word} needs is arbitrary."
    if not inputs.converged:
        return (
            f"Integrated gradients did not converge: after {inputs.steps} steps the shares of the "
            f"words are {inputs.gap:.0%} off their sum, so none is named."
        )
    effects, order = inputs.replaced, inputs.ordered
    least = max(_MAIN * max((effects[at] for at in order), default=0.0), _SMALL)
    clear = [at for at in order if effects[at] >= least and _stands(inputs, at)][:_NAMED]
    if inputs.steps == 0 and first.foil is None:
        word += f" {probability(math.exp(inputs.own))}"
    rise = _rise(inputs, tokens, what)
    if not clear:
        none = "there is no single word in the prompt without which"
        return f"{word}: {none} {what} clearly falls.{rise}"
    names = listed([placed(tokens, at) for at in clear], "and" if inputs.steps else "or")
    falls = listed([_short(effects[at]) for at in clear])
    rest = max((effects[at] for at in order if at not in clear), default=0.0)
    others = f"; no other by more than {_short(max(rest, _SMALL))}" if rest > 0 else ""
    if rest > effects[clear[-1]]:
        others += ", which its error explains"
    if inputs.steps:
        way, verb = "above" if inputs.own >= 0 else "below", "give" if clear[1:] else "gives"
        own = f"{_short(abs(inputs.own))} {way} that of mean words"
        return f"{word}: of {what}, {own}, {names} {verb} {falls}.{rise}"
    return f"{word}: with another word for {names}, {what} falls by {falls}{others}.{rise}"


def _rise(inputs: InputEffects, tokens: Tokens, what: str) -> str:
    """Return a sentence on the word that harms the prediction, if by more than any other helps.

    what: the name of the quantity that words are said to change.
    """
    at = min(inputs.ordered, key=lambda at: inputs.replaced[at], default=None)
    if at is None or at != inputs.ordered[0] or inputs.replaced[at] > -_SMALL:
        return ""
    if not _stands(inputs, at):
        return ""
    name, rise = placed(tokens, at), _short(-float(inputs.replaced[at]))
    if inputs.steps:
        return f" {name} gives -{rise}."
    return f" With another word for {name}, {what} rises by {rise}."


def _short(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _stands(inputs: InputEffects, token: int) -> bool:
    """Return whether the effect of a token is further from zero than its error explains."""
    return bool(inputs.steps) or abs(inputs.replaced[token]) > _ERRORS * inputs.errors[token]


def input_table(report: WhyReport, inputs: InputEffects) -> doc.Table:
    """Return a table of the words, the one that the prediction needs most first."""
    tokens = report.first.given.predicted
    order = inputs.ordered
    values = [float(inputs.replaced[at]) for at in order]
    scale = NumberScale.over(values)
    names = [placed(tokens, at, quotes=False) for at in order]
    unit = "ln p" if inputs.quantity == "log_probability" else "the logit difference"
    if inputs.steps:
        title: doc.Words = [
            (f"Share in {unit}, integrated gradients", True),
            ("from the mean embedding", False),
            (f"{inputs.steps} steps, gap {inputs.gap:.2%}", False),
        ]
        columns = [("share" + scale.times, [scale.text(one) for one in values])]
    else:
        title = [
            (f"What {unit} loses without a word", True),
            (f"replaced by {inputs.draws} others", False),
            ("hidden: no other token attends to it", False),
        ]
        columns = [
            ("replaced" + scale.times, [scale.text(one) for one in values]),
            ("±SE", [scale.text(float(inputs.errors[at])).lstrip("+") for at in order]),
            ("hidden", [scale.text(float(inputs.hidden[at])) for at in order]),
        ]
    table = ranked_table("", names, values, scale, columns)
    return table._replace(title=title, least=_LEAST)
