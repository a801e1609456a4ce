"""A chat as the text that a model reads, and where each message stands in it.

A model's template is code from a stranger. transformers runs it in its sandbox, as it does for
everybody else, and here in a process with limits; that part of it does not import torch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from attnviz import errors
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.model import ChatTemplate
from attnviz.models.third_party import one_line, third_party
from attnviz.reading import TEXT_BYTES

Message = Mapping[str, Any]
"""One turn: its ``role``, its ``content`` as a text, as parts or None, and what else it has."""

_MARK = "\ue000{}\ue001"  # stands for a text: characters of private use, which no template changes

# The fields for what an assistant thought, which templates leave out of earlier turns.
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


class ChatText(NamedTuple):
    """A chat as the text that a model's template makes of it.

    places: the character ranges (start, end) in ``text`` of the messages' texts: of contents, their
        parts and thoughts, in order. owners: for each range the index of its message.
    """

    text: str
    places: tuple[tuple[int, int], ...]
    owners: tuple[int, ...]


def with_texts(chat: Sequence[Message], change: Callable[[int, str, bool], str]) -> list[Message]:
    """Return a chat in which each text is replaced by ``change(message, text, thought)``.

    message: its index. thought: whether a template may leave the text out.
    """

    def changed(number: int, name: str, value: Any) -> Any:
        if name == "content" and isinstance(value, list):
            return [{key: changed(number, key, part[key]) for key in part} for part in value]
        if name not in ("content", "text", *_THOUGHTS) or not isinstance(value, str):
            return value
        return change(number, value, name in _THOUGHTS)

    return [
        {name: changed(number, name, value) for name, value in message.items()}
        for number, message in enumerate(chat)
    ]


def chat_text(
    name: str, template: ChatTemplate, chat: Sequence[Message], answering: bool
) -> ChatText:
    """Return a chat as the text that a model's template makes of it; see ``finished_chat``.

    The character ranges of the texts are found with the template itself, run once more over
    placeholders. Raises UnsupportedError if the template leaves a content out, repeats a text or
    changes more than blanks at its ends.
    """
    text, texts = finished_chat(name, template, chat, answering), list[tuple[int, str, bool]]()

    def marked(*text: Any) -> str:
        texts.append(text)
        return _MARK.format(len(texts) - 1)

    frame = _rendered(name, template, with_texts(chat, marked), answering)
    literals = re.split(_MARK.format("([0-9]+)"), frame)
    places: dict[int, tuple[int, int]] = {}
    at, number = (len(literals[0]) if text.startswith(literals[0]) else -1), len(chat) - 1
    for index, literal in zip(map(int, literals[1::2]), literals[2::2], strict=True):
        number, content, _ = texts[index]
        forms = (content, content.strip(), content.rstrip(), content.lstrip())
        kept = next((form for form in forms if text.startswith(form + literal, max(at, 0))), None)
        if kept is None or at < 0 or index in places:
            raise _lost(name, number, chat[number])
        places[index] = at, at + len(kept)
        at += len(kept) + len(literal)
    for index, (message, _, is_thought) in enumerate(texts):
        if index not in places and not is_thought:
            raise _lost(name, message, chat[message])
    if at != len(text):
        raise _lost(name, number, chat[number])
    known = sorted(places)
    return ChatText(text, tuple(places[at] for at in known), tuple(texts[at][0] for at in known))


def finished_chat(
    name: str, template: ChatTemplate, chat: Sequence[Message], answering: bool
) -> str:
    """Return the text that a model's template makes of a chat.

    answering: whether it ends where the assistant's answer begins. Raises UsageError if the
    template refuses the chat, or cannot read contents that are lists of parts.
    """
    text = _rendered(name, template, chat, answering)
    contents = (message.get("content") for message in chat)
    if any(isinstance(parts, list) and str(parts) in text for parts in contents):
        raise UsageError(f"the chat template of {name!r} takes contents as texts, not in parts")
    return text


def _lost(name: str, number: int, message: Message) -> UnsupportedError:
    return UnsupportedError(
        f"the chat template of {name!r} leaves out, repeats or rewrites message {number + 1} "
        f"({message['role']}), so that its tokens cannot be told from the template's: give the "
        "finished text, and its regions with --span"
    )


def _rendered(name: str, template: ChatTemplate, chat: Sequence[Message], answering: bool) -> str:
    subject = f"the chat template of {name!r}"
    with third_party(f"{subject} cannot be used"):
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

    def render() -> str:
        special: Mapping[str, Any] = template.special
        with third_party(f"{subject} cannot be used"):
            try:
                texts: Any = render_jinja_template(
                    conversations=[[dict(message) for message in chat]],
                    chat_template=template.source,
                    add_generation_prompt=answering,
                    **special,
                )
            except TemplateError as error:
                if type(error) is not TemplateError:  # only this one is the template's own message
                    raise
                raise UsageError(f"{subject} refuses this chat: {one_line(error)}") from error
        return str(texts[0][0])

    return confined(subject, render)


# A program with limits --------------------------------------------------------------------------

_SECONDS, _PATIENCE = 1, 60  # seconds of processor time, and of waiting for them on a busy computer
_BYTES = 2**28  # memory beyond that of this process; the text of a long chat takes a thousandth


def confined(name: str, program: Callable[[], str]) -> str:
    """Run ``program`` in a forked process with limits, and return the text that it returns.

    An error of attnviz that it raises is raised here. Raises LoadError if it takes too much time or
    memory. Systems without ``fork`` run it without limits. name: of the model, for messages.
    """
    if not hasattr(os, "fork"):
        return program()
    source, sink = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads wait; the copy does without them
        child = os.fork()
    if child == 0:
        _answer(program, sink)
    os.close(sink)
    try:
        with open(source, "rb") as stream:
            told = stream.read()
    finally:
        os.kill(child, signal.SIGKILL)  # it may have ended, but waits for this process
        os.waitpid(child, 0)
    kind, text = json.loads(told or '["", ""]')
    if kind == "text":
        return str(text)
    if kind:
        raise getattr(errors, kind)(text)
    raise errors.LoadError(
        f"{name} takes more than {_SECONDS} second, {_BYTES // 10**6} MB of memory or "
        f"{TEXT_BYTES:,} characters: give the finished text instead"
    )


def _answer(program: Callable[[], str], sink: int) -> NoReturn:
    """Write a program's text or error to a pipe, within limits, and end this process."""
    told = ["", ""]
    try:
        import resource

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(_PATIENCE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        pages = Path("/proc/self/statm")
        if pages.exists():  # on Linux
            most = int(pages.read_text().split()[0]) * resource.getpagesize() + _BYTES
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        told = ["text", program()]
    except errors.AttnvizError as error:
        told = [type(error).__name__, str(error)]
    finally:
        if len(told[1]) <= TEXT_BYTES:
            with open(sink, "w", encoding="ascii") as stream:
                json.dump(told, stream)
        os._exit(0)
