"""Labels the heads of a vision model over many pictures: what each does, and in how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from attnviz.inspect.picture.picture import picture
from attnviz.inspect.picture.report import HeadOnPicture, PictureReport
from attnviz.inspect.picture.request import PictureRequest
from attnviz.inspect.pictures.report import HeadOverPictures, PicturesReport
from attnviz.measures.bootstrap import intervals
from attnviz.models.vision import PictureModel
from attnviz.progress import UNWATCHED, Advance

_AGREE = 2 / 3
"""The share of the pictures in which a head has its label, at least."""


def pictures(
    model: PictureModel,
    paths: Sequence[str],
    index_base: int = 0,
    seed: int = 0,
    advance: Advance = UNWATCHED,
) -> PicturesReport:
    """Return what each head does over pictures.

    index_base: of layers and heads in names. seed: of the bootstrap. advance: is called with the
    share of the pictures that is read.

    Raises LoadError for a file that is no picture, UsageError or UnsupportedError as ``picture``
    does.
    """
    reports = list(on_each(model, paths, index_base, advance))
    measured = [report.measured for report in reports]
    distances = np.array([[head.distance for head in heads] for heads in measured])
    ends = intervals(distances, seed)
    heads = [
        _over(of_head, end) for of_head, end in zip(zip(*measured, strict=True), ends, strict=True)
    ]
    return PicturesReport(
        model=reports[0].model,
        paths=tuple(paths),
        heads=tuple(heads),
        uniform=float(np.mean([report.uniform for report in reports])),
        token=float(np.mean([1 / len(report.layout) for report in reports])),
        outlying=sum(bool(report.artefacts) for report in reports),
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        index_base=index_base,
        seed=seed,
    )


def on_each(
    model: PictureModel, paths: Sequence[str], index_base: int = 0, advance: Advance = UNWATCHED
) -> Iterator[PictureReport]:
    """Yield what each head does on one picture after the other; see ``pictures``.

    The model keeps those that it had read before, and no others.
    """
    request = PictureRequest(index_base=index_base, token="mean")
    for at, path in enumerate(paths):
        known = path in model.pictures
        read = model.read(path)
        yield picture(model, read, request)
        if not known:
            model.forget(read)
        advance((at + 1) / len(paths))


def label_over(seen: Sequence[HeadOnPicture]) -> tuple[str, int]:
    """Return the commonest label of a head, or an empty one, and on how many pictures it has that.

    seen: the head on each picture. The label is empty below two thirds of them.
    """
    label, times = Counter(head.label for head in seen).most_common(1)[0]
    return label if times >= _AGREE * len(seen) else "", times


def _over(seen: Sequence[HeadOnPicture], end: tuple[float, float] | None) -> HeadOverPictures:
    """Return what a head does over all pictures. seen: on each. end: of the mean distance."""
    label, times = label_over(seen)
    return HeadOverPictures(
        layer=seen[0].layer,
        head=seen[0].head,
        label=label,
        times=times,
        distance=float(np.mean([head.distance for head in seen])),
        interval=end,
        cls=_mean([head.cls for head in seen]),
        register=_mean([head.register for head in seen]),
        peak=float(np.mean([head.peak_share for head in seen])),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
