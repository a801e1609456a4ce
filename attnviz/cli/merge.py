"""The command ``attnviz merge``: one result from the files of a corpus' shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.cli.outlet import Outlet
from attnviz.options import Options, argument

EXAMPLES = """
attnviz merge part-*.record --save result.json
attnviz merge part-0.record part-1.record --full
"""


@dataclass(frozen=True)
class _Parts(Options):
    """The argument that names the files of all shards."""

    parts: tuple[Path, ...] = argument(
        "PART", "The files that --resume kept, one per shard.", ..., show_default=False
    )


@command(EXAMPLES, "--full")
def merge(parts: _Parts, output: shared.Output) -> None:
    """Add the results of shards up into what one process would give."""
    from attnviz.inspect.merge import merge as question

    outlet = Outlet.open(output)
    outlet.show(question.merge(parts.parts))
