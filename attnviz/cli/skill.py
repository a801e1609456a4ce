"""Instructions for coding agents, made from what the commands declare of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from attnviz.cli.app import GROUPS, app
from attnviz.cli.groups import typed_option

_SHARED = ("--model", "--brief", "--json", "--save")
_ALONE = ("docs", "explore", "use")
"""Commands that are for people, at a terminal."""

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
    named = {spelled: one for one in command.params for spelled in one.opts}
    yield f"\n### attnviz {command.name}\n\n{command.help}\n\n```console\n"
    yield next(f"$ {line}\n" for line in command.epilog.splitlines() if line[:8] == "attnviz ")
    yield "```\n\n"
    for one in dict.fromkeys(named[name] for name in command.often if name not in _SHARED):
        yield f"- `{typed_option(one)}`: {command.briefs.get(one.name) or one.help}\n"
