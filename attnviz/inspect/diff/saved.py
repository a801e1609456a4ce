"""A result that ``patterns`` or ``ablate`` saved as JSON, as one side of a comparison."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from attnviz.draw.labels import visible
from attnviz.draw.values import model_of
from attnviz.engine.head_run import Head
from attnviz.errors import LoadError
from attnviz.inspect.diff.report import HeadState
from attnviz.inspect.patterns.report import SCHEMA as PATTERNS
from attnviz.inspect.patterns.report import read_scores
from attnviz.reading import RESULT_BYTES, damaged, finite, optional, parse_json, read_bytes, typed
from attnviz.records import Kind, ModelInfo

_SCHEMAS = {PATTERNS: "patterns", "attnviz.ablate/1": "ablate"}


@dataclass(frozen=True)
class SavedResult:
    """The result in one saved file, as one side of a comparison.

    path: of the file. command: the one that wrote it. info: the model's facts. kind: of attention.
    heads: by (layer, head). text: the given text of ``patterns``; None for the probes.
    texts: the token ids of each text of ``ablate``. source: where these came from.
    """

    path: Path
    command: Literal["patterns", "ablate"]
    info: ModelInfo
    kind: Kind
    heads: Mapping[Head, HeadState]
    text: str | None = None
    texts: tuple[tuple[int, ...], ...] = ()
    source: str = ""


def is_saved(name: str) -> bool:
    """Return whether a name is that of a saved result: a file that ends in .json."""
    return name.lower().endswith(".json") and not os.path.isdir(os.path.expanduser(name))


def read_saved(name: str) -> SavedResult:
    """Return the saved result of ``patterns`` or ``ablate`` in a file.

    name: the path of the file.
    Raises LoadError for a file that cannot be read, is damaged, or has other content.
    """
    path = Path(os.path.expanduser(name))
    shown = repr(visible(str(path)))
    data = parse_json(read_bytes(path, name=shown, most=RESULT_BYTES), shown)
    schema = data.get("schema") if isinstance(data, dict) else None
    command = _SCHEMAS.get(schema) if isinstance(schema, str) else None
    if command is None:
        got = f"the schema {visible(str(schema))[:60]!r}" if schema else "no schema"
        raise LoadError(
            f"{shown} holds {got}: expected what attnviz patterns or ablate --save FILE.json "
            f"writes ({' or '.join(_SCHEMAS)})"
        )
    with damaged(shown, f"save it again with attnviz {command} --save"):
        return _saved(path, command, data)


def _saved(path: Path, command: Any, data: dict[str, Any]) -> SavedResult:
    info = model_of(data["model"])
    entries = [entry for entry in data["heads"] if entry["head"] is not None]
    heads = {
        (typed(entry["layer"], int), typed(entry["head"], int)): _state(command, entry)
        for entry in entries
    }
    if not heads or len(heads) < len(entries):
        raise ValueError("a head that is there twice" if heads else "no heads")
    if data["kind"] not in get_args(Kind) or min(min(head) for head in heads) < 0:
        raise ValueError("no such attention or head")
    source = optional(data["source"], str) or ""
    saved = SavedResult(path, command, info, data["kind"], heads, source=source)
    if command == "patterns":
        return replace(saved, text=optional(data["text"], str))
    if data["unit"] != "head" or data["mode"] != "zero" or data["metric"] != "loss_delta":
        raise ValueError("expected single heads, --mode zero, and a loss")
    texts = data.get("texts") or [data]
    ids = tuple(tuple(typed(token, int) for token in text["token_ids"]) for text in texts)
    return replace(saved, texts=ids)


def _state(command: str, entry: dict[str, Any]) -> HeadState:
    if command == "patterns":
        scores = read_scores(entry)
        return HeadState(scores.label, scores.scores, scores.intervals)
    value, low, high = (entry.get(name) for name in ("loss_delta", "ci_low", "ci_high"))
    ends = None if low is None or high is None else (finite(low), finite(high))
    return HeadState(effect=math.nan if value is None else finite(value), effect_ends=ends)
