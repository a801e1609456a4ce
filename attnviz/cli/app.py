"""The command tree; only the module of the command that runs is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from textwrap import wrap
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attnviz import __version__
from attnviz.cli.groups import SETTINGS, WHOLE, cut_help, shell_columns, with_plain_values

GROUPS = {
    "Look": {
        "heads": "Show what each attention head attends to in a text.",
        "head": "Show one head's card.",
        "report": "Report on a model.",
        "atlas": "See what heads fire on.",
        "rollout": "Follow attention through all layers, back to the input.",
        "explore": "Explore a model live: navigate, ablate, edit, generate.",
        "generate": "Watch heads at each step.",
    },
    "Measure": {
        "why": "Show how much each head adds to the predicted token's logit.",
        "lens": "Logit lens at each layer.",
        "link": "Explain an attention edge.",
        "patterns": "Score every head against chance, and label what it does.",
        "patch": "Patch between prompts: which heads carry the difference?",
        "ablate": "Ablate each head and measure how much the loss rises.",
        "path": "Trace paths from a head.",
        "prune": "Remove unimportant heads.",
        "retrieve": "Find retrieval heads.",
        "align": "Find alignment heads.",
        "diff": "Compare two models.",
        "check": "Test heads in CI.",
        "merge": "Merge shard results.",
    },
    "Count": {"params": "Count a model's parameters, KV cache, FLOPs and memory."},
    "Learn": {
        "scaling": "Why divide by sqrt(d_k)?",
        "verify": "Check the attention code.",
        "sweep": "Train with 1 to 8 heads.",
        "train": "Train a small model.",
        "docs": "Read the manual.",
        "use": "Set a default model.",
    },
}
"""What each command does, by group and command; two short lines share one line of the help."""

_SHORT = 25  # the columns of a line that leaves room for a second command

COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}

_TOGETHER = {
    "heads": ("heads", "rollout"),
    "prompts": ("why", "link", "lens", "patch", "path"),
    "cards": ("head", "report"),
    "corpora": ("align", "atlas", "merge", "patterns", "retrieve"),
    "ablate": ("ablate", "prune"),
    "diff": ("check", "diff"),
    "explore": ("explore", "generate"),
    "docs": ("docs", "use"),
    "learn": ("scaling", "sweep", "train", "verify"),
}
"""The modules that have several commands, which read the same; each other command has its own."""


def app_of(name: str) -> typer.Typer:
    """Return the app of one command; only its module is imported."""
    module = next((module for module, names in _TOGETHER.items() if name in names), name)
    app: typer.Typer = getattr(import_module(f"attnviz.cli.{module}"), name)
    return app


LEAST_FOR_PAIRS = 80
"""The columns of a terminal from which on two short lines share one."""


def _lines(commands: Mapping[str, str], max_width: int) -> Iterator[str]:
    """Yield the lines of the help for some commands.

    commands: the help line of each by its name. max_width: in characters. A narrow terminal leaves
        out the lines of commands with short ones: their names share a line.
    """
    if max_width >= LEAST_FOR_PAIRS:
        yield from paired(commands)
        return
    few = [name for name, line in commands.items() if len(line) <= _SHORT]
    for name in commands:
        if name not in few:
            yield f"{name.ljust(10)}{cut_help(commands[name], max_width - 19)}"
    yield from [", ".join(few)] * bool(few)


def paired(commands: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a list of commands: one command in a line, or two if they are short."""
    waiting = ""  # a short one, until a second comes
    for name, line in commands.items():
        text, short = f"{name.ljust(10)}{line}", len(line) <= _SHORT
        if short and not waiting:
            waiting = text
        elif short:
            yield waiting.ljust(_SHORT + 11) + text
            waiting = ""
        else:
            yield text
    if waiting:
        yield waiting


class _Lazy(TyperGroup):
    """A command group that imports a command only to run it or complete its options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, line in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line))

    def get_params(self, ctx: Any) -> list[Any]:
        return with_plain_values(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[WHOLE] = "--help" in args
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of all commands on one small screen; ``--help`` names the options too."""
        path, room = ctx.command_path, shell_columns()
        usage = f"Usage: {path} COMMAND [-h | --help | OPTIONS]; {path} docs: the manual"
        lines = [*wrap(str(self.help), room), *wrap(usage, room), ""]
        for group, commands in GROUPS.items():
            title = typer.style(group.ljust(9), bold=True)
            for line in _lines(commands, room):
                lines.append(title + line)
                title = " " * 9
        start = f'{path} heads "The cat sat on the mat because it was tired."'
        options = ", ".join(name for param in self.get_params(ctx) for name in sorted(param.opts))
        whole = wrap(options, room - 9) if ctx.meta[WHOLE] else []
        lines += [""] * (not whole)  # twenty-three lines with or without
        lines.append(f"{'Start'.ljust(9)}{start}")
        title = "Options"
        for line in whole:
            lines.append(title.ljust(9) + line)
            title = ""
        formatter.write("\n".join(lines) + "\n")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.add_command(typer.main.get_command(app_of(args[0])), args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="attnviz",
    cls=_Lazy,
    context_settings=SETTINGS,
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attnviz {__version__}")
        raise typer.Exit


@app.callback()
def _attnviz(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """See where each attention head looks, whether it matters, and what it costs."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
