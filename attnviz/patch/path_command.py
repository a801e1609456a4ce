"""``attnviz path``: its options, and its report for every outlet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from attnviz.cli import options as shared
from attnviz.cli.groups import Options, argument, command, option
from attnviz.patch.options import PromptPair, View

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document
    from attnviz.patch.path import Listener, PathReport
    from attnviz.records import Tokens

EXAMPLES = """
[bold]Examples[/bold]

attnviz path L0H0

attnviz path L0H0 "Tom Brown met Jane Green, and Tom" "Tom Harris met Jane Green, and Tom"

attnviz path L1H2 --into value --pairs pairs.jsonl --save listeners.csv
"""

SCHEMA = "attnviz.path/1"


@dataclass(frozen=True)
class Sender(Options):
    """The head that is listened to."""

    sender: str = argument("HEAD", "The head that later heads read from, such as L0H0.", ...)


@dataclass(frozen=True)
class Into(Options):
    """What of the later heads reads it."""

    into: Literal["query", "key", "value"] | None = option(
        "WHAT", "Into their queries, keys or values alone (default: all three)."
    )


@command(EXAMPLES)
def path(
    sender: Sender,
    prompts: PromptPair,
    into: Into,
    view: View,
    counted: shared.IndexBase,
    model: shared.Model,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Follow one head: which later heads read what it writes."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.cli.progress import loading as opening
    from attnviz.cli.progress import scanning
    from attnviz.cli.terminal import messages
    from attnviz.models.resolve import load
    from attnviz.patch.pairs import read_pairs
    from attnviz.patch.path import path_report

    options = shared.load_options(model.model, loading, model.seed)
    outlet = open_outlet(output)
    given = read_pairs(prompts.clean, prompts.corrupt, prompts.pairs)
    with opening(model.model, outlet.notices) as progress:
        loaded = load(model.model, replace(options, progress=progress))
    with scanning("following paths", messages(output.quiet)) as advance:
        report = path_report(
            loaded,
            sender.sender,
            given,
            into.into,
            seed=model.seed,
            top=view.top,
            index_base=counted.index_base,
            on_progress=advance,
        )
    outlet.show(_Followed(report, output.explain, not output.quiet))


@dataclass(frozen=True)
class _Followed:
    """What listens to a head, for every outlet. explain: add a reading for newcomers."""

    report: PathReport
    explain: bool = False
    hints: bool = True

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """Everything as one JSON object, ASCII only; indices start at 0."""
        from attnviz.draw.values import model_facts

        report = self.report
        pair = report.pairs[0]
        data = {
            "schema": SCHEMA,
            "model": model_facts(report.model),
            "sender": {"layer": report.sender[0], "head": report.sender[1]},
            "clean": _tokens(pair.clean),
            "corrupt": _tokens(pair.corrupt),
            "method": "direct path, norms held at the corrupt run",
            "into": report.into,
            "source": report.source or None,
            "pair_count": len(report.pairs),
            "seed": report.seed,
            "notes": list(report.notes),
            "heads": [_entry(one) for one in report.listeners],
        }
        stream.write(json.dumps(data, allow_nan=False) + "\n")

    def rows(self) -> Iterator[tuple[object, ...]]:
        """The header, then a row for each later head and kind of input."""
        for number, one in enumerate(self.report.listeners):
            entry = _entry(one)
            if not number:
                yield tuple(entry)
            yield tuple("" if value is None else value for value in entry.values())

    def document(self) -> Document:
        from attnviz.patch.path_document import path_document

        return path_document(self.report, self.explain, self.hints)


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {"tokens": list(tokens.texts), "token_ids": list(tokens.ids)}


def _entry(one: Listener) -> dict[str, Any]:
    from attnviz.draw.values import json_number

    low, high = one.interval or (None, None)
    return {
        "layer": one.place[0],
        "head": one.place[1],
        "into": one.into,
        "share": json_number(one.share),
        "ci_low": json_number(low),
        "ci_high": json_number(high),
        "other_heads": json_number(one.others),
        "explained": json_number(one.explained),
        "moved": json_number(one.moved),
    }
