"""Labels of a model's heads that were measured before, from the bundled card or the user's cache.

``patterns`` keeps its labels in the user's cache, under a fingerprint of the weights. The bundled
model's card lies next to its weights in the same format: an object with ``schema``, ``model`` (the
fingerprint), ``kind``, ``sizes`` of the model (layers, heads, kv_heads, head_dim), ``date`` and
``heads``, a list of [layer, head, label or null, score or null].
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from attnviz.engine.selection import single_head
from attnviz.errors import LoadError, UsageError
from attnviz.measures.labels import KnownLabel, KnownLabels
from attnviz.measures.registry import LABELS, label_named, plain_name, typed_names
from attnviz.models.model import Model, weights_fingerprint
from attnviz.models.shapes import nearest
from attnviz.reading import PACKAGED, SETTINGS_BYTES, damaged, open_regular, parse_json, read_stream
from attnviz.records import Kind, ModelInfo, Source

SCHEMA = "attnviz.labels/1"

_BEGIN = 400
"""The number of bytes at the beginning of a label file that hold everything before its heads."""

_CARD = PACKAGED / "tiny" / "labels.json"


def known_labels(model: Model, kind: Kind, *, ignored: bool = False) -> KnownLabels | None:
    """Return the labels of the heads that were measured before; None if there are none.

    They are from the bundled card or from ``patterns``. ignored: True, for ``--no-known-labels``,
    always returns None. Models with random parameters have no labels. An unreadable file, or one of
    another version, is ignored.
    """
    if ignored:
        return None
    if model.info.weights == "trained":
        return _read(_CARD, str(model.info.revision), kind, "card")
    directory = _directory()
    if directory is None or not _may_know(directory, model, kind):
        return None
    path = label_file(model, kind)
    return None if path is None else _read(path, path.stem.split("-")[0], kind, "patterns")


def by_label(model: Model, kind: Kind, typed: Sequence[str], base: int) -> tuple[str, ...]:
    """Return typed choices of heads, with each label replaced by the names of its heads.

    typed: such as ``induction`` or ``L0H0,induction``; names of heads stay. base: the number of the
        first layer and head in names, 0 or 1.
    Raises UsageError for a label if no labels of the model are known, or if no head has this label.
    """
    choices = (choice.split(",") for choice in typed)
    return tuple(",".join(_of_label(model, kind, part, base) for part in own) for own in choices)


def head_or_label(model: Model, kind: Kind, typed: str, base: int) -> tuple[int, int]:
    """Return the (layer, head) of one head, of a label the head with the highest score.

    typed: such as ``L1H2`` or ``induction``; see ``by_label``. base: the number of the first layer
    and head, 0 or 1. Raises UsageError too if that is not one head.
    """
    (best,), info = by_label(model, kind, (typed,), base), model.info
    if best != typed and (known := known_labels(model, kind)) is not None:
        heads = known.heads.items()
        scores = {f"L{at + base}H{head + base}": label.score for (at, head), label in heads}
        best = max(best.split(","), key=scores.__getitem__)
    return single_head(best, info.layers, info.heads, base)


def _of_label(model: Model, kind: Kind, part: str, base: int) -> str:
    names = typed_names(LABELS)
    if (name := names.get(plain_name(part))) is None:
        spelled = part.isalpha() and len(part) > 4  # a shorter word is like every label
        meant = nearest(plain_name(part), names) if spelled else ""
        if meant:
            raise UsageError(f"no head or label {part!r}{meant}")
        return part
    known = known_labels(model, kind)
    if known is None:
        measured = "" if model.info.weights == "random" else "attnviz patterns measures them, or "
        raise UsageError(
            f"no label of a head of {model.info.name!r} is known: {measured}name heads such as L1H2"
        )
    heads = [head for head, label in known.heads.items() if label.name == name]
    if not heads:
        labels = sorted({label_named(label.name).said for label in known.named().values()})
        raise UsageError(
            f"no head of {model.info.name!r} is labelled {label_named(name).said}: its labels are "
            f"{', '.join(labels)}"
        )
    return ",".join(f"L{layer + base}H{head + base}" for layer, head in heads)


def _may_know(directory: Path, model: Model, kind: Kind) -> bool:
    """Return True if ``directory`` may have labels of such a model, before fingerprints."""
    try:
        for path in directory.glob(f"*-{kind}.json"):
            with suppress(OSError), open_regular(path) as file:
                begin = file.readline(_BEGIN)
                if _sizes(model.info) in begin or b'"sizes"' not in begin:
                    return True
    except OSError:  # the name of the directory is too long
        pass
    return False


def _sizes(info: ModelInfo) -> bytes:
    sizes = [info.layers, info.heads, info.kv_heads, info.head_dim]
    return f'"sizes": {sizes}'.encode()


def label_file(model: Model, kind: Kind) -> Path | None:
    """Return the label file of a checkpoint's weights, in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if model.info.weights not in ("checkpoint", "loaded"):
        return None
    directory = _directory()
    return None if directory is None else directory / f"{weights_fingerprint(model)}-{kind}.json"


def _directory() -> Path | None:
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        cache = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    except RuntimeError:  # there is no home directory
        return None
    return cache / "attnviz" / "labels"


def labels_json(
    fingerprint: str, kind: Kind, known: KnownLabels, info: ModelInfo | None = None
) -> bytes:
    """Return the content of a label file: a line for each head, with the model's sizes if known."""
    begin = json.dumps({"schema": SCHEMA, "model": fingerprint, "kind": kind}).removesuffix("}")
    lines = ",\n".join(map(json.dumps, head_list(known)))
    sizes = b"" if info is None else b", " + _sizes(info)
    kept = f', "date": "{known.date}"' if known.date else ""
    return begin.encode() + sizes + f'{kept}, "heads": [\n{lines}\n]}}\n'.encode()


def head_list(known: KnownLabels) -> list[list[Any]]:
    """Return [layer, head, label or None, score or None] for each head, for a JSON file."""
    return [
        [*head, label.name, None if math.isnan(label.score) else round(label.score, 4)]
        for head, label in known.heads.items()
    ]


def labels_of(read: Mapping[str, Any], source: Source) -> KnownLabels:
    """Return the labels in a JSON object that was read from a file.

    read: has ``heads``, a list of [layer, head, label or None, score or None], and maybe ``date``.
    source: where the file is from. Labels of another version are left out. Raises ValueError,
    TypeError or KeyError if ``read`` has another form.
    """
    kept = read.get("date") or ""
    heads = {
        (int(layer), int(head)): KnownLabel(name, math.nan if score is None else float(score))
        for layer, head, name, score in read["heads"]
        if name is None or name in LABELS
    }
    if any(not 0 <= label.score <= 1 for label in heads.values() if label.name is not None):
        raise ValueError("a label whose score is no share of one")
    return KnownLabels(source, heads, kept and date.fromisoformat(kept).isoformat())


def _read(path: Path, fingerprint: str, kind: Kind, source: Source) -> KnownLabels | None:
    try:
        with damaged(str(path)):
            with open_regular(path) as file:
                read = parse_json(read_stream(file, str(path), SETTINGS_BYTES), str(path))
            if (read["schema"], read["model"], read["kind"]) != (SCHEMA, fingerprint, kind):
                return None
            return labels_of(read, source)
    except LoadError:
        return None
