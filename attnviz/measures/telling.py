"""Which links of a text are worth saying: what the person who typed it would ask about first.

The candidates stand in this order, and the first that has evidence is said:

1. *induction*: a token that repeats, from which a head that is known as an induction head attends
   to what followed the earlier copy; also where only one piece of a word does so, and, if there is
   nothing else, to a mark, as in code; a function word that repeats comes after 3;
2. *reference*: a link that beats chance from a pronoun to an earlier content word, from a verb to a
   noun before it that is not its neighbour, or from a word to another copy of it;
3. *label*: a head whose known label is about two words, coreference, subject or object, and that
   links two such words here: a pronoun, or what looks like a verb, to a noun before it, or a noun
   to a verb before it; pronouns first, then words that are no neighbours;
4. *asked*: a pronoun, a repeated word, a verb or a closing mark, first the last word of an open
   text, and the word before it that a reader would connect with it, where one head does so, at
   least ``_OVER_HABIT`` times as much as elsewhere; without any test, only if nothing is above;
5. *apart*: any other link that beats chance between two content words that are no neighbours;
6. *function*, a link that beats chance with a function word, then *local*: one of neighbours.

The evidence of 1 and 3 is the label, which other texts gave, and that the word gets most of what
the query gives to words other than the sink, at least ``LEAST`` of it; in 3 more than its control,
what the head gives to words as far away elsewhere, and clearly more than any other word gets, or
gives to it without a reason (see ``rivals``). That of the others is the chance of
``attnviz.measures.word_links``; *asked* has none, and no more is said than its weight.
The pronouns and verbs are English: a text in another language has the other candidates.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.measures.sinks import sink_of
from attnviz.measures.word_links import NO_MORE, WordLink, WordLinks, agreed_links
from attnviz.measures.words import is_mark, word_ranges, word_text, words_of_tokens
from attnviz.records import AttentionRecord, HeadLabel, LayerWeights

Why = Literal["induction", "reference", "label", "asked", "apart", "function", "local", "nearest"]

LEAST = 0.3
"""The least share of a query's attention outside the sink that a labelled head must give to a word
to be said to do here what its label says."""

_OVER_UNIFORM = 2.0  # the multiple of uniform attention that this must be, up to a half

_ALONE, _OVER_HABIT = 0.4, 2.0
"""The least weight of one head that answers what a person would ask, without any other evidence,
and the least multiple of what the head gives at other places."""

_FAR = 0.7  # the share of a head's strongest link from which a link of words further apart is told
_TIE = 0.9  # a rival with more of a link's weight than this is as good a key
_OPENING = {")": "(", "]": "[", "}": "{", "”": "“", "»": "«", '"': '"'}

LIGHT = 0.2  # the weight below which nothing is said of a link, whatever the sink has
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
seen known given taken done gone
"""
_AUXILIARIES = "is are was were am has have had do does did will would can could"
_BARE = "do does did will would can could shall should may might must"
_ADVERBS = "not never n't also always ever still"

PRONOUNS = frozenset(_PRONOUNS.split())
_FUNCTION_WORDS = PRONOUNS | {*_OTHERS.split()}
_AUXILIARY = frozenset(_AUXILIARIES.split())
_VERBS = _AUXILIARY | {*_IRREGULAR.split()}
_BEFORE_VERBS = frozenset(_BARE.split())
_SUBJECTS = frozenset(["he", "she", "it", "they", "i", "you", "we", "who", "which"])


class Telling(NamedTuple):
    """A link between two words that is worth telling a reader, and the reason why.

    link: between two words, of the head that makes it. weight: of that head, in [0, 1]; in
    *label* and *asked* between the two tokens that it links most, in *induction* of the copied one.
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
    text = None if record.kind == "cross" else _Text(record)
    beyond = [link for link in (links.links if links else ()) if link.beats_chance]
    tested = [_of_chance(record, text, link) for link in beyond]
    ordered = list[Telling]()
    if text is not None:
        repeats = _repeats(text, {head for head, name in known.items() if name == "induction"})
        asked = any(is_content(word_text(text.tokens, own.link.query)) for own in repeats)
        others = [telling for telling in tested if telling.why == "reference"]
        others += _labelled(text, known)
        ordered = ([*repeats, *others] if asked else [*others, *repeats]) or _asked(text)
    for why in ("apart", "function", "local"):
        ordered += [telling for telling in tested if telling.why == why]
    nearest = next(iter(links.links), None) if links is not None and not ordered else None
    if nearest is None or nearest.weight - nearest.habit < NO_MORE:
        return ordered
    return [Telling("nearest", nearest, nearest.weight)]


def is_worth_adding(record: AttentionRecord, telling: Telling) -> bool:
    """Return whether a link is worth a second sentence: it is strong and no matter of grammar."""
    asks = is_content(word_text(record.queries, telling.link.query))
    strong = telling.weight >= _ALONE and (asks or telling.why != "induction")
    return strong and telling.why not in ("function", "local")


def is_content(word: str) -> bool:
    """Return whether a word is neither punctuation nor an English function word."""
    return not all(map(is_mark, word)) and word.lower().strip("'’") not in _FUNCTION_WORDS


def _of_chance(record: AttentionRecord, text: _Text | None, link: WordLink) -> Telling:
    """Return what is told of a link beyond chance; ``text`` is None if it joins two texts."""
    ends = word_text(record.queries, link.query), word_text(record.keys, link.key)
    why: Why = "apart" if all(map(is_content, ends)) else "function"
    if text is not None:
        query, key = text.words.index(link.query), text.words.index(link.key)
        if text.are_neighbours(query, key):
            why = "local"
        elif text.connects(query, key):
            why = "reference"
    return Telling(why, link, link.weight)


class _Text:
    """The words of a record, and which of them a person would connect with an earlier one."""

    def __init__(self, record: AttentionRecord) -> None:
        self.record, self.tokens = record, record.queries
        self.words = word_ranges(record.queries)
        self.texts = [word_text(self.tokens, word) for word in self.words]
        self.left_out = sink_of(record)[1]
        self.plain = [not self.left_out[list(word)].any() for word in self.words]
        self.pronouns = [text.lower() in PRONOUNS for text in self.texts]
        self.verbs = [_is_verb(text, self._before(at)) for at, text in enumerate(self.texts)]
        self.nouns = [
            plain and is_content(text) and not (verb or text.isdigit())
            for text, verb, plain in zip(self.texts, self.verbs, self.plain, strict=True)
        ]

    def connects(self, query: int, key: int) -> bool:
        """Return whether a reader connects a word with its copy, its noun or its opening mark."""
        word, other = self.texts[query], self.texts[key]
        if self.are_neighbours(query, key) or not (self.plain[query] and self.plain[key]):
            return False
        if word.lower() == other.lower() and is_content(word) and not self.verbs[key]:
            return True
        asks = self.pronouns[query] or self.verbs[query]
        return key < query and ((asks and self.nouns[key]) or self.opening(query) == key)

    def is_object(self, noun: int, verb: int) -> bool:
        """Return whether only function words, at least one, part a noun from a verb before it."""
        between = self.texts[verb + 1 : noun]
        plain = self.verbs[verb] and self.texts[verb].lower() not in {*_AUXILIARY, "said"}
        parted = any(is_content(text) or all(map(is_mark, text)) for text in between)
        return plain and bool(between) and not parted

    def is_subject(self, word: int, other: int) -> bool:
        """Return whether a word may be what a pronoun means, or the subject of a verb after it."""
        if self.verbs[word] and self.texts[other].lower() in _SUBJECTS:
            return True
        governed = self.verbs[word] and any(self.is_object(other, at) for at in range(other))
        return self.nouns[other] and not governed

    def opening(self, mark: int) -> int | None:
        """Return the word that is the opening mark of a closing one; None if it is not a mark."""
        closing, waiting = self.texts[mark][-1:], list[int]()
        opening = _OPENING.get(closing)
        if opening is None or not all(map(is_mark, self.texts[mark])):
            return None
        for at, text in enumerate(self.texts[:mark]):
            sign = text[-1:] if all(map(is_mark, text)) else ""
            if sign == closing and waiting:  # of two equal quotes the second one closes
                waiting.pop()
            elif sign == opening:
                waiting.append(at)
        return waiting[-1] if waiting else None

    def _before(self, at: int) -> str:
        """Return the word before one, adverbs such as “not” left out."""
        before = (text.lower() for text in reversed(self.texts[:at]))
        return next((text for text in before if text not in _ADVERBS.split()), "")

    def are_neighbours(self, word: int, other: int) -> bool:
        """Return whether no word stands between two words, which may be the same one."""
        first, second = sorted((self.words[word], self.words[other]), key=lambda word: word.start)
        return all(map(is_mark, "".join(self.tokens.texts[first.stop : second.start]).strip()))

    def attended(
        self, weights: NDArray[np.floating], queries: Sequence[int]
    ) -> Iterator[tuple[int, int, float]]:
        """Yield the word that a head attends to most from each of some words, with the weight.

        weights: of the head, (query, key). The weight is the largest one between two tokens; the
        sink does not count, and a word that gets little is left out.
        """
        starts = [word.start for word in self.words]
        for at in queries:
            rows = np.where(self.left_out, 0, np.nan_to_num(weights[list(self.words[at])]))
            sums = np.add.reduceat(rows, starts, axis=1, dtype=float)
            row, key = divmod(int(sums.argmax()), len(starts))
            weight = float(rows[:, list(self.words[key])].max())
            even = 1 / max(int(np.count_nonzero(rows[row])), 1)
            least = max(LEAST, min(_OVER_UNIFORM * even, 0.5))
            if weight >= LIGHT and sums[row, key] >= least * sums[row].sum():
                yield at, key, weight

    def rivals(self, weights: NDArray[np.floating], query: int, key: int) -> tuple[float, float]:
        """Return what makes a head's link of two words no matter of these two, each in [0, 1].

        That is the largest weight on ``key`` from a later word without a reason to ask for it (no
        mark, pronoun or verb; a function word only if ``query`` is a pronoun), and the largest from
        ``query`` on any third word. weights: of the head, (query, key). The sink counts in neither.
        """
        own, keys = self.words[query], self.words[key]
        others = [
            at
            for word in range(key + 1, len(self.words))
            for at in self.words[word]
            if not (word == query or self.pronouns[word] or self.verbs[word] or self.left_out[at])
            and not all(map(is_mark, self.texts[word]))
            and (is_content(self.texts[word]) or self.pronouns[query])
        ]
        column = np.nan_to_num(weights[others, keys.start : keys.stop])
        rest = np.where(self.left_out, 0, np.nan_to_num(weights[own.start : own.stop]))
        rest[:, [*keys, *own]] = 0
        return float(column.max(initial=0)), float(rest.max(initial=0))

    def link(self, layer: int, head: int, query: int, key: int) -> WordLink:
        """Return a head's link of two words, by their numbers, with its habit."""
        record, queries, keys = self.record, self.words[query], self.words[key]
        weights = {(at, number): rows for at, number, rows in record}[layer, head]
        single = replace(record, layers=(LayerWeights(layer, (head,), weights[None]),))
        links = agreed_links(single)
        for link in links.links if links is not None else ():
            if (link.query, link.key) == (queries, keys):
                return link
        given, habit = np.nan_to_num(weights), math.nan
        weight = float(given[queries.start : queries.stop, keys.start : keys.stop].sum())
        if all(map(is_mark, self.texts[query])):  # marks are not tested
            sums = given[:, keys.start : keys.stop].sum(1)
            others = [at for at in range(keys.stop, len(sums)) if at not in queries]
            habit = float(sums[others].mean()) if others else math.nan
        return WordLink(
            queries, keys, layer, head, weight / len(queries), habit, heads=1, chance=math.nan
        )


def _repeats(text: _Text, heads: Container[tuple[int, int]]) -> list[Telling]:
    """Return the strongest link by which an induction head follows a repetition, if there is one.

    A content word that repeats comes before a function word, a key that is a word before a mark,
    the last word, which a causal model continues, before others, and a content word as its key
    before a function word. heads: the (layer, head) of induction heads.
    """
    record, tokens, left_out = text.record, text.tokens, text.left_out
    words = words_of_tokens(tokens)
    marks = [all(map(is_mark, piece.strip())) for piece in tokens.texts]
    copies = [
        (query, copy)
        for query in range(len(tokens))
        for copy in range(query - 1)
        if tokens.ids[copy] == tokens.ids[query] != tokens.ids[copy + 1]
        and not (marks[query] or left_out[[query, copy, copy + 1]].any())
        and words[copy + 1] not in (words[copy], words[query])
        and word_text(tokens, words[copy]) == word_text(tokens, words[query])
        and word_text(tokens, words[copy + 1])
    ]
    best: tuple[bool, bool, bool, bool, float, int, int, int, int] | None = None
    for layer, head, weights in record:
        for query, copy in copies if (layer, head) in heads else ():
            weight = float(weights[query, copy + 1])
            row = np.nan_to_num(weights[query])[~left_out]
            content = is_content(word_text(tokens, words[query]))
            last, key = words[query] == words[-1], word_text(tokens, words[copy + 1])
            kinds = content, not all(map(is_mark, key)), last, is_content(key)
            repeat = *kinds, weight, layer, head, query, copy
            if weight >= max(LIGHT, LEAST * float(row.sum()), _TIE * float(row.max())):
                best = max(best or repeat, repeat)
    if best is None or not (best[0] or best[1]):
        return []
    weight, layer, head, query, copy = best[4:]
    ends = text.words.index(words[query]), text.words.index(words[copy + 1])
    return [Telling("induction", text.link(layer, head, *ends), weight, words[copy])]


def _labelled(text: _Text, known: Mapping[tuple[int, int], str]) -> list[Telling]:
    """Return the strongest link of each head with a label of two words: pronouns, then far ones."""
    pronouns, verbs, nouns = (
        [at for at, asks in enumerate(kind) if asks]
        for kind in (text.pronouns, text.verbs, text.nouns)
    )
    asks = {"coreference": pronouns, "subject": [*pronouns, *verbs], "object": nouns}
    strongest = list[tuple[tuple[bool, bool, float], Telling]]()
    for layer, head, weights in text.record:
        name = known.get((layer, head), "")
        joins = text.is_object if name == "object" else text.is_subject
        attended = [
            (query, key, weight)
            for query, key, weight in text.attended(weights, asks.get(name, ()))
            if key < query and joins(query, key)
        ]
        most = max((weight for *_, weight in attended), default=0.0)
        links = []
        for query, key, weight in attended:
            is_far = weight >= _FAR * most and not text.are_neighbours(query, key)
            links.append(((text.pronouns[query] and weight >= LEAST, is_far, weight), query, key))
        if links:
            order, query, key = max(links)
            link, weight = text.link(layer, head, query, key), order[-1]
            is_tie = max(text.rivals(weights, query, key)) > _TIE * weight
            if not (is_tie or weight <= link.habit):  # the habit may be unknown, NaN
                strongest.append((order, Telling("label", link, weight)))
    return [telling for _, telling in sorted(strongest, key=lambda ranked: ranked[0], reverse=True)]


def _asked(text: _Text) -> list[Telling]:
    """Return the link of one head that answers what a person would ask first, if there is one.

    It is the strongest link that a reader would make, of pronouns, then of copies, verbs and marks,
    before them of the one in which a text ends open, and stronger than the head's links elsewhere.
    """
    asks = [
        at
        for at, word in enumerate(text.texts)
        if text.pronouns[at] or text.verbs[at] or word in text.texts[:at] or word[-1:] in _OPENING
    ]
    last = [at for at, plain in enumerate(text.plain) if plain][-1:]
    answers = list[tuple[tuple[bool, bool, bool, bool, float], tuple[int, int, int, int]]]()
    for layer, head, weights in text.record:
        for query, key, weight in text.attended(weights, asks):
            if weight >= _ALONE and key < query and text.connects(query, key):
                is_copy = text.texts[query].lower() == text.texts[key].lower()
                open_end = query in last and text.texts[query][-1:] not in _OPENING
                kinds = open_end, text.pronouns[query], is_copy, text.verbs[query]
                answers.append(((*kinds, weight), (layer, head, query, key)))
    for (*_, weight), at in sorted(answers, reverse=True):
        link = text.link(*at)
        if weight >= _OVER_HABIT * link.habit:
            return [Telling("asked", link, weight)]
    return []


def _is_verb(word: str, before: str) -> bool:
    """Return whether an English word looks like a verb, by itself and by the word before it."""
    ends = word.endswith("ed") or (word.endswith("ing") and before.lower() in _AUXILIARY)
    bare = before.lower() in _BEFORE_VERBS or before.lower().endswith(("n't", "n’t"))
    return word.lower() in _VERBS or (bare and is_content(word)) or (len(word) > 4 and ends)
