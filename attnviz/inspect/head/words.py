"""Words of a head's card: the finding, what each part says in a line, how to read it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from attnviz.draw.labels import cut, token_label, word_label
from attnviz.draw.numbers import counted, listed, whole_percent
from attnviz.draw.provenance import fits_two_lines, known_text, probability, share, spread_words
from attnviz.engine.patching import SITES
from attnviz.inspect.head.records import Firing, HeadCard, Hurt, ReadFrom
from attnviz.inspect.heads.links import strongest_links
from attnviz.inspect.interventions.ablate.words import (
    effect_words,
    interval_words,
    unclear_words,
    without_words,
)
from attnviz.inspect.interventions.means import Mean
from attnviz.inspect.interventions.path.path import Listener
from attnviz.inspect.patterns.tables import behind, interval, short
from attnviz.inspect.why.records import HeadEffect, WhyReport
from attnviz.inspect.why.words import logits, placed, quoted
from attnviz.measures.registry import label_named
from attnviz.measures.words import joined, word_ranges
from attnviz.records import Tokens

_FEW = "too few pairs of prompts fit this model for an interval"
_NAMED, _LONGEST = 3, 14
_AROUND = (4, 3)
"""The tokens before and after a token that are shown with it."""

Line = tuple[str, list[str]]
"""The name of a part and its words."""


def finding(card: HeadCard) -> str:
    """Return the finding, in at most two lines: the head's label, and the loss without the head.

    About a text that a person gave: what the head does there, and what it writes.
    """
    lead = "" if card.complete else "Incomplete. "
    if card.model.weights == "random":
        return f"{lead}Random weights: {card.name} has learnt nothing; its numbers are arbitrary."
    said = ""
    for first, second in _here(card) if card.asked else _everywhere(card):
        said = f"{lead}{first} {second}".strip()
        if fits_two_lines(said):
            break
    return said


def _everywhere(card: HeadCard) -> Iterator[tuple[str, str]]:
    """Yield pairs of sentences on the label and on the loss without the head, the longest first."""
    for label, most in product(_label_sentences(card), (True, False)):
        yield label, _lost(card, most)


def _here(card: HeadCard) -> Iterator[tuple[str, str]]:
    """Yield pairs of sentences: on where the head attends in this text, and on what it writes.

    The second sentence becomes shorter from pair to pair, and is empty in the last one.
    """
    shown = card.map.first
    label = shown.heads[0].label
    name = f"{card.name}{f' ({known_text(label)})' if label.is_finding else ''}"
    measure = label_named(label.name)
    if label.name == "spread":
        said = (
            f"{name} attends {spread_words(label.score)} here, {share(label.score)} (1 = uniform)."
        )
    elif measure.target and math.isnan(label.on_text):
        said = f"{name} has no occasion here: {measure.absent.format(text='the text')}."
    elif measure.target:
        given = f"{measure.target} {share(label.on_text)} of its attention here"
        said = f"{name} gives {given} (uniform {share(label.base_rate)})."
    else:
        said = f"{name} links no two words here."
        for link in strongest_links(shown, 1):
            record = shown.record
            firing = Firing(0, record.queries, record.keys, link.query, link.key, link.weight)
            query, key = link_ends(firing)
            said = f"{name} links “{query}” to “{key}” most here, {share(link.weight)}."
    if card.why is not None and card.written is not None:
        words, chance, base = _written(card.why, card.written)
        yield said, f"It writes {words} {chance}{base}."
        yield said, f"It writes {words}."
    yield said, ""


def _label_sentences(card: HeadCard) -> list[str]:
    """Return two sentences on the head's label, a long one and a short one.

    There is only one if the head has no label.
    """
    pattern, name = card.pattern, card.name
    if pattern is None:
        return [f"{name}."]
    if pattern.label is None:
        return [f"{name} has no label."]
    label = label_named(pattern.label)
    said = f"{name}: {label.said} {short(pattern.score)}"
    ends = interval(pattern, pattern.label)
    support = [f"chance {short(pattern.chance)}", f"95% {ends}" if ends else ""]
    support.append(behind(pattern, pattern.label))
    support = [each for each in support if each]
    return [f"{said} ({', '.join(support)}).", f"{said} ({support[0]}, {support[-1]}).", f"{said}."]


def _lost(card: HeadCard, most: bool) -> str:
    """Return a sentence on the loss without the head; ``most`` adds the token with most rise."""
    report, effect = card.ablation, card.effect
    if report is None or effect is None:
        return ""
    ends, said = interval_words(report, effect), without_words(report, effect, "it")
    if not ends:
        return f"{said}; {counted(len(report.texts), 'text')}, no interval."
    if not _matters(card):
        return f"{unclear_words(report, effect, 'it')}."
    hurts = f", most at {_quoted(card.hurts[0])}" if most and card.hurts else ""
    return f"{said}, 95% interval {ends}{hurts}."


def _matters(card: HeadCard) -> bool:
    """Return whether the loss without the head changes significantly.

    The test is corrected for the number of ablated heads.
    """
    report, effect = card.ablation, card.effect
    if report is None or effect is None:
        return False
    found = effect.shown(report.metric)
    return found.significant if found.signed and len(report.effects) > 1 else not found.unclear


def word_at(tokens: Tokens, place: int) -> str:
    """Return the word that contains a token. place: the index of the token."""
    words = (word for word in word_ranges(tokens) if place in word)
    word = next(words, range(place, place + 1))
    return cut(word_label(tokens.texts[word.start : word.stop]), _LONGEST)


def _quoted(one: Hurt) -> str:
    return f"“{word_at(one.tokens, one.place)}”"


# The parts, a line each ----------------------------------------------------------------------


_PARTS = {"without": "loss", "reads": "paths", "read by": "readers"}
"""The names of parts in ``HeadCard.missing`` that are not those of their lines."""


def part_lines(card: HeadCard) -> list[Line]:
    """Return (name, words) for each part of a head's card, or the reason why it is missing."""
    lines = {
        "label": _label(card),
        "without": _without(card),
        "hurts": _hurts(card),
        "fires": [f"{link_words(one)} {share(one.weight)}" for one in card.firings[:2]],
        "writes": _writes(card),
        "copies": _copies(card),
        "reads": _reads(card),
        "read by": _read_by(card),
        "cost": _cost(card),
    }
    for name, words in lines.items():
        reason = card.missing.get(_PARTS.get(name, name))
        if not words and reason is not None:
            said = reason.split(": ")[0].replace(repr(card.model.name), "the model")
            words.append(f"not measured: {said}")
    return [(name, words) for name, words in lines.items() if words]


def _label(card: HeadCard) -> list[str]:
    pattern = card.pattern
    if pattern is None:
        return []
    if card.model.weights == "random":
        return ["none: random weights"]
    if pattern.label is None:
        best = max(pattern.strength, key=lambda name: pattern.strength[name], default=None)
        if best is None:
            return ["none"]
        name, value = label_named(best).said, short(pattern.scores[best])
        return [f"none; nearest: {name} {value}", f"chance {short(pattern.base_rate[best])}"]
    words = [f"{label_named(pattern.label).said} {short(pattern.score)}"]
    words.append(f"chance {short(pattern.chance)}")
    ends = interval(pattern, pattern.label)
    words += [f"95% {ends}"] if ends else []
    return [*words, behind(pattern, pattern.label)]


def _without(card: HeadCard) -> list[str]:
    report, effect = card.ablation, card.effect
    if report is None or effect is None:
        return []
    found, ends = effect.shown(report.metric), interval_words(report, effect)
    words = [effect_words(report, effect)]
    words += [f"95% {ends}" + " includes 0" * found.unclear] if ends else []
    if found.base_rate is not None:
        words.append(f"random direction {found.base_rate:+.3g}")
    return [*words, counted(len(report.texts), "text")]


def _hurts(card: HeadCard) -> list[str]:
    effect = card.effect
    if not card.hurts or effect is None or card.ablation is None:
        return []
    if not _matters(card):
        return []
    words = [f"{_quoted(one)} {one.change:+.1f}" for one in card.hurts[:_NAMED]]
    return [f"{listed(words)} nats, of {counted(card.predictions, 'token')}"]


def link_words(one: Firing) -> str:
    """Return a link as a string, such as ``Tom → saw``; within one word, its two tokens."""
    return " → ".join(link_ends(one))


def link_ends(one: Firing) -> tuple[str, str]:
    """Return the words of the query and of the key of a link, or their tokens within one word."""
    ends = (one.queries, one.query), (one.keys, one.key)
    query, key = (word_at(*end) for end in ends)
    if query == key:
        query, key = (cut(token_label(tokens.texts[at]), _LONGEST) for tokens, at in ends)
    return query, key


def _writes(card: HeadCard) -> list[str]:
    if card.why is None or card.written is None:
        return []
    first, (said, chance, base) = card.why.first, _written(card.why, card.written)
    source = first.source(card.key)
    read = "" if source is None else f", from {placed(first.keys(card.key), source.place)}"
    return [f"{said} {chance}{read}{base}"]


def _written(report: WhyReport, effect: HeadEffect) -> tuple[str, str, str]:
    """Return strings: the head's part of the answer's logit, its probability, the base rate."""
    first = report.first
    whole = (
        f"{report.logit:.1f}" if abs(report.logit) >= 1 else logits(report.logit).removeprefix("+")
    )
    ends = first.found.span is not None  # of an answer
    answer = f"the answer's {first.answer}" if ends else quoted(first.answer)
    said = f"{logits(effect.value)} of {whole} logits of {answer}"
    base = "" if effect.base is None else f"; another word there {logits(effect.base)}"
    return said, probability(dict(first.found.top)[first.found.answer]), base


def _copies(card: HeadCard) -> list[str]:
    if card.writes is None:
        return []
    found = card.writes.found
    chance = f"{found.chance:.1%}" if found.chance >= 0.001 else "under 0.1%"
    return [
        f"{whole_percent(found.copying)} of {found.tokens} tokens, read alone",
        f"chance {chance}",
    ]


def _reads(card: HeadCard) -> list[str]:
    if not card.sources:
        return []
    clear = clear_sources(card)
    said = [
        f"{_entry(each.read)}: {_share(each.read.share)} from {card.head_name(each.sender)}"
        for each in clear[:_NAMED]
    ]
    if said:
        return [*said, _others([each.read for each in clear])]
    if all(each.read.share.interval is None for each in card.sources):
        return [_FEW]
    return ["no earlier head more than the others of its layer"]


def _read_by(card: HeadCard) -> list[str]:
    if card.readers is None:
        return []
    clear = [each for each in card.readers.listeners if each.clear]
    said = [
        f"{card.readers.name(each.place, each.into)}'s {_entry(each)} {_share(each.share)}"
        for each in clear[:_NAMED]
    ]
    if said:
        return [*said, _others(clear)]
    if all(each.share.interval is None for each in card.readers.listeners):
        return [_FEW]
    return [f"none more than the other heads of L{card.head[0] + card.index_base}"]


def clear_sources(card: HeadCard) -> list[ReadFrom]:
    """Return the earlier heads whose share is clearly above that of the others of their layer."""
    return [each for each in card.sources if each.read.clear]


def _entry(one: Listener) -> str:
    return SITES[one.into].words


def _share(share: Mean) -> str:
    ends = "" if share.interval is None else f" [{_hundredths(share.interval)}]"
    return f"{whole_percent(share.value)}{ends}"


def _hundredths(ends: tuple[float, float]) -> str:
    return ", ".join(f"{100 * end:.0f}" for end in ends)


def _others(clear: Sequence[Listener]) -> str:
    base = clear[0].share.base_rate if clear else None
    return "" if base is None else f"others {whole_percent(base)}"


def _cost(card: HeadCard) -> list[str]:
    cost = card.cost
    if cost is None:
        return []
    shared = f", keys and values shared by {cost.group} heads" if cost.group > 1 else ""
    words = [f"{cost.total:,} parameters{shared}"]
    if cost.cache_bytes:
        words.append(f"{counted(cost.cache_bytes, 'byte')} of cache a token")
    return words


# Tables --------------------------------------------------------------------------------------


def around(one: Hurt, longest: int = 60) -> str:
    """Return a token with its neighbours as a string of at most ``longest`` characters."""
    tokens, at = one.tokens, one.place
    first, last = max(at - _AROUND[0], 0), min(at + _AROUND[1], len(tokens))
    near = tokens.taken(range(first, last))
    said = joined(near) if any(" " in text for text in tokens.texts) else " ".join(near.texts)
    return cut(token_label(f"{'…' * (first > 0)}{said}{'…' * (last < len(tokens))}"), longest)


def measured(card: HeadCard) -> str:
    """Return a sentence on the data that each part of the card was measured on."""
    said = ["map and prediction on this text"]
    if card.ablation is not None:
        texts = card.ablation.texts
        tokens = counted(sum(map(len, texts)), "token")
        said.append(f"loss over {counted(len(texts), 'text')} ({tokens})")
    if card.scored is not None:
        said.append("the label on the probes of attnviz patterns")
    if card.readers is not None or card.sources:
        said.append("reads over the built-in pairs of prompts")
    return f"measured in this run: {', '.join(said)}; seed {card.seed}."
