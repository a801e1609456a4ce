"""Which links of a text are worth saying: what the person who typed it would ask about first.

The candidates stand in this order, and the first that has evidence is said:

1. *induction*: a token that repeats, from which a head that is known as an induction head attends
   to what followed the earlier copy; also where only one piece of a word does so;
2. *reference*: a link that beats chance from a pronoun to an earlier content word, or from a word
   to another copy of it;
3. *label*: a head whose known label is about two words, coreference or subject, and that links
   two such words here: a pronoun, or what looks like a verb, to a content word before it, rather
   one further away than its neighbour;
4. *apart*: any other link that beats chance between two words that are no neighbours, content
   words first;
5. *local*: the same between neighbours.

The evidence of 1 and 3 is the label, which other texts gave, and the weight here; that of the
others is the chance of ``attnviz.measures.word_links``. The words of 2 and 3 are English: a text in
another language has the other candidates.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.sinks import sink_of
from attnviz.measures.word_links import WordLink, WordLinks, agreed_links
from attnviz.measures.words import is_mark, word_text, words_of_tokens
from attnviz.records import AttentionRecord, HeadLabel, LayerWeights, Tokens

Why = Literal["induction", "reference", "label", "apart", "local", "nearest"]

LEAST = 0.4
"""The least weight of a link by which a labelled head is said to do here what its label says."""

_PRONOUNS = """
he she it they him her them his hers its their theirs himself herself itself themselves who which
"""
_OTHERS = """
a an the this that these those i you we me us my your our and or but nor so yet if then than as of
in on at by for with to from into onto over under about after before because while when where since
until though although is are was were be been being am do does did has have had will would can could
shall should may might must not no yes there here s t
"""
_IRREGULAR = """
said told went saw took gave made knew thought found met came left paid got ran sat stood spoke
wrote felt kept held brought bought sold sent lost won began fell heard read led drew grew threw
broke chose drove rose wore sang ate drank slept caught taught built spent understood forgot
"""
_AUXILIARIES = "is are was were am has have had does do did will would can could"

PRONOUNS = frozenset(_PRONOUNS.split())
_FUNCTION_WORDS = PRONOUNS | {*_OTHERS.split()}
_AUXILIARY = frozenset(_AUXILIARIES.split())
_VERBS = _AUXILIARY | {*_IRREGULAR.split()}


class Telling(NamedTuple):
    """A link between two words that is worth telling a reader, and the reason why.

    link: between two words, of the head that makes it. weight: of that head, in [0, 1]; in
    *induction* and *label* between the two tokens that it links most.
    copy: the tokens of the earlier word that the key followed, in *induction*; else None.
    """

    why: Why
    link: WordLink
    weight: float
    copy: range | None = None


def told(
    record: AttentionRecord, links: WordLinks | None, labels: Mapping[tuple[int, int], HeadLabel]
) -> list[Telling]:
    """Return the links of a text that are worth telling a reader, the most interesting one first.

    links: the tested ones; None if there were too many to test. labels: by (layer, head); only
    those that other texts gave count. If no link is worth telling, the result is the one *nearest*
    to beating chance, or empty if that link's weight is hardly above its habit.
    """
    known = {head: label.name for head, label in labels.items() if label.is_known}
    induction = {head for head, name in known.items() if name == "induction"}
    tested = [_of_chance(record, link) for link in (links.beyond_chance if links else [])]
    references = [telling for telling in tested if telling.why == "reference"]
    ordered = [*_repeats(record, induction), *references, *_labelled(record, known)]
    for why in ("apart", "local"):
        others = [telling for telling in tested if telling.why == why]
        ordered += sorted(others, key=lambda telling: not _joins_content(record, telling.link))
    if ordered or links is None or (nearest := links.nearest) is None:
        return ordered
    return [Telling("nearest", nearest, nearest.weight)]


def is_content(word: str) -> bool:
    """Return whether a word is neither punctuation nor an English function word."""
    return not all(map(is_mark, word)) and word.lower() not in _FUNCTION_WORDS


def _of_chance(record: AttentionRecord, link: WordLink) -> Telling:
    """Return what is told of a link that beats chance, by what its two words are."""
    query, key = word_text(record.queries, link.query), word_text(record.keys, link.key)
    within = record.kind != "cross"
    copies = within and query.lower() == key.lower()
    refers = query.lower() in PRONOUNS and link.key.start < link.query.start
    why: Why = "apart"
    if within and _are_neighbours(record.queries, link.query, link.key):
        why = "local"
    elif (copies or refers) and is_content(key) and not _is_verb(key, ""):
        why = "reference"
    return Telling(why, link, link.weight)


def _alone(
    record: AttentionRecord,
    layer: int,
    head: int,
    weights: NDArray[np.floating],
    query: range,
    key: range,
) -> WordLink:
    """Return the link of one head between two words, with its habit where it is above it.

    weights: of the head, (query, key).
    """
    single = replace(record, layers=(LayerWeights(layer, (head,), weights[None]),))
    links = agreed_links(single)
    for link in links.links if links is not None else ():
        if (link.query, link.key) == (query, key):
            return link
    weight = float(np.nan_to_num(weights)[query.start : query.stop, key.start : key.stop].sum())
    mean = weight / len(query)
    return WordLink(query, key, layer, head, mean, habit=math.nan, heads=1, chance=math.nan)


def _joins_content(record: AttentionRecord, link: WordLink) -> bool:
    ends = word_text(record.queries, link.query), word_text(record.keys, link.key)
    return all(map(is_content, ends))


def _are_neighbours(tokens: Tokens, one: range, other: range) -> bool:
    """Return whether no word stands between two words of a text, which may be the same one."""
    first, second = sorted((one, other), key=lambda word: word.start)
    between = "".join(tokens.texts[first.stop : second.start]).strip()
    return all(map(is_mark, between))


def _repeats(record: AttentionRecord, heads: Container[tuple[int, int]]) -> list[Telling]:
    """Return the strongest link by which an induction head follows a repetition, if there is one.

    A content word that repeats comes before a function word, and the last word, which a causal
    model continues, before others. heads: the (layer, head) of induction heads.
    """
    if record.kind == "cross":
        return []
    tokens, words, left_out = record.queries, words_of_tokens(record.queries), sink_of(record)[1]
    marks = [all(map(is_mark, text.strip())) for text in tokens.texts]
    copies = [
        (query, copy)
        for query in range(len(tokens))
        for copy in range(query - 1)
        if tokens.ids[copy] == tokens.ids[query]
        and not (marks[query] or marks[copy + 1] or left_out[[query, copy, copy + 1]].any())
        and words[copy + 1] not in (words[copy], words[query])
        and word_text(tokens, words[copy]) == word_text(tokens, words[query])
    ]
    best: tuple[bool, bool, float, int, int, int, int] | None = None
    for layer, head, weights in record:
        for query, copy in copies if (layer, head) in heads else ():
            weight = float(weights[query, copy + 1])
            content = is_content(word_text(tokens, words[query]))
            repeat = content, words[query] == words[-1], weight, layer, head, query, copy
            if weight >= LEAST:
                best = max(best or repeat, repeat)
    if best is None:
        return []
    _, _, weight, layer, head, query, copy = best
    own = {(at, number): weights for at, number, weights in record}[layer, head]
    link = _alone(record, layer, head, own, query=words[query], key=words[copy + 1])
    return [Telling("induction", link, weight, words[copy])]


def _labelled(record: AttentionRecord, known: Mapping[tuple[int, int], str]) -> list[Telling]:
    """Return for each head with a label about two words its strongest such link here.

    A link to a word further away comes before one to the neighbour.
    """
    if record.kind == "cross":
        return []
    tokens, words, left_out = record.queries, words_of_tokens(record.queries), sink_of(record)[1]
    texts = [word_text(tokens, word) for word in words]
    asks = {
        "coreference": [text.lower() in PRONOUNS for text in texts],
        "subject": [
            _is_verb(text, texts[word.start - 1] if word.start else "")
            for text, word in zip(texts, words, strict=True)
        ],
    }
    strongest = []
    for layer, head, weights in record:
        if (ask := asks.get(known.get((layer, head), ""))) is None:
            continue
        links = [
            (float(weights[query, key]), words[query], words[key])
            for query, key in zip(*(weights >= LEAST).nonzero(), strict=True)
            if ask[query]
            and is_content(texts[key])
            and not left_out[[query, key]].any()
            and words[key].start < words[query].start
        ]
        if links:
            weight, query, key = max(
                links, key=lambda link: (not _are_neighbours(tokens, *link[1:]), link[0])
            )
            link = _alone(record, layer, head, weights, query=query, key=key)
            strongest.append(Telling("label", link, weight))
    return sorted(strongest, key=lambda telling: -telling.weight)


def _is_verb(word: str, before: str) -> bool:
    """Return whether an English word looks like a verb.

    An auxiliary does, a common irregular past, a word in -ed, and one in -ing after an auxiliary.
    before: the word before it.
    """
    ends = word.endswith("ed") or (word.endswith("ing") and before.lower() in _AUXILIARY)
    return word.lower() in _VERBS or (len(word) > 4 and ends)
