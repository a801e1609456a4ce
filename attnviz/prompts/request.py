"""The options that questions about prompts share, and how pairs of prompts are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from attnviz.errors import UsageError
from attnviz.options import (
    ChatOption,
    HeadChoice,
    IndexBase,
    Kind,
    Known,
    Options,
    SecondText,
    Truncation,
    argument,
    flag,
    option,
)
from attnviz.reading import PACKAGED
from attnviz.texts import read_rows


def position() -> Any:
    """Return the option that names the token behind which a word is predicted."""
    return option(
        "WORD|INDEX",
        "Predict after this token (default: the last; for a masked LM, its mask token).",
        words=True,
        brief="Predict after this token (default: the last).",
    )


@dataclass(frozen=True)
class PromptRequest(ChatOption):
    """The option on chats. own: the options of which each prompt in a file may have its own."""

    own: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class _Texts(PromptRequest, SecondText, Kind):
    kind: Literal["decoder", "cross"] | None = option(
        "KIND", "For an encoder–decoder: show only decoder or only cross-attention heads."
    )
    target: str | None = option(
        "TEXT", "Decoder text for an encoder–decoder (default: its own greedy output).", words=True
    )


@dataclass(frozen=True)
class LogitRequest(HeadChoice, _Texts, Truncation, Known, IndexBase):
    """The options on the prompt and the heads of a question about one predicted logit."""


# Pairs of prompts -------------------------------------------------------------------------------


_BUILT_IN = PACKAGED / "probes" / "pairs.jsonl"
_NEEDED, _ALLOWED = ("clean", "corrupt"), ("answer", "foil", "and")


class Prompts(NamedTuple):
    """A clean and a corrupt prompt as they were given, with the expected next tokens.

    answer, foil: the right and the wrong next token; None for the model's predictions after
        ``clean`` and after ``corrupt``. second: a text that the tokenizer joins to each prompt, for
        models that compare two texts. name: of the pair in messages, such as ``pair 3 (line 4)``;
        empty if a person typed it.
    """

    clean: str
    corrupt: str
    answer: str | None = None
    foil: str | None = None
    second: str | None = None
    name: str = ""

    def changed(self, change: Callable[[str], str]) -> Prompts:
        """Return the pair with both prompts changed."""
        return self._replace(clean=change(self.clean), corrupt=change(self.corrupt))


class PromptPairs(NamedTuple):
    """The prompt pairs of a run, with their source, which is empty if they were typed."""

    prompts: tuple[Prompts, ...]
    source: str = ""

    @property
    def built_in(self) -> bool:
        """Return whether these are the built-in pairs."""
        return self.source.endswith("built-in pairs")

    @property
    def joined(self) -> bool:
        """Return whether a second text is joined to any of the prompts."""
        return any(pair.second is not None for pair in self.prompts)


@dataclass(frozen=True)
class PromptPair(Options):
    """The arguments and options that give one prompt pair, or a file of many."""

    clean: str | None = argument(
        "CLEAN",
        "The prompt that shows the behaviour, in quotes (without prompts: 40 built-in pairs).",
        words=True,
        brief="The prompt that shows the behaviour, in quotes.",
    )
    corrupt: str | None = argument(
        "CORRUPT", "A prompt of the same length with a different answer.", words=True
    )
    chat: bool = flag(
        "Format each prompt with the model's chat template: as a user message, or as a chat in the "
        "format that attnviz heads --chat takes."
    )
    pairs: Path | PromptPairs | None = option(
        "FILE",
        "Many pairs: JSON lines or CSV with clean and corrupt columns and, optionally, “answer”, "
        "“foil” and “and” (a second text); use - for standard input.",
        brief="Many pairs: JSON lines or CSV.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs: Any = self.pairs
        if isinstance(pairs, str | os.PathLike):
            object.__setattr__(self, "pairs", Path(pairs))
        elif pairs is not None and not isinstance(pairs, PromptPairs):
            object.__setattr__(self, "pairs", _given_pairs(pairs))


def read_pairs(
    clean: str | None,
    corrupt: str | None,
    file: Path | PromptPairs | None,
    second: str | None = None,
    *,
    chat: bool = False,
) -> PromptPairs:
    """Return the prompt pairs: ``clean`` and ``corrupt``, those in ``file``, or built-in ones.

    chat: whether each prompt is a chat.
    Raises UsageError if two sources are given or a prompt is missing, LoadError as ``read_rows``.
    """
    if chat:
        from attnviz.regions import as_chat, read_chat  # with NumPy, which a help needs not

        read = read_pairs(clean, corrupt, file, second)
        if read.joined:
            raise UsageError("--chat is one text: leave out --and")

        def change(text: str) -> str:
            return as_chat(read_chat(text, plain=True))

        return read._replace(prompts=tuple(pair.changed(change) for pair in read.prompts))
    if second is not None and clean is None:
        raise UsageError(
            'expected CLEAN and CORRUPT before --and; a file of pairs gives this text as "and"'
        )
    if file is not None and clean is not None:
        raise UsageError("expected one source of prompts: CLEAN and CORRUPT, or --pairs")
    if isinstance(file, PromptPairs):  # of Python code
        return file
    if clean is None:
        rows = read_rows(file or _BUILT_IN, "--pairs", _NEEDED, _ALLOWED)
        source = rows.source if file is not None else f"{len(rows.rows)} built-in pairs"
        return PromptPairs(_named(rows.rows, rows.lines), source)
    if corrupt is None:
        raise UsageError("expected two prompts, CLEAN and CORRUPT, or --pairs FILE for many")
    for name, text in (("CLEAN", clean), ("CORRUPT", corrupt), ("--and", second)):
        if text is not None and not text.strip():
            raise UsageError(f"{name} is empty: expected at least one word")
    return PromptPairs((Prompts(clean, corrupt, second=second),))


def picture_pair(clean: str | None, corrupt: str | None, images: Sequence[Any]) -> PromptPairs:
    """Return a prompt with each of two pictures; UsageError without a prompt or two pictures."""
    if clean is None:
        raise UsageError("expected a prompt, CLEAN, to read with each of the two images")
    given = images if isinstance(images, list | tuple) else [images]
    if len(given) != 2:
        raise UsageError(f"patch compares two images: give --image twice, got {len(given)}")
    first, second = given
    if isinstance(first, str) and first == second and corrupt in (None, clean):
        raise UsageError(f"both images are {first!r}: give two different ones")
    from attnviz.models.pictures import picture_prompt

    pair = Prompts(picture_prompt(clean, first), picture_prompt(corrupt or clean, second))
    return PromptPairs((pair,))


def _given_pairs(rows: Iterable[Mapping[str, str]]) -> PromptPairs:
    rows = tuple(rows)
    for row in rows:
        if not isinstance(row, Mapping) or not {*_NEEDED} <= {*row} <= {*_NEEDED, *_ALLOWED}:
            raise UsageError(
                'expected mappings with clean, corrupt and, if wanted, answer, foil or "and"; got '
                f"{row!r:.60}"
            )
        if not all(isinstance(text, str) and text.strip() for text in row.values()):
            raise UsageError(f"expected texts of at least one word, got {row!r:.60}")
    if not rows:
        raise UsageError("expected at least one pair, got none")
    return PromptPairs(_named(rows, range(1, len(rows) + 1)))


def _named(rows: Sequence[Mapping[str, str]], lines: Sequence[int]) -> tuple[Prompts, ...]:
    """Return the prompt pairs of rows, each named by its number and its line."""
    return tuple(
        Prompts(
            clean=row["clean"],
            corrupt=row["corrupt"],
            answer=row.get("answer"),
            foil=row.get("foil"),
            second=row.get("and"),
            name=f"pair {number} (line {line})",
        )
        for number, (row, line) in enumerate(zip(rows, lines, strict=True), start=1)
    )
