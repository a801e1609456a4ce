"""The command tree: ten names, of which only the one that runs is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attnviz import __version__
from attnviz.cli.groups import SETTINGS

COMMANDS = {
    "heads": "Show where each attention head looks, over one text.",
    "patterns": "Score what every head does, label it, and hold it against a base rate.",
    "rollout": "Follow attention through all layers, from each output token to the input.",
    "ablate": "Remove heads and measure what is lost; all of them, exactly, in one scan.",
    "prune": "Remove the least important heads for good, beside as many at random.",
    "params": "Count parameters, KV cache, operations and memory of any attention design, exactly.",
    "scaling": "Compare the softmax of the same scores with the scale 1/√d_k and without it.",
    "verify": "Prove that attention is computed right: against other libraries, or in a model.",
    "sweep": "Train the same small decoder with 1, 2, 4, 8 heads, and compare what they learn.",
    "train": "Train a small language model of the library's own attention on your texts.",
}
"""Each command with the first line of its help."""

_ELSEWHERE = {"rollout": "attnviz.heads.rollout_command"}
"""Where a command does not stand in ``attnviz.NAME.command``."""


class _Lazy(TyperGroup):
    """Knows its commands by name and first line until one is to run or to complete its options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, line in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            place = _ELSEWHERE.get(args[0], f"attnviz.{args[0]}.command")
            found = getattr(import_module(place), args[0])
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
    """See where each attention head looks, test whether it matters, count what it costs."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
