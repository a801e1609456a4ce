"""``attnviz path``: its options, and its report for every outlet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.inspect.patch.options import PromptPair, View
from attnviz.options import Options, argument, option

if TYPE_CHECKING:
    from attnviz.inspect.patch.path import Listener, PathReport

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
    counted: options.IndexBase,
    model: shared.Model,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Follow one head: which later heads read what it writes."""
    from attnviz.cli.outlet import Found, open_outlet
    from attnviz.draw.values import table_of
    from attnviz.inspect.patch.pairs import read_pairs
    from attnviz.inspect.patch.path import path_report
    from attnviz.inspect.patch.path_document import path_document

    options = shared.load_options(model.model, loading, model.seed)
    outlet = open_outlet(output)
    given = read_pairs(prompts.clean, prompts.corrupt, prompts.pairs)
    with outlet.opened(model.model, options) as loaded:
        pass
    with outlet.advancing("following paths", long=True) as advance:
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
    drawn = partial(path_document, report, output.explain, not output.quiet)
    entries = [_entry(one) for one in report.listeners]
    table = partial(table_of, [*entries[0]], entries)
    outlet.show(Found(partial(_data, report, entries), table, drawn))


def _data(report: PathReport, entries: list[dict[str, Any]]) -> dict[str, Any]:
    from attnviz.draw.values import model_facts, token_facts

    pair = report.pairs[0]
    return {
        "schema": SCHEMA,
        "model": model_facts(report.model),
        "sender": {"layer": report.sender[0], "head": report.sender[1]},
        "clean": token_facts(pair.clean),
        "corrupt": token_facts(pair.corrupt),
        "method": "direct path, norms held at the corrupt run",
        "into": report.into,
        "source": report.source or None,
        "pair_count": len(report.pairs),
        "seed": report.seed,
        "notes": list(report.notes),
        "heads": entries,
    }


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
