"""The command ``attnviz use``: keeps the model that commands take without ``--model``."""

from __future__ import annotations

import os
from dataclasses import dataclass

from attnviz.cli import default_model as default
from attnviz.cli.groups import command
from attnviz.cli.options import complete_model
from attnviz.cli.terminal import printing
from attnviz.draw.labels import visible
from attnviz.errors import AttnvizError, UsageError
from attnviz.options import Options, argument, flag

EXAMPLES = """
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


@command(EXAMPLES, "--none")
def use(choice: _Choice) -> None:
    """Set the model that commands use without --model, or show it."""
    if choice.none:
        there, file = default.forget(), default.kept_file()
        said = f"{file} is removed" if there else f"nothing was kept in {file}"
        lines = [said, _now(default.BUNDLED)]
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
    """Return a line on which model commands take now, and whether a variable takes precedence."""
    first = f", but {default.VARIABLE} comes first" if os.environ.get(default.VARIABLE) else ""
    return f"without --model: {name}{first}"
