"""The command tree; only the module of the command that runs is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attnviz import __version__
from attnviz.cli.groups import SETTINGS, with_plain_values

GROUPS = {
    "Look": {
        "heads": "Show where each attention head attends, over one text.",
        "rollout": "Follow attention through all layers, back to the input.",
        "explore": "Explore a model live: move, ablate, edit the text, generate.",
        "generate": "Let the model write on, and see where its heads look.",
    },
    "Measure": {
        "why": "Show what each head writes towards the predicted token.",
        "patterns": "Score every head and label what it does, against chance.",
        "patch": "Patch heads between two prompts: which carry the difference.",
        "path": "Follow one head: which later heads read what it writes.",
        "ablate": "Ablate each head and measure how much the loss rises.",
        "prune": "Remove the least important heads, beside as many at random.",
        "diff": "Compare two models head by head, beyond a noise floor.",
        "check": "Hold a model against rules in a file: a gate for CI.",
    },
    "Count": {
        "params": "Count parameters, KV cache, FLOPs and memory of a model.",
    },
    "Learn": {
        "scaling": "Compare the softmax with and without the scale 1/sqrt(d_k).",
        "verify": "Check attention against reference implementations.",
        "sweep": "Train a small decoder with 1, 2, 4 and 8 heads; compare them.",
        "train": "Train a small language model on your texts.",
        "docs": "Read the manual: a page for each command, and more.",
    },
}
"""The first line of each command's help, by group and command."""

COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}


class _Lazy(TyperGroup):
    """A command group that imports a command only to run it or complete its options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, line in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line))

    def get_params(self, ctx: Any) -> list[Any]:
        return with_plain_values(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write all commands on one small screen."""
        path = ctx.command_path
        lines = [
            str(self.help),
            f"Usage: {path} COMMAND [OPTIONS | --help] | --version | --install-completion",
            "",
        ]
        for group, commands in GROUPS.items():
            for place, (name, line) in enumerate(commands.items()):
                title = typer.style(group.ljust(9), bold=not place)
                lines.append(f"{title if not place else ' ' * 9}{name.ljust(10)}{line}")
        start = f'{path} heads "The cat sat on the mat because it was tired."'
        lines += ["", f"{'Start'.ljust(9)}{start}"]
        formatter.write("\n".join(lines) + "\n")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            found = getattr(import_module(f"attnviz.cli.{args[0]}"), args[0])
            self.add_command(typer.main.get_command(found), args[0])
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
    """See where each attention head looks, test whether it matters, count its cost."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
