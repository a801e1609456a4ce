"""The options of ``heads`` on a picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnviz.errors import UsageError
from attnviz.options import HeadChoice, IndexBase, Options, flag, option

if TYPE_CHECKING:
    from attnviz.inspect.heads.request import HeadsRequest

_NUMBERS = re.compile(r"\s*(\d{1,6})\s*,\s*(\d{1,6})\s*")


@dataclass(frozen=True)
class PictureOptions(Options, panel="Images"):
    """The options that only pictures have, for the command line."""

    image: tuple[str, ...] = option(
        "FILE", "Image to read (PNG, JPEG, WebP), with or without text; may be repeated.", ()
    )
    at: str | None = option("X,Y", "Take the patch at this pixel of the image as the query.")
    tower: bool = flag("Show the heads of the vision tower instead of the decoder's.")
    generate: int | None = option(
        "N", "Have a vision-language model generate N tokens; --token can refer to them.", min=1
    )


@dataclass(frozen=True)
class PictureRequest(HeadChoice, IndexBase):
    """All options of ``heads`` on a picture without a text.

    token: the query whose rows are shown: ``CLS``, a register (``R1``), ``ROW,COLUMN`` of a patch,
    ``pool`` for a model that pools its patches by an attention of its own, or ``mean`` of all
    patches. None is the first of CLS, pool and mean that the model has.
    at: the query as a pixel (x, y) of the picture, counted from its top left corner.
    """

    token: str | None = None
    at: tuple[int, int] | None = None


_OF_PICTURES = ("--layer", "--head", "--token", "--index-base")


def picture_request(
    given: HeadsRequest, beside: Sequence[str], at: tuple[int, int] | None
) -> PictureRequest:
    """Return what ``heads`` is asked on a picture; UsageError for options of texts alone."""
    unused = [*beside, *(name for name in given.given() if name not in _OF_PICTURES)]
    if unused:
        raise UsageError(f"{unused[0]} is for texts: leave it out next to an image alone")
    chosen = {name: getattr(given, name) for name in ("layer", "head", "token", "index_base")}
    return PictureRequest(**chosen, at=at)


def two_numbers(typed: str, option: str) -> tuple[int, int]:
    """Return the two whole numbers of ``12,40``; raise UsageError that names the option."""
    match = _NUMBERS.fullmatch(typed)
    if match is None:
        raise UsageError(f"cannot read {typed!r} after {option}: expected two numbers, such as 4,7")
    return int(match[1]), int(match[2])
