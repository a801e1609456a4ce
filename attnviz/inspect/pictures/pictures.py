"""Labels the heads of a vision model over many pictures: what each does, and in how many."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attnviz.errors import LoadError, UsageError
from attnviz.inspect.picture.picture import picture
from attnviz.inspect.picture.report import HeadOnPicture
from attnviz.inspect.picture.request import PictureRequest
from attnviz.inspect.pictures.report import HeadOverPictures, PicturesReport
from attnviz.measures.bootstrap import intervals
from attnviz.models.pictures import read_picture
from attnviz.models.vision import PictureModel
from attnviz.progress import UNWATCHED, Advance

_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")

_AGREE = 2 / 3
"""The share of the pictures in which a head has its label, at least."""


def picture_files(directory: str) -> tuple[str, ...]:
    """Return the paths of the pictures in a directory, in the order of their names.

    Raises LoadError if it is no directory, UsageError if it has none.
    """
    folder = Path(os.path.expanduser(directory))
    if not folder.is_dir():
        raise LoadError(f"no directory {directory!r} here: --images takes one with pictures in it")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)
    if not files:
        raise UsageError(f"no picture lies in {directory!r}: expected {', '.join(_ENDINGS)}")
    return tuple(map(str, files))


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
    request = PictureRequest(index_base=index_base, token="mean")
    reports, measured = [], list[tuple[HeadOnPicture, ...]]()
    for at, path in enumerate(paths):
        read = model.read(read_picture(path))
        reports.append(picture(model, read, request))
        measured.append(reports[-1].measured)
        model.forget(read)
        advance((at + 1) / len(paths))
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


def _over(seen: Sequence[HeadOnPicture], end: tuple[float, float] | None) -> HeadOverPictures:
    """Return what a head does over all pictures. seen: on each. end: of the mean distance."""
    label, times = Counter(head.label for head in seen).most_common(1)[0]
    peaks = [0.0 if head.means is None else float(head.means[head.peak]) for head in seen]
    return HeadOverPictures(
        layer=seen[0].layer,
        head=seen[0].head,
        label=label if times >= _AGREE * len(seen) else "",
        times=times,
        distance=float(np.mean([head.distance for head in seen])),
        interval=end,
        cls=_mean([head.cls for head in seen]),
        register=_mean([head.register for head in seen]),
        peak=float(np.mean(peaks)),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
