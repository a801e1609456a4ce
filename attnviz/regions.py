"""Finds the regions of a text: the turns of a role, a named span, one of two sentences.

Every token is in one region. Those that no person named are in a region of their own: ``template``
in a chat, ``special`` next to a pair of texts, else ``other``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from attnviz.draw.labels import token_spans, visible
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models.chats import Message, chat_text, finished_chat, with_texts
from attnviz.models.model import ChatTemplate, FinishedText, Model, Placed, PlacingModel
from attnviz.options import ChatOption, RegionOptions
from attnviz.reading import parse_json, read_bytes, utf8
from attnviz.records import PAIR, REST, Tokens
from attnviz.texts import Chat, as_utf8, lines_of, read_text

TEMPLATE, SPECIAL, OTHER = REST
"""The regions of the two texts of a pair."""

_TURN = re.compile(r"(system|developer|user|assistant|tool):[ \t]*(.*)", re.DOTALL)
_PLACES = re.compile(r"(-?[0-9]{1,9}):(-?[0-9]{1,9})")
_BETWEEN = re.compile(r"\s*(?:…|\.\.\.)\s*")


def given_text(
    asked: ChatOption, argument: str | None, file: Path | None, command: str = "heads"
) -> str:
    """Return the text to run on, for a chat a ``Chat``; UsageError if there is none, or two."""
    return read_text(chat_or_text(asked, argument, file), file, command)


def chat_or_text(asked: ChatOption, argument: str | None, file: Path | None) -> str | None:
    """Return the chat of ``asked``, or without one TEXT as typed, or None; see ``given_text``."""
    if asked.chat is None:
        return argument
    if argument is not None or file is not None:
        raise UsageError("--chat gives the text: leave out " + ("--file" if file else "TEXT"))
    return as_chat(read_chat(asked.chat))


def as_chat(messages: list[Message]) -> Chat:
    """Return messages as a ``Chat``, whose string is their contents, a line each."""
    texts = list[str]()

    def noted(_: int, text: str, __: bool) -> str:
        texts.append(text)
        return text

    with_texts(messages, noted)
    chat = Chat("\n".join(texts))
    chat.messages = messages
    return chat


def finished(model: Model, text: str, *, answering: bool) -> str:
    """Return a text for a model: a chat as its template writes it, any other text unchanged.

    answering: True ends a chat where the assistant goes on: at its answer, or behind the last
        message if that is the assistant's.
    Raises UsageError if the template refuses the chat, UnsupportedError if the model has none.
    """
    if not isinstance(text, Chat):
        return text
    template = template_of(model)
    if answering and text.messages[-1]["role"] == "assistant" and text.messages[-1].get("content"):
        begun = chat_text(model.info.name, template, text.messages, False)
        return FinishedText(begun.text[: max(end for _, end in begun.places)])
    return FinishedText(finished_chat(model.info.name, template, text.messages, answering))


def template_of(model: Model) -> ChatTemplate:
    """Return the model's chat template; raise UnsupportedError if it has none."""
    template = model.chat_template if isinstance(model, PlacingModel) else None
    if template is None:
        raise UnsupportedError(
            f"{model.info.name!r} has no chat template: give the text as the model reads it, and "
            "its regions with --span"
        )
    return template


# A chat --------------------------------------------------------------------------------------


def read_chat(given: str, *, plain: bool = False) -> list[Message]:
    """Return the messages of a chat, each with a role and other fields that a template takes.

    given: the path of a file, JSON, or lines such as ``user: Hi``. plain: whether any other text is
        a user's message.
    Raises LoadError for a file that cannot be read, UsageError for what is no chat.
    """
    name = "--chat"
    if os.path.isfile(given) or re.fullmatch(r"\S+\.(json|jsonl|txt)", given):
        name = visible(given)
        given = utf8(read_bytes(Path(given), name=name), name)
    if _TURN.match(given.lstrip()):
        messages: Any = []
        for line in given.strip().splitlines():
            if (begun := _TURN.match(line)) is not None:
                messages.append({"role": begun[1], "content": begun[2]})
            else:  # a line without a role continues the last message
                messages[-1]["content"] += f"\n{line}"
    else:
        try:
            messages = parse_json(given, name)
        except LoadError as error:
            if name != "--chat":
                raise
            if plain:
                return [{"role": "user", "content": given}]
            raise UsageError(
                f"{name} is neither a file nor a chat: expected JSON such as "
                '[{"role": "user", "content": "Hi"}], or lines such as user: Hi'
            ) from error
        messages = messages.get("messages") if isinstance(messages, dict) else messages
    if not isinstance(messages, list) or not messages:
        raise UsageError(f"{name} has no messages: expected a list of roles and contents")
    for number, message in enumerate(messages, start=1):
        fields = message if isinstance(message, dict) else {}
        role, content = fields.get("role"), fields.get("content")
        parts = content if isinstance(content, list) else []
        known = isinstance(content, str | list | None) and all(isinstance(x, dict) for x in parts)
        if not known or not isinstance(role, str) or not role.strip() or len(fields) < 2:
            raise UsageError(
                f"{name}: message {number} is not a role with content, a text or a list of parts"
            )
    return messages


# Spans ---------------------------------------------------------------------------------------


class _Span(NamedTuple):
    """A named span of a text, given by token indices or by words.

    places: the indices of its first token and of the one after its last; None if given by words.
    words: the words that it begins and ends with, or its only words; empty if it has indices.
    """

    name: str
    places: tuple[int, int] | None
    words: tuple[str, ...]


def _span(typed: str, option: str) -> _Span:
    """Return the span in a typed option or a line of the file; UsageError if there is none."""
    typed = as_utf8(typed, option)
    name, _, given = (part.strip() for part in typed.partition("="))
    if not name or not given:
        raise UsageError(f"{option} {visible(typed)!r}: expected NAME=START:END or NAME=WORDS")
    if (numbers := _PLACES.fullmatch(given)) is None:
        words = tuple(_BETWEEN.split(given, 1))
        if not all(words):
            raise UsageError(f"{option} {visible(typed)!r}: words are missing next to the dots")
        return _Span(name, None, words)
    start, end = int(numbers[1]), int(numbers[2])
    if min(start, end) < 0:
        raise UsageError(
            f"{option} {visible(typed)!r}: places count from 0 at the first token, as the screens "
            "number them"
        )
    if start >= end:
        raise UsageError(f"{option} {visible(typed)!r} is empty: END is the token after its last")
    return _Span(name, (start, end), ())


def _spans(asked: RegionOptions) -> list[_Span]:
    """Return the spans of ``--span`` and ``--spans``; UsageError if a name is repeated."""
    spans = [_span(typed, "--span") for typed in asked.span]
    if asked.spans is not None:
        name, lines = lines_of(asked.spans)
        read = [_span(line, f"--spans {name}") for line in lines if line.strip()]
        if not read:
            raise UsageError(f"--spans {name} has no region: expected NAME=START:END, one per line")
        spans += read
    names = [span.name for span in spans]
    if twice := next((name for name in names if names.count(name) > 1 or name in REST), None):
        raise UsageError(f"--span: {visible(twice)!r} is given twice or the name of the rest")
    return spans


def _tokens_of(span: _Span, placed: Placed, texts: Sequence[str]) -> list[int]:
    """Return the indices of a span's tokens; UsageError if there are none, or not one place."""
    if span.places is not None:
        start, end = span.places
        if end > len(placed.tokens):
            raise UsageError(
                f"--span {visible(span.name)}={start}:{end} ends behind the text, which has "
                f"{len(placed.tokens)} tokens"
            )
        return [*range(start, end)]
    side, start, end = _once(span, span.words[0], texts, 0, 0)
    if len(span.words) > 1:
        _, _, end = _once(span, span.words[1], texts[: side + 1], side, end)
    if not (tokens := _between(placed, side, start, end)):
        raise UsageError(f"--span {visible(span.name)}: its words are in no token of the text")
    return tokens


def _named(
    names: Sequence[str], spans: Sequence[_Span], placed: Placed, texts: Sequence[str]
) -> list[str]:
    """Return the region of each token; UsageError for spans that overlap or do not fit the text."""
    regions, taken = [*names], dict[int, str]()
    for span in spans:
        for token in _tokens_of(span, placed, texts):
            if token in taken:
                raise UsageError(
                    f"--span: {visible(taken[token])!r} and {visible(span.name)!r} overlap at "
                    f"token {token}"
                )
            taken[token] = regions[token] = span.name
    return regions


def saved_regions(tokens: Tokens, text: str, asked: RegionOptions) -> Tokens:
    """Return the tokens of a saved text with the regions that ``--span`` and ``--spans`` name.

    Raises UsageError for other options of regions, which a model would have to read, and for a span
    that does not fit.
    """
    if asked.chat is not None or asked.second is not None:
        option = "--and" if asked.chat is None else "--chat"
        raise UsageError(f"{option} needs a model: what was saved has its text")
    spans = _spans(asked)
    places = token_spans(tokens, text)
    if not places and any(span.places is None for span in spans):
        raise UsageError("--span: the file does not tell where words stand: give NAME=START:END")
    nowhere = [(0, 0)] * len(tokens)
    placed = Placed(tokens, places or nowhere, [None if added else 0 for added in tokens.special])
    names = tokens.regions or (OTHER,) * len(tokens)
    return replace(tokens, regions=tuple(_named(names, spans, placed, [text])))


def _once(
    span: _Span, words: str, texts: Sequence[str], side: int, after: int
) -> tuple[int, int, int]:
    """Return where words occur, as (index of the text, start, end) in character offsets.

    side, after: the search begins in this text after this character. Raises UsageError unless they
    occur exactly once.
    """
    for form in (rf"(?<!\w){re.escape(words)}(?!\w)", re.escape(words)):
        there = [
            (number, *match.span())
            for number, text in enumerate(texts[side:], start=side)
            for match in re.compile(form).finditer(text, after if number == side else 0)
        ]
        if len(there) == 1:
            return there[0]
        if there:
            break
    times = f"{len(there)} times" if there else "nowhere"
    raise UsageError(
        f"--span {visible(span.name)}: {visible(words)!r} occurs {times} in the text: give words "
        "that stand once, or START:END"
    )


def _between(placed: Placed, side: int, start: int, end: int) -> list[int]:
    """Return the tokens that overlap characters from ``start`` to ``end`` of the text ``side``."""
    return [
        token
        for token, (first, last) in enumerate(placed.places)
        if placed.sides[token] == side and first < end and last > max(start, first)
    ]


# Reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RegionReader:
    """Encodes the text or texts of a run, with the name of each token's region.

    text: the model's input; of a chat the result of the model's template.
    turns: the role and the character offsets of each message's texts. spans: the named spans.
    """

    model: PlacingModel
    text: str
    second: str | None
    turns: Sequence[tuple[str, tuple[int, int]]]
    spans: Sequence[_Span]

    @property
    def shown(self) -> str:
        """Return the text for the screen: two texts with a line break between them."""
        return both_texts(self.text, self.second)

    def notes(self, tokens: Tokens) -> tuple[str, ...]:
        """Return a note if the tokenizer puts no token between two texts, like most of decoders."""
        if self.second is None or SPECIAL in tokens.regions[1:-1]:
            return ()
        alone = self.model.encode(self.text)
        lost = alone.special[:1] == (True,) and SPECIAL not in tokens.regions[:1]
        without = ", and without the start token of a single text" if lost else ""
        return (f"the tokenizer joins two texts with nothing between them{without}",)

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """Return the tokens of a text, at most ``limit``, each with its region.

        Raises UsageError for a span that the text does not have, or that overlaps another one.
        """
        turns = self.turns if text == self.text else ()
        placed = self.model.placed(text, self.second, bare=bool(self.turns))
        texts = [text] if self.second is None else [text, self.second]
        names = _named(self._usual(placed, turns), self.spans, placed, texts)
        tokens = replace(placed.tokens, regions=tuple(names))
        if self.turns:
            marks = zip(tokens.special, names, strict=True)
            special = tuple(added and name == TEMPLATE for added, name in marks)
            tokens = replace(tokens, special=special)
        return tokens if limit is None else self._cut(tokens, limit)

    def _usual(self, placed: Placed, turns: Sequence[tuple[str, tuple[int, int]]]) -> list[str]:
        """Return the region of each token as if no spans were named."""
        if self.second is not None:
            return [SPECIAL if side is None else PAIR[side] for side in placed.sides]
        names = [TEMPLATE if turns else OTHER for _ in placed.places]
        for role, (start, end) in turns:
            for token in _between(placed, 0, start, end):
                names[token] = role
        return names

    def _cut(self, tokens: Tokens, limit: int) -> Tokens:
        """Return at most ``limit`` tokens; those that the tokenizer puts at the end stay."""
        if self.second is not None:
            raise UsageError("--truncate cuts one text: shorten the two texts")
        end = len(tokens)
        while not self.turns and end and tokens.special[end - 1]:
            end -= 1
        after = len(tokens) - end
        kept = tokens.taken([*range(max(limit - after, 0)), *range(end, len(tokens))][:limit])
        if lost := {span.name for span in self.spans}.difference(kept.regions):
            raise UsageError(f"--truncate cuts {visible(min(lost))!r} off: shorten the text")
        return replace(kept, kept=())


def both_texts(text: str, second: str | None) -> str:
    """Return a text for the screen, with a line break before the ``second`` if there is one."""
    return text if second is None else f"{text}\n{second}"


def region_reader(
    model: Model, text: str, asked: RegionOptions, *, answering: bool = False
) -> RegionReader | None:
    """Return an encoder of a text with the requested regions; None if none were requested.

    answering: True if the model will generate the answer to a chat. Raises UsageError for spans, a
    chat or texts that do not fit, UnsupportedError for a model without a template or without a
    tokenizer that knows character offsets, LoadError for unreadable files.
    """
    if not asked.regions_given:
        return None
    if not isinstance(model, PlacingModel):
        raise UnsupportedError(f"{model.info.name!r} does not know where its tokens stand")
    spans = _spans(asked)
    if asked.chat is None:
        return RegionReader(model, text, asked.second, (), spans)
    chat = read_chat(asked.chat)
    template, roles = template_of(model), [message["role"] for message in chat]
    if answering and roles[-1] == "assistant":
        raise UsageError("the model is to write the answer: end the chat before the assistant")
    read = chat_text(model.info.name, template, chat, answering)
    turns = [(roles[owner], at) for owner, at in zip(read.owners, read.places, strict=True)]
    return RegionReader(model, read.text, None, turns, spans)
