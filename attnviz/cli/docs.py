"""The command ``attnviz docs``: the manual in the terminal."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar

from attnviz.cli.app import COMMANDS, LEAST_FOR_PAIRS, paired
from attnviz.cli.groups import command
from attnviz.cli.terminal import ColourChoice, printing, text_console
from attnviz.errors import UsageError
from attnviz.options import Options, argument, option

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown

EXAMPLES = """
attnviz docs
attnviz docs patterns
attnviz docs "sliding window"
attnviz docs skill > SKILL.md
"""

_FOLDER = Path(__file__).parents[1] / "docs"
_WIDEST = 100
_MOST_PAGES = 5
_SENTENCE = 5
"""The fewest blanks in a line that is shown as what a page says."""


def topics() -> dict[str, str]:
    """Return the heading of each page of the manual by the page's name."""
    texts = {page.stem: page.read_text(encoding="utf-8") for page in sorted(_FOLDER.glob("*.md"))}
    return {topic: text.splitlines()[0].strip("# ") for topic, text in texts.items()}


def complete_topic(incomplete: str) -> list[str]:
    """Return the names of manual pages that begin with ``incomplete``, for shell completion."""
    return [topic for topic in topics() if topic.startswith(incomplete)]


@dataclass(frozen=True)
class _Page(Options):
    """The argument that names a page of the manual, or a word to search for."""

    topic: str | None = argument(
        "TOPIC", "A page, or words to search for.", autocompletion=complete_topic
    )
    colour: ColourChoice = option(
        "WHEN", "auto (obeys NO_COLOR and pipes), always or never.", "auto", name="--color"
    )


@command(EXAMPLES, "--color")
def docs(page: _Page) -> None:
    """Read the manual: a page for each command, how everything is measured; or search it."""
    known = topics()
    console = text_console(None, page.colour)
    with printing():
        if page.topic is None:
            commands = {topic: title for topic, title in known.items() if topic in COMMANDS}
            wide = console.width >= LEAST_FOR_PAIRS
            alone = (f"{topic:10}{title}" for topic, title in commands.items())
            listed = paired(commands) if wide else alone
            others = ", ".join(topic for topic in known if topic not in COMMANDS)
            lines = ["The manual: attnviz docs TOPIC; start with attnviz docs tutorial", *listed]
            console.print("\n".join(lines), no_wrap=True, overflow="ellipsis")
            told = f"And {others}; skill: instructions for coding agents"
            console.print("\n".join(wrap(told, console.width)))
        elif page.topic == "skill":
            from attnviz.cli.skill import skill

            print("".join(skill()), end="")
        elif page.topic not in known:
            _search(page.topic, known, console)
        else:
            text = (_FOLDER / f"{page.topic}.md").read_text(encoding="utf-8")
            if not console.is_terminal:
                print(text, end="")
                return
            os.environ.setdefault("LESS", "FRX")  # keep colours; quit if it fits a screen
            with console.pager(styles=True):
                console.print(_drawn(text), width=min(console.width, _WIDEST), soft_wrap=False)


def _search(words: str, known: Iterable[str], console: Console) -> None:
    """Print where the manual has these words: the lines of the pages that have them most often.

    Raises UsageError if no page has them, or if a page is spelled like them.
    """
    from difflib import get_close_matches

    if near := get_close_matches(words, known, 1, 0.8):
        raise UsageError(f"no page {words!r} in the manual: did you mean {near[0]}?")
    wanted = " ".join(words.lower().split())
    texts = {name: (_FOLDER / f"{name}.md").read_text(encoding="utf-8") for name in known}
    del texts["changelog"]
    lines = {
        name: [line for line in _prose(text) if wanted in line.lower()]
        for name, text in texts.items()
    }
    having = sorted((name for name in lines if lines[name]), key=lambda name: -len(lines[name]))
    if not wanted or not having:
        spelled = Counter(
            word for text in texts.values() for word in re.findall("[a-z]{4,}", text.lower())
        )
        alike = get_close_matches(wanted, spelled, 3, 0.75)
        meant = f"did you mean {max(alike, key=spelled.__getitem__)}?" if alike else ""
        raise UsageError(
            f"the manual has no {words!r}: "
            + (meant or f"expected words of it, or {', '.join(known)}")
        )
    for name in having[:_MOST_PAGES]:
        best = next((line for line in lines[name] if line.count(" ") >= _SENTENCE), lines[name][0])
        console.print(f"{name:10}{best}", no_wrap=True, overflow="ellipsis", markup=False)
    further = having[_MOST_PAGES:]
    console.print(f"And {', '.join(further)}" if further else "attnviz docs TOPIC shows a page")


def _prose(text: str) -> Iterator[str]:
    """Yield each sentence and entry of a page, without its screens, tables and marks."""
    text = re.sub("^```.*?^```$|^<!--.*?-->$|^[|].*$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    for part in re.split(r"\n\n|\n(?=[#-])|(?<=[.?]) (?=[A-Z`*])", text):
        if line := re.sub("[*`#]", "", " ".join(part.split())).removeprefix("- "):
            yield line


def _drawn(text: str) -> Markdown:
    """Return the page as Markdown whose code blocks are not indented, to fit 80 columns."""
    from rich.markdown import CodeBlock, Markdown
    from rich.syntax import Syntax

    class _Screen(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            code = str(self.text).rstrip()
            yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(1, 0))

    class _Drawn(Markdown):
        elements: ClassVar = {**Markdown.elements, "fence": _Screen, "code_block": _Screen}

    return _Drawn(text)
