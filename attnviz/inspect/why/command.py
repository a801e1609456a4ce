"""``attnviz why``: what each head writes towards a prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.errors import UnsupportedError
from attnviz.inspect.why.options import ExplainedModel, Kind, Prompts, Question, Request, View

if TYPE_CHECKING:
    from attnviz.inspect.why.records import WhyReport

EXAMPLES = """
[bold]Examples[/bold]

attnviz why "Then Mary saw Tom. Then Mary saw"

attnviz why "Then Mary saw Tom. Then Mary saw" --answer Tom --foil Mary --head L1H0

attnviz why --texts prompts.jsonl --save parts.csv

attnviz why "The Eiffel Tower stands in the city of" --model openai-community/gpt2
"""


@dataclass(frozen=True)
class WhyOutput(shared.Output):
    """As everywhere, and files of arrays."""

    save: tuple[Path, ...] = shared.saved(f"{shared.EVERY} .npz")


@command(EXAMPLES)
def why(
    prompts: Prompts,
    question: Question,
    heads: options.HeadChoice,
    kind: Kind,
    truncation: options.Truncation,
    view: View,
    counted: options.IndexBase,
    model: ExplainedModel,
    own: shared.OwnShape,
    loading: shared.Loading,
    output: WhyOutput,
) -> None:
    """Show what each head writes towards the predicted token, exactly."""
    from attnviz.cli.outlet import Found, open_outlet
    from attnviz.inspect.why.data import why_data, why_rows, write_why_npz
    from attnviz.inspect.why.document import why_document
    from attnviz.inspect.why.job import explain, load_needs, read_prompts, taken_apart

    options = shared.load_options(model.model, loading, model.seed, own)
    request = Request(question, kind, heads, counted, view, truncation, model.seed)
    outlet = open_outlet(output)
    read, source = read_prompts(prompts, question)
    with outlet.opened(model.model, load_needs(options, read, request)) as opened:
        loaded = taken_apart(opened, model.model, options)
    with outlet.advancing("taking logits apart") as advance:
        report = explain(loaded, read, source, request, advance)
    hints = () if output.quiet else _hints(report, output.explain)
    outlet.show(
        Found(
            partial(why_data, report),
            partial(why_rows, report),
            partial(why_document, replace(report, hints=hints), output.explain),
            ("parts",),
            {".npz": partial(write_why_npz, report)},
        )
    )
    if not report.tallies:
        raise UnsupportedError(
            f"the parts of {report.model.name!r} do not sum to its logit (apart by "
            f"{report.apart:.2g}): its contributions are not known; attnviz ablate measures heads "
            "in another way"
        )


def _hints(report: WhyReport, explained: bool) -> tuple[str, ...]:
    if not report.tallies or not report.effects:
        return ()
    first, hints = report.first, []
    if not report.shown and (best := report.best) is not None:
        hints.append(f"--head {report.name(best.head).split()[0]} its write map")
    if first.foil is None and not report.many:
        others = [first.words[one] for one, _ in first.found.top if one != first.found.answer]
        words = [word.strip() for word in others if word.strip().isalpha()]
        hints += [f"--foil {word}" for word in words[:1]]
    if not report.many:
        hints.append("--texts FILE")
    if not explained:
        hints.append("--explain")
    return tuple(hints)
