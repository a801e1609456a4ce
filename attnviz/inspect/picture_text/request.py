"""The options of ``heads`` on a text with pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnviz.errors import UsageError
from attnviz.options import HeadChoice, IndexBase

if TYPE_CHECKING:
    from attnviz.inspect.heads.request import HeadsRequest


@dataclass(frozen=True)
class PictureTextRequest(HeadChoice, IndexBase):
    """All options of ``heads`` on a text with pictures.

    token: the word whose last token looks, of the prompt or of what was written; None for the last
    token of all. generate: how many tokens the model may write first, the likeliest each time.
    """

    token: str | None = None
    generate: int = 0


_KEPT = {"--layer", "--head", "--token", "--index-base"}


def picture_text_request(given: HeadsRequest, generate: int | None) -> PictureTextRequest:
    """Return what ``heads`` is asked of a text with images; UsageError for options of texts."""
    unused = [name for name in given.given() if name not in _KEPT]
    if unused:
        raise UsageError(f"{unused[0]} is for texts alone: leave it out next to --image")
    chosen = {name: getattr(given, name) for name in ("layer", "head", "token", "index_base")}
    return PictureTextRequest(**chosen, generate=generate or 0)
