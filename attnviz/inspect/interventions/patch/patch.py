"""Answers ``patch``: which heads carry the difference between two prompts."""

from __future__ import annotations

from contextlib import nullcontext

from attnviz.inspect.interventions.patch.job import prepare
from attnviz.inspect.interventions.patch.report import PatchReport
from attnviz.inspect.interventions.patch.request import PatchRequest
from attnviz.inspect.interventions.patch.run import PatchStudy
from attnviz.inspect.interventions.prompts import PromptPairs
from attnviz.models.model import Model
from attnviz.models.resolve import reckoned_tokens
from attnviz.progress import UNWATCHED, Watch
from attnviz.resume import ResumeFile

_SCHEMA = "attnviz.patch-resume/1"


def reckoned(pairs: PromptPairs, request: PatchRequest) -> int | None:
    """Return about how many tokens a model runs on for these prompt pairs.

    None means that torch must run the model, however long the prompts are.
    """
    if request.method != "exact":
        return None
    return sum(reckoned_tokens(text) for pair in pairs.prompts for text in pair[:2])


def patch(
    model: Model, pairs: PromptPairs, request: PatchRequest, *, advance: Watch = UNWATCHED
) -> PatchReport:
    """Patch activations between the prompts of each pair; measure the effect of each patch.

    pairs: the prompt pairs, as ``read_pairs`` returns them. advance: is given the progress.
    The report of a run that Ctrl-C ended contains what was measured until then; ``complete`` is
    False. Raises UsageError for heads, prompts or tokens that do not fit the model,
    UnsupportedError for a model that predicts nothing or cannot be patched, LoadError for a damaged
    resume file, KeyboardInterrupt if nothing was measured.
    """
    job, path = prepare(model, pairs, request, advance), request.resume
    with ResumeFile(path, _SCHEMA, job.identity()) if path else nullcontext() as file:
        study = PatchStudy(job, file)
        study.measure(advance)
    return study.report()
