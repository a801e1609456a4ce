"""A chat as the text that a model reads, and where each message stands in it.

A model's template is code from a stranger. transformers runs it in its sandbox, as it does for
everybody else, and here in a process with limits; that part of it does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.confined import confined
from attnviz.models.model import ChatTemplate
from attnviz.models.third_party import one_line, third_party

Message = Mapping[str, str]
"""The ``role`` and the ``content`` of one turn."""

_MARK = "\ue000{}\ue001"
"""Takes the place of a message: characters of private use, which no template changes."""


class ChatText(NamedTuple):
    """A chat as the text that a model's template makes of it.

    places: for each message the character range (start, end) of its content in ``text``.
    """

    text: str
    places: tuple[tuple[int, int], ...]


def chat_text(
    name: str, template: ChatTemplate, chat: Sequence[Message], answering: bool
) -> ChatText:
    """Return a chat as the text that a model's template makes of it.

    name: of the model, for messages. answering: whether the text ends where the assistant's answer
        begins.
    The character ranges of the contents are found with the template itself, run once more over
    placeholders. Raises UsageError if the template refuses the chat, UnsupportedError if it leaves
    a message out, repeats it or changes more than blanks at its ends.
    """
    text = _rendered(name, template, chat, answering)
    marked = [{**each, "content": _MARK.format(place)} for place, each in enumerate(chat)]
    frame = re.split(_MARK.format("([0-9]+)"), _rendered(name, template, marked, answering))
    literals, order = frame[::2], [*map(int, frame[1::2])]
    places: dict[int, tuple[int, int]] = {}
    at = len(literals[0]) if text.startswith(literals[0]) else -1
    for number, literal in zip(order, literals[1:], strict=True):
        content = chat[number]["content"]
        forms = (content, content.strip(), content.rstrip(), content.lstrip())
        kept = next((form for form in forms if text.startswith(form + literal, max(at, 0))), None)
        if kept is None or at < 0 or number in places:
            raise _lost(name, number, chat[number])
        places[number] = at, at + len(kept)
        at += len(kept) + len(literal)
    missing = [number for number in range(len(chat)) if number not in places]
    if missing or at != len(text):
        number = missing[0] if missing else len(chat) - 1
        raise _lost(name, number, chat[number])
    return ChatText(text, tuple(places[number] for number in range(len(chat))))


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
                found: Any = render_jinja_template(
                    conversations=[[dict(message) for message in chat]],
                    chat_template=template.source,
                    add_generation_prompt=answering,
                    **special,
                )
            except TemplateError as error:
                if type(error) is not TemplateError:  # only this one is the template's own message
                    raise
                raise UsageError(f"{subject} refuses this chat: {one_line(error)}") from error
        text: str = found[0][0]
        return text

    return confined(subject, render)
