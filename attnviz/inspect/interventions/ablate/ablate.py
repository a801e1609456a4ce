"""Answers ``ablate``: how much the loss rises without each head, over one text or many."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from attnviz.engine.capture import capture
from attnviz.engine.known_labels import known_labels
from attnviz.errors import UnsupportedError
from attnviz.inspect.interventions.ablate.job import AblationJob
from attnviz.inspect.interventions.ablate.report import AblationReport
from attnviz.inspect.interventions.ablate.request import AblateRequest
from attnviz.inspect.interventions.ablate.scan import AblationStudy
from attnviz.measures.one_text import head_scores
from attnviz.measures.words import joined
from attnviz.models.model import Model
from attnviz.models.work import CORPUS_WORK, Work, about_tokens
from attnviz.progress import UNWATCHED, Watch
from attnviz.records import HeadsRecord
from attnviz.resume import ResumeFile
from attnviz.texts import Texts

if TYPE_CHECKING:
    from attnviz.corpus import TextCorpus

_SCHEMA = "attnviz.ablate-resume/1"

_ALL_MAPS = 64_000_000
_SOME_MAPS = 512_000_000
"""Bytes of maps up to which those of all ablated heads, or of the ranked ones, are kept."""


def work(texts: Texts | TextCorpus, request: AblateRequest) -> Work:
    """Return what is planned with a model for texts, by which NumPy or torch is chosen."""
    if not isinstance(texts, Texts):
        return replace(CORPUS_WORK, changed=True)
    tokens = about_tokens(*texts.texts) if request.how == "exact" else None
    return Work(tokens, changed=True, joined=request.second is not None)


def ablate(
    model: Model,
    texts: Texts,
    request: AblateRequest,
    *,
    followed: int = 0,
    advance: Watch = UNWATCHED,
) -> AblationReport:
    """Ablate each head, and measure how much the loss rises without it.

    texts: over which it is measured. followed: for how many heads at the top of the ranking the
        change of each token's loss over the first text is measured too, by a further small scan.
    advance: is given the progress.
    The report of a run that Ctrl-C ended contains what was measured until then; ``complete`` is
    False. Raises UsageError for heads, texts or tokens that do not fit the model, UnsupportedError
    if its heads cannot be ablated, LoadError for a damaged resume file, KeyboardInterrupt if
    nothing was measured.
    """
    job, path = AblationJob.prepare(model, texts, request), request.resume
    with ResumeFile(path, _SCHEMA, job.identity()) if path else nullcontext() as file:
        study = AblationStudy(job, file)
        study.measure(advance)
    report = study.report()
    if followed:
        report = study.followed(report, followed)
    return replace(
        report,
        source=texts.source,
        target=(request.target or joined(report.targets[0])) if report.targets else None,
        patterns=_patterns(report, model, ignored=request.no_known_labels),
    )


def _patterns(report: AblationReport, model: Model, *, ignored: bool) -> HeadsRecord | None:
    """Return the attention of the ablated heads over the first text.

    If only some heads are in the ranking, it is that of those. ignored: True leaves out labels that
    were measured before. None if the attention cannot be observed, or is too large for the memory.
    """
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
    scores = head_scores(record, known_labels(model, record.kind, ignored=ignored))
    return HeadsRecord(record, scores, (), True, report.index_base)
