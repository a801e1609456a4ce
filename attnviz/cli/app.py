"""The command tree."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Annotated

import typer

from attnviz import __version__
from attnviz.cli.ablate import EXAMPLES as ABLATE_EXAMPLES
from attnviz.cli.ablate import ablate
from attnviz.cli.heads import EXAMPLES, heads
from attnviz.cli.option_lists import ListOptions
from attnviz.cli.params import PARAMS_EXAMPLES, params
from attnviz.cli.patterns import EXAMPLES as PATTERNS_EXAMPLES
from attnviz.cli.patterns import patterns
from attnviz.cli.prune import EXAMPLES as PRUNE_EXAMPLES
from attnviz.cli.prune import prune
from attnviz.cli.rollout import EXAMPLES as ROLLOUT_EXAMPLES
from attnviz.cli.rollout import rollout
from attnviz.cli.scaling import EXAMPLES as SCALING_EXAMPLES
from attnviz.cli.scaling import scaling
from attnviz.cli.sweep import EXAMPLES as SWEEP_EXAMPLES
from attnviz.cli.sweep import sweep
from attnviz.cli.train import EXAMPLES as TRAIN_EXAMPLES
from attnviz.cli.train import train
from attnviz.cli.verify import EXAMPLES as VERIFY_EXAMPLES
from attnviz.cli.verify import verify
from attnviz.errors import UsageError

__all__ = ["app"]

_LARGEST = 2**63 - 1

app = typer.Typer(
    name="attnviz",
    context_settings={"help_option_names": ["-h", "--help"]},
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


def _within_range(command: Callable[..., None]) -> Callable[..., None]:
    """The command, for whole numbers that torch and NumPy take: whatever the option."""

    @wraps(command)
    def run(**options: object) -> None:
        for value in options.values():
            if isinstance(value, int) and abs(value) > _LARGEST:
                raise UsageError(f"{value} is too large a number: expected at most 2^63 - 1")
        command(**options)

    return run


app.command(epilog=EXAMPLES)(_within_range(heads))
app.command(epilog=PATTERNS_EXAMPLES)(_within_range(patterns))
app.command(epilog=ROLLOUT_EXAMPLES)(_within_range(rollout))
app.command(epilog=ABLATE_EXAMPLES)(_within_range(ablate))
app.command(epilog=PRUNE_EXAMPLES)(_within_range(prune))
app.command(epilog=PARAMS_EXAMPLES)(params)  # has bounds of its own, by option
app.command(epilog=SCALING_EXAMPLES)(_within_range(scaling))
app.command(epilog=VERIFY_EXAMPLES)(_within_range(verify))
app.command(epilog=SWEEP_EXAMPLES)(_within_range(sweep))
app.command(epilog=TRAIN_EXAMPLES, cls=ListOptions)(_within_range(train))
