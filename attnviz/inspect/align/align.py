"""From clips or sentence pairs to a report: which heads align their words with the other side."""

from __future__ import annotations

from attnviz.errors import UnsupportedError
from attnviz.inspect.align.clips import Clips, heard
from attnviz.inspect.align.pairs import GoldPairs, paired
from attnviz.inspect.align.report import AlignReport
from attnviz.inspect.align.request import AlignRequest
from attnviz.inspect.align.study import choose
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.speech import SpeechModel
from attnviz.models.work import ON_TORCH, Work
from attnviz.progress import UNWATCHED, Advance


def work(given: Clips | GoldPairs) -> Work:
    """Return the planned work, by which the loader opens a model of sounds or of texts."""
    return Work(speech=True) if isinstance(given, Clips) else ON_TORCH


def align(
    model: Model, given: Clips | GoldPairs, request: AlignRequest, advance: Advance = UNWATCHED
) -> AlignReport:
    """Return which cross-attention heads align words, chosen and reported on halves.

    given: sounds with the times of their words, or sentence pairs with gold links. advance: is
    called with the share of these that is read. Every second one chooses heads greedily, by the
    mean error of the beginnings of words or by the alignment error rate; the others are measured.

    Raises UnsupportedError for a model of another kind, LoadError or UsageError for a sound or
    words that do not fit the model.
    """
    if isinstance(given, Clips):
        assert isinstance(model, SpeechModel)
        study, notes = heard(model, given, request.recipe or "openai", advance)
    else:
        if not isinstance(model, TwoStackModel) or isinstance(model, SpeechModel):
            raise UnsupportedError(
                f"{model.info.name!r} translates no text: --pairs takes an encoder–decoder, such "
                "as Helsinki-NLP/opus-mt-en-de"
            )
        study, notes = paired(model, given, advance)
    names = [each.name for each in next(iter(study.readings.values()))]
    choice = choose(study, request.most, request.seed)
    return AlignReport(
        model=model.info,
        choosing=tuple(names[::2]),
        held=tuple(names[1::2]),
        recipe=choice.reading,
        frame=model.frame_seconds if isinstance(model, SpeechModel) else None,
        published=tuple(study.published),
        heads=choice.heads,
        steps=choice.steps,
        sets=choice.sets,
        words=choice.words,
        notes=tuple(dict.fromkeys([*model.info.notes, *notes])),
        index_base=request.index_base,
    )
