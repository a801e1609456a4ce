"""``attnviz ablate``: what is lost when heads are ablated."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.errors import UnsupportedError
from attnviz.inspect.ablate.options import (
    AblatedModel,
    Ablation,
    Measure,
    Request,
    View,
    WrittenText,
)

if TYPE_CHECKING:
    from attnviz.inspect.ablate.records import AblationReport
    from attnviz.models.model import Model
    from attnviz.records import HeadsReport

EXAMPLES = """
[bold]Examples[/bold]

attnviz ablate

attnviz ablate --head 3

attnviz ablate "When Mary and John went out, John gave a book to Mary." --head L1H0 --by-token

attnviz ablate --texts stories.txt --mode mean --resume scan.jsonl --save scan.csv

attnviz ablate --model openai-community/gpt2 --method budget --budget 30s
"""

RESUME = "attnviz.ablate-resume/1"
"""The schema of the file of ``--resume``."""

_ALL_MAPS = 64_000_000
_SOME_MAPS = 512_000_000
"""Bytes of maps up to which those of all ablated heads, or of the ranked ones, are kept."""

_MOST_FOLLOWED = 3
"""Heads whose losses by token a first screen may show."""


@command(EXAMPLES)
def ablate(
    texts: shared.Texts,
    truncation: options.Truncation,
    kind: WrittenText,
    heads: options.HeadChoice,
    ablation: Ablation,
    measure: Measure,
    view: View,
    counted: options.IndexBase,
    model: AblatedModel,
    own: shared.OwnShape,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Ablate each head and measure how much the loss rises."""
    # What can be refused is refused before a model is loaded. Ctrl-C shows what is done.
    from attnviz.cli.outlet import Found, open_outlet
    from attnviz.inspect.ablate.data import LISTS, ablation_data, ablation_rows
    from attnviz.inspect.ablate.document import ablation_document
    from attnviz.inspect.ablate.job import Job
    from attnviz.inspect.ablate.scan import measure as measure_job
    from attnviz.resume import ResumeFile
    from attnviz.texts import read_texts, read_texts_file

    options = shared.load_options(model.model, loading, model.seed, own)
    request = Request(heads, counted, ablation, measure, view, kind, truncation, model.seed)
    outlet, resume = open_outlet(output), measure.resume
    read, where = read_texts(texts.text, texts.file, texts.texts), ablation.reference
    reference = read_texts_file(where, "--reference") if where is not None else None
    with outlet.opened(model.model, options) as loaded:
        job = Job.prepare(loaded, read, reference, request)
    file = ResumeFile(resume, RESUME, job.identity()) if resume is not None else None
    with file or nullcontext(), outlet.advancing("ablating heads", long=True) as advance:
        measured = measure_job(job, file, advance)
    if not measured.empty:
        report = measured.report()
        if outlet.console is not None and not output.whole:
            report = measured.followed(report, _MOST_FOLLOWED)
        report = replace(
            report,
            source=read.source,
            target=_target(report, request),
            patterns=_patterns(report, loaded),
            hints=() if output.quiet else _hints(report, read.source, output.explain),
        )
        drawn = partial(ablation_document, report, output.explain)
        found = partial(ablation_data, report), partial(ablation_rows, report)
        outlet.show(Found(*found, drawn, LISTS))
    if not measured.complete:
        outlet.interrupted(resume)


def _target(report: AblationReport, request: Request) -> str | None:
    """What the decoder read with the first text, as given or as the model wrote it."""
    from attnviz.measures.words import joined

    if not report.targets:
        return None
    return request.kind.target if request.kind.target is not None else joined(report.targets[0])


def _patterns(report: AblationReport, model: Model) -> HeadsReport | None:
    """The attention of the ablated heads over the first text, or only of the ranked ones."""
    from attnviz.engine.capture import capture
    from attnviz.engine.known_labels import known_labels
    from attnviz.measures.one_text import head_scores
    from attnviz.records import HeadsReport

    wanted = {head for effect in report.effects for head in effect.variant.heads}
    wanted |= set(report.gradients)
    queries = (report.targets if report.kind in ("decoder", "cross") else report.texts)[0]
    one = 4 * len(queries) * len(report.texts[0])
    if one * len(wanted) > _ALL_MAPS:
        order = report.ranking()
        ranked = {effect.variant.heads[0] for effect in (*order.matter, *order.harm)}
        wanted = ranked or set(report.by_gradient[: report.top])
    if not wanted or one * len(wanted) > _SOME_MAPS:
        return None
    heads: dict[int, set[int]] = {}
    for layer, head in wanted:
        heads.setdefault(layer, set()).add(head)
    target = report.targets[0] if report.targets else None
    try:
        record = capture(model, report.texts[0], kind=report.kind, target=target, heads=heads)
    except UnsupportedError:  # what its heads cost is known all the same
        return None
    # What these notes say of the text has no place among those of a scan.
    record = replace(record, model=replace(record.model, notes=()))
    scores = head_scores(record, known_labels(model, record.kind))
    return HeadsReport(record, scores, (), True, report.index_base)


def _hints(report: AblationReport, source: str, explained: bool) -> tuple[str, ...]:
    from attnviz.inspect.ablate.words import ablates_every

    hints = []
    best = report.ranking(1).matter
    if best and not report.by_token and "loss" in report.baseline:
        chosen = f"--head {report.name(best[0].variant)} " if report.unit == "head" else ""
        hints.append(f"{chosen}--by-token")
    if source.endswith("built-in texts"):
        hints.append("--texts FILE your data")
    elif not report.ranks and report.model.weights != "random":
        hints.append("--texts FILE for intervals")
    if report.method == "exact" and len(report.effects) > 1 and not ablates_every(report):
        hints.append("--together")
    if not explained:
        hints.append("--explain")
    return tuple(hints)
