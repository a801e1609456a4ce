"""Read pairs of prompts from the command line, a file or Python code, or take the built-in ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from attnviz.errors import UsageError
from attnviz.options import Options, argument, flag, option
from attnviz.reading import PACKAGED
from attnviz.texts import read_rows

_BUILT_IN = PACKAGED / "probes" / "pairs.jsonl"
_NEEDED, _ALLOWED = ("clean", "corrupt"), ("answer", "foil", "and")


class Prompts(NamedTuple):
    """A clean and a corrupt prompt as they were given, with the expected next tokens.

    answer, foil: the right and the wrong next token; None for the model's predictions after
        ``clean`` and after ``corrupt``. second: a text that the tokenizer joins to each prompt, for
        models that compare two texts.
    """

    clean: str
    corrupt: str
    answer: str | None = None
    foil: str | None = None
    second: str | None = None


class PromptPairs(NamedTuple):
    """The prompt pairs of a run, with their source.

    prompts: at least one pair. source: a description of where they come from; empty if they were
        typed. lines: the line of each pair in its file; empty if there is no file.
    """

    prompts: tuple[Prompts, ...]
    source: str = ""
    lines: tuple[int, ...] = ()

    @property
    def built_in(self) -> bool:
        """Return whether these are the built-in pairs."""
        return self.source.endswith("built-in pairs")

    @property
    def joined(self) -> bool:
        """Return whether a second text is joined to any of the prompts."""
        return any(each.second is not None for each in self.prompts)

    def changed(self, change: Callable[[str], str]) -> PromptPairs:
        """Return the pairs with each prompt changed."""
        made = (one._replace(clean=change(one[0]), corrupt=change(one[1])) for one in self.prompts)
        return self._replace(prompts=tuple(made))

    def place(self, index: int) -> str:
        """Return the words before a message about a prompt pair: none, or ``pair 3 (line 4): ``.

        index: of the pair.
        """
        return f"pair {index + 1} (line {self.lines[index]}): " if self.lines else ""


@dataclass(frozen=True)
class PromptPair(Options):
    """The arguments and options that give one prompt pair, or a file of many."""

    clean: str | None = argument(
        "[CLEAN]",
        "Prompt that shows the behaviour, in quotes (default: 40 built-in pairs).",
        words=True,
    )
    corrupt: str | None = argument(
        "[CORRUPT]", "The same prompt with another answer, of as many tokens.", words=True
    )
    chat: bool = flag(
        "Read each prompt through the model's chat template: a user's message, or a chat as heads "
        "--chat takes it."
    )
    pairs: Path | PromptPairs | None = option(
        "FILE",
        'Many pairs: JSON lines or CSV with clean, corrupt and, if wanted, answer, foil or "and" '
        "(a second text); - reads standard input.",
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

    clean, corrupt: the prompts that were typed, None if not. file: the value of ``--pairs``.
    second: the text to join to both prompts, or None. chat: whether each prompt is a chat.
    Raises UsageError if two sources are given or a prompt is missing, LoadError as ``read_rows``.
    """
    if chat:
        from attnviz.regions import as_chat, read_chat  # with NumPy, which a help needs not

        read = read_pairs(clean, corrupt, file, second)
        if read.joined:
            raise UsageError("--chat is one text: leave out --and")
        return read.changed(lambda text: as_chat(read_chat(text, plain=True)))
    if second is not None and clean is None:
        raise UsageError(
            'expected CLEAN and CORRUPT before --and; a file of pairs gives this text as "and"'
        )
    if file is not None:
        if clean is not None:
            raise UsageError("expected one source of prompts: CLEAN and CORRUPT, or --pairs")
        if isinstance(file, PromptPairs):  # of Python code
            return file
        found = read_rows(file, "--pairs", _NEEDED, _ALLOWED)
        return PromptPairs(tuple(map(_prompts, found.rows)), found.source, found.lines)
    if clean is None:
        found = read_rows(_BUILT_IN, "--pairs", _NEEDED, _ALLOWED)
        count = len(found.rows)
        return PromptPairs(tuple(map(_prompts, found.rows)), f"{count} built-in pairs", found.lines)
    if corrupt is None:
        raise UsageError("expected two prompts, CLEAN and CORRUPT, or --pairs FILE for many")
    for name, text in (("CLEAN", clean), ("CORRUPT", corrupt), ("--and", second)):
        if text is not None and not text.strip():
            raise UsageError(f"{name} is empty: expected at least one word")
    return PromptPairs((Prompts(clean, corrupt, second=second),))


def _given_pairs(rows: Iterable[Mapping[str, str]]) -> PromptPairs:
    """Return the prompt pairs that Python code gave; raise UsageError for anything else."""
    made = []
    for row in rows:
        if not isinstance(row, Mapping) or not {*_NEEDED} <= {*row} <= {*_NEEDED, *_ALLOWED}:
            raise UsageError(
                'expected mappings with clean, corrupt and, if wanted, answer, foil or "and"; got '
                f"{row!r:.60}"
            )
        if not all(isinstance(text, str) and text.strip() for text in row.values()):
            raise UsageError(f"expected texts of at least one word, got {row!r:.60}")
        made.append(_prompts(row))
    if not made:
        raise UsageError("expected at least one pair, got none")
    return PromptPairs(tuple(made), "", tuple(range(1, len(made) + 1)))


def _prompts(row: Mapping[str, str]) -> Prompts:
    return Prompts(
        clean=row["clean"],
        corrupt=row["corrupt"],
        answer=row.get("answer"),
        foil=row.get("foil"),
        second=row.get("and"),
    )
