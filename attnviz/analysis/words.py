"""Where a word stands in a tokenised text, however many tokens it was split into."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnviz.records import Tokens

__all__ = ["word_spans"]

_BYTES = re.compile(r"(?:<0x[0-9A-Fa-f]{2}>)+")


def word_spans(tokens: Tokens, word: str) -> list[range]:
    """The token ranges whose text is ``word``, in order; in any case if none has its case."""
    wanted = word.strip()
    exact = _spans(tokens.texts, wanted)
    return exact or _spans([text.casefold() for text in tokens.texts], wanted.casefold())


def _spans(texts: Sequence[str], wanted: str) -> list[range]:
    found: list[range] = []
    start = 0
    while start < len(texts):
        end = start + 1
        joined = _joined(texts[start:end])
        while end < len(texts) and len(joined) < len(wanted) and not _goes_wrong(joined, wanted):
            end += 1
            joined = _joined(texts[start:end])
        if joined == wanted:
            found.append(range(start, end))
            start = end
        else:
            start += 1
    return found


def _goes_wrong(joined: str, wanted: str) -> bool:
    """Whether no further token can make ``joined`` the wanted word; half characters still can."""
    return "\ufffd" not in joined and not wanted.startswith(joined)


def _joined(texts: Sequence[str]) -> str:
    """The text of neighbouring tokens: bytes put together, WordPiece's ``##`` taken off."""
    pieces = [text.removeprefix("##") if place else text for place, text in enumerate(texts)]

    def decoded(match: re.Match[str]) -> str:
        numbers = re.findall(r"0x([0-9A-Fa-f]{2})", match.group())
        return bytes.fromhex("".join(numbers)).decode("utf-8", "replace")

    return _BYTES.sub(decoded, "".join(pieces)).strip()
