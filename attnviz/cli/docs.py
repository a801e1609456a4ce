"""The commands about attnviz itself: its manual (``docs``), and its default model (``use``)."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from attnviz.cli import default_model as default
from attnviz.cli.app import COMMANDS, GROUPS, LEAST_FOR_PAIRS, app, paired
from attnviz.cli.groups import command, typed_option
from attnviz.cli.options import complete_model
from attnviz.cli.terminal import ColourChoice, printing, text_console
from attnviz.draw.labels import visible
from attnviz.errors import AttnvizError, UsageError
from attnviz.options import Options, argument, flag, option

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown

DOCS = """
attnviz docs
attnviz docs patterns
attnviz docs "sliding window"
attnviz docs skill > SKILL.md
"""

_FOLDER = Path(__file__).parents[1] / "docs"
_WIDEST = 100
_MOST_PAGES = 5
_SENTENCE = 5  # the fewest blanks in a line that is shown as what a page says


def topics() -> dict[str, str]:
    """Return the heading of each page of the manual by the page's name."""
    texts = {page.stem: page.read_text(encoding="utf-8") for page in sorted(_FOLDER.glob("*.md"))}
    return {topic: text.splitlines()[0].strip("# ") for topic, text in texts.items()}


def complete_topic(incomplete: str) -> list[str]:
    """Return the names of manual pages that begin with ``incomplete``, for shell completion."""
    return [topic for topic in topics() if topic.startswith(incomplete)]


@dataclass(frozen=True)
class _Page(Options):
    topic: str | None = argument(
        "TOPIC", "A page, or words to search for.", autocompletion=complete_topic
    )
    colour: ColourChoice = option(
        "WHEN", "auto (off with NO_COLOR or in a pipe), always or never.", "auto", name="--color"
    )


@command(DOCS, "--color")
def docs(page: _Page) -> None:
    """Read or search the manual: one page per command, plus how everything is measured."""
    known = topics()
    console = text_console(None, page.colour)
    with printing():
        if page.topic is None:
            commands = {topic: title for topic, title in known.items() if topic in COMMANDS}
            alone = (f"{topic:10}{title}" for topic, title in commands.items())
            listed = paired(commands) if console.width >= LEAST_FOR_PAIRS else alone
            others = ", ".join(topic for topic in known if topic not in COMMANDS)
            lines = ["The manual: attnviz docs TOPIC; start with attnviz docs tutorial", *listed]
            console.print("\n".join(lines), no_wrap=True, overflow="ellipsis")
            told = f"And {others}; skill: instructions for coding agents"
            console.print("\n".join(wrap(told, console.width)))
        elif page.topic == "skill":
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

    Words that stand nowhere as they are typed are searched for in any order.
    Raises UsageError if no page has them, or if a page is spelled like them.
    """
    from difflib import get_close_matches

    if near := get_close_matches(words, known, 1, 0.85):
        raise UsageError(f"no page {words!r} in the manual: did you mean {near[0]}?")
    wanted = " ".join(words.lower().split())
    pages = [name for name in known if name != "changelog"]
    texts = {name: (_FOLDER / f"{name}.md").read_text(encoding="utf-8") for name in pages}
    for together in ([wanted], wanted.split()):
        lines = {
            name: [line for line in _prose(text) if all(word in line.lower() for word in together)]
            for name, text in texts.items()
        }
        if any(lines.values()):
            break
    having = sorted((name for name in lines if lines[name]), key=lambda name: -len(lines[name]))
    if not wanted or not having:
        spelled = Counter(re.findall("[a-z]{4,}", " ".join(texts.values()).lower()))
        alike = [name for name in known if wanted and name[:4] == wanted[:4]]
        alike = alike or get_close_matches(wanted, spelled, 3, 0.75)
        meant = f"expected words in it, or {', '.join(known)}"
        if alike:
            meant = f"did you mean {max(alike, key=spelled.__getitem__)}?"
        raise UsageError(f"the manual has no {words!r}: {meant}")
    for name in having[:_MOST_PAGES]:
        best = next((line for line in lines[name] if line.count(" ") >= _SENTENCE), lines[name][0])
        console.print(f"{name:10}{best}", no_wrap=True, overflow="ellipsis", markup=False)
    further = having[_MOST_PAGES:]
    console.print(f"And {', '.join(further)}" if further else "attnviz docs TOPIC shows a page")


def _prose(text: str) -> Iterator[str]:
    """Yield each sentence, entry and row of a page, without its screens and marks."""
    text = re.sub("^```.*?^```$|^<!--.*?-->$|^[|][-:|]+$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    for part in re.split(r"\n\n|\n(?= *[#|-])|(?<=[.?]) (?=[A-Z`*])", text):
        if line := re.sub("[*`#]", "", " ".join(part.split())).removeprefix("- "):
            yield line.strip("| ").replace(" | ", " · ")


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


# Instructions for coding agents ----------------------------------------------------------------


_SHARED = ("--model", "--brief", "--json", "--save")
_ALONE = ("docs", "explore", "use")  # commands that are for people, at a terminal
_HEAD = """\
---
name: attnviz
description: >-
  Inspect the attention heads of a transformer from the command line: where each head attends, what
  it does, whether it matters, what it costs. Use it for questions on attention maps, induction
  heads, ablation, activation patching, logit attribution, KV caches and GPU memory.
---

# attnviz

Run a command with `--brief` first: it prints one JSON object of under 2 kB with the `finding`, at
most ten `rows` under their `columns`, and what to try `next`. `--json` prints everything, which can
be megabytes: redirect it to a file. `--save FILE` writes `.json`, `.csv`, `.html`, `.svg`, `.png`.

- Without `--model` a small bundled model answers, offline. `--model` takes a directory or a Hugging
  Face id; `--offline` never asks the network.
- Put texts in quotes. Heads are `L2H5`: layer 2, head 5, counted from 0.
- A label or an effect counts only beside its chance level, interval or control: quote both.
- One text is an anecdote: measure many with `--texts FILE` before you say what a head does.
- Errors are one line on standard error. Exit codes: 0 done, 2 usage, 3 a model or file cannot be
  loaded, 4 offline and not cached, 5 the attention cannot be observed, 6 a rule of `check` fails.
- `attnviz COMMAND --help` lists all options; `attnviz docs WORD` searches the manual.
"""


def skill() -> Iterator[str]:
    """Yield the parts of a SKILL.md: how to use the tool, then every command with its options."""
    yield _HEAD
    group: Any = typer.main.get_group(app)
    for title, names in GROUPS.items():
        shown = [name for name in names if name not in _ALONE]
        yield f"\n## {title}\n"
        for name in shown:
            command = group.resolve_command(typer.Context(group), [name])[1]
            yield from _told(command)


def _told(command: Any) -> Iterator[str]:
    """Yield what one command does, an example, and its most used options."""
    named = {spelled: param for param in command.params for spelled in param.opts}
    yield f"\n### attnviz {command.name}\n\n{command.help}\n\n```console\n"
    yield next(f"$ {line}\n" for line in command.epilog.splitlines() if line[:8] == "attnviz ")
    yield "```\n\n"
    for param in dict.fromkeys(named[name] for name in command.often if name not in _SHARED):
        yield f"- `{typed_option(param)}`: {command.briefs.get(param.name) or param.help}\n"


# The default model ------------------------------------------------------------------------------

USE = """
attnviz use
attnviz use --none
attnviz use ./my-checkpoint
"""


@dataclass(frozen=True)
class _Choice(Options):
    model: str | None = argument(
        "MODEL",
        "The model to use when --model is omitted; without MODEL, show it.",
        autocompletion=complete_model,
    )
    none: bool = flag("Clear the default; use the bundled model again.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.none and self.model is not None:
            raise UsageError("--none keeps no model: leave MODEL out, or --none")


@command(USE, "--none")
def use(choice: _Choice) -> None:
    """Set or show the default model, which is used if --model is omitted."""
    if choice.none:
        there, file = default.forget(), default.kept_file()
        change = f"{file} is removed" if there else f"nothing was kept in {file}"
        lines = [change, _now(default.BUNDLED)]
    elif choice.model is not None:
        file = default.keep(choice.model)
        lines = [_now(default.kept_model() or ""), f"kept in {file}; attnviz use --none removes it"]
    else:
        name = default.default_model()
        source = name.source if isinstance(name, default.DefaultName) else "the bundled one"
        kept = default.kept_model()
        file = default.kept_file()
        lines = [f"without --model: {name} ({source})"]
        if kept is None:
            lines.append(f"nothing is kept in {file}; attnviz use MODEL keeps one")
        else:
            lines.append(f"kept in {file}: {kept}; attnviz use --none removes it")
            try:
                default.checked(kept)
            except AttnvizError as error:
                lines.append(f"there is no such model here: {error}")
    with printing():
        print("\n".join(map(visible, lines)))


def _now(name: str) -> str:
    first = f", but {default.VARIABLE} comes first" if os.environ.get(default.VARIABLE) else ""
    return f"without --model: {name}{first}"
