"""The options of ``heads`` on a text with pictures."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.options import HeadChoice, IndexBase


@dataclass(frozen=True)
class PictureTextRequest(HeadChoice, IndexBase):
    """All options of ``heads`` on a text with pictures.

    token: the word whose last token looks, of the prompt or of what was written; None for the last
    token of all. generate: how many tokens the model may write first, the likeliest each time.
    """

    token: str | None = None
    generate: int = 0
