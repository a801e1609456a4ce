"""How many lines each command's first screen takes, in terminals of three sizes.

    python tests/benchmarks/screens.py [--model DIR] [COMMAND...]

prints a table: rows are commands with the bundled model, a model of your own and a long text,
columns are terminals. A screen that is taller than its terminal, wider, or has no finding in its
second line is marked. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
from rich.cells import cell_len

SIZES = ((80, 24), (120, 40), (200, 60))
CAT = '"The cat sat on the mat because it was tired."'
COMMANDS = {
    "heads": f"heads {CAT}",
    "heads --token": f"heads {CAT} --token it",
    "heads --pair": f"heads {CAT} --pair it cat",
    "rollout": f"rollout {CAT}",
    "patterns": "patterns",
    "patterns --watch": "patterns --watch induction",
    "ablate": "ablate",
    "ablate --by-token": "ablate --head L1H2 --by-token",
    "prune": "prune --fraction 0.3",
    "params": "params llama-3-8b --tokens 32768 --memory 24GB",
    "params --d-model": "params --d-model 4096 --heads 32",
    "scaling": "scaling",
    "verify": "verify",
    "sweep": "sweep --heads 1,4 --seeds 2 --steps 60",
    "train": "train {text} --tokens 20000 --out $(mktemp -u)",
    "docs": "docs",
    "--help": "--help",
}
OF_A_MODEL = ("heads", "heads --token", "heads --pair", "rollout", "patterns", "ablate", "verify")
OF_A_TEXT = ("heads", "heads --token", "rollout", "ablate")


def lines_of(command: str, columns: int, rows: int) -> list[str]:
    """What a command prints on a terminal, without colours; progress is left out."""
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": str(columns), "LINES": str(rows)}
    program = Path(sys.executable).with_name("attnviz")
    child = pexpect.spawn(
        "sh",
        ["-c", f"{shlex.quote(str(program))} {command} 2>/dev/null"],
        dimensions=(rows, columns),
        env=environment,
        encoding="utf-8",
        timeout=900,
    )
    shown = child.read()
    child.close()
    return shown.replace("\r\n", "\n").rstrip("\n").split("\n")


def measured(command: str) -> Iterator[str]:
    """A cell for each size: the lines, and what is wrong with them."""
    for columns, rows in SIZES:
        lines = lines_of(command, columns, rows)
        wrong = []
        if len(lines) >= rows:
            wrong.append("too tall")
        if max(map(cell_len, lines)) > columns:
            wrong.append("too wide")
        yield f"{len(lines)}{' **' + ', '.join(wrong) + '**' if wrong else ''}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a checkpoint, beside the bundled model")
    parser.add_argument("--text", help="a file with a long text", default=None)
    parser.add_argument("commands", nargs="*", default=list(COMMANDS))
    chosen = parser.parse_args()
    print("| command | of | " + " | ".join(f"{columns}×{rows}" for columns, rows in SIZES) + " |")
    print("|---|---|" + "---|" * len(SIZES))
    for name in chosen.commands:
        command = COMMANDS[name].format(text=chosen.text)
        runs = {"tiny": command}
        if chosen.model and name in OF_A_MODEL:
            runs["--model"] = f"{command} --model {shlex.quote(chosen.model)}"
        if chosen.text and name in OF_A_TEXT:
            runs["long text"] = f"{command.replace(CAT, '')} --file {shlex.quote(chosen.text)}"
        for kind, run in runs.items():
            print(f"| {name} | {kind} | " + " | ".join(measured(run)) + " |", flush=True)


if __name__ == "__main__":
    main()
