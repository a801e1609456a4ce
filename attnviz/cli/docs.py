"""The command ``attnviz docs``: the manual in the terminal."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
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
attnviz docs json | less
"""

_FOLDER = Path(__file__).parents[1] / "docs"
_WIDEST = 100
_MOST_PAGES = 5


def topics() -> dict[str, str]:
    """Return the heading of each page of the manual by the page's name."""
    texts = {page.stem: page.read_text(encoding="utf-8") for page in sorted(_FOLDER.glob("*.md"))}
    return {topic: text.splitlines()[0].strip("# ") for topic, text in texts.items()}


def complete_topic(incomplete: str) -> list[str]:
    """Return the names of manual pages that begin with ``incomplete``, for shell completion."""
    return [topic for topic in topics() if topic.startswith(incomplete)]


@dataclass(frozen=True)
class _Page(Options):
    """The argument that names a page of the manual."""

    topic: str | None = argument(
        "TOPIC", "A page; without it, the list of pages.", autocompletion=complete_topic
    )
    colour: ColourChoice = option(
        "WHEN", "auto (obeys NO_COLOR and pipes), always or never.", "auto", name="--color"
    )


@command(EXAMPLES, "--color")
def docs(page: _Page) -> None:
    """Read the manual: a page for each command, and how everything is measured."""
    known = topics()
    if page.topic is not None and page.topic not in known:
        raise UsageError(f"no page {page.topic!r} in the manual: {_meant(page.topic, known)}")
    console = text_console(None, page.colour)
    with printing():
        if page.topic is None:
            commands = {topic: title for topic, title in known.items() if topic in COMMANDS}
            wide = console.width >= LEAST_FOR_PAIRS
            alone = (f"{topic:10}{title}" for topic, title in commands.items())
            listed = paired(commands) if wide else alone
            others = ", ".join(topic for topic in known if topic not in COMMANDS)
            lines = ["The manual: attnviz docs TOPIC", *listed]
            console.print("\n".join(lines), no_wrap=True, overflow="ellipsis")
            console.print(f"And {others}")
            return
        text = (_FOLDER / f"{page.topic}.md").read_text(encoding="utf-8")
        if not console.is_terminal:
            print(text, end="")
            return
        os.environ.setdefault("LESS", "FRX")  # keep colours; quit if it fits a screen
        with console.pager(styles=True):
            console.print(_drawn(text), width=min(console.width, _WIDEST), soft_wrap=False)


def _meant(topic: str, known: Iterable[str]) -> str:
    """Return which page was meant, or which pages have the word, or one that is spelled like it."""
    from difflib import get_close_matches

    if near := get_close_matches(topic, known, 1):
        return f"did you mean {near[0]}?"
    pages = (page for page in _FOLDER.glob("*.md") if page.stem != "changelog")
    texts = {page.stem: page.read_text(encoding="utf-8").lower() for page in pages}
    words = Counter(word for text in texts.values() for word in re.findall("[a-z]{4,}", text))
    word = topic.lower()
    if not word.strip() or not any(word in text for text in texts.values()):
        alike = get_close_matches(word, words, 3, 0.75)
        if not alike:
            return f"expected one of {', '.join(known)}"
        word = max(alike, key=words.__getitem__)
    ranked = sorted(texts, key=lambda page: -texts[page].count(word))
    having = [page for page in ranked[:_MOST_PAGES] if word in texts[page]]
    return f"{word!r} stands in {', '.join(having)}"


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
