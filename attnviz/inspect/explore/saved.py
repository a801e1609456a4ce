"""What ``attnviz heads`` or ``generate`` saved, to be looked at without the model.

Anyone may have written a file: all of it is bounded and checked, no pickle is read, and what is
wrong is one sentence.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.labels import visible
from attnviz.draw.values import model_of
from attnviz.engine.generation import Sampling, Step
from attnviz.engine.head_run import Head
from attnviz.engine.removals import Effects
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.inspect.explore.session import Frame
from attnviz.inspect.generate.data import SCHEMA as RUN
from attnviz.inspect.generate.data import read_run
from attnviz.inspect.generate.records import Run
from attnviz.inspect.heads.data import SCHEMA
from attnviz.inspect.heads.report import heads_report
from attnviz.measures.one_text import notable_heads
from attnviz.measures.registry import LABELS, OF_ONE_TEXT, UNLABELLED, label_named
from attnviz.reading import TEXT_BYTES, finite, one_of, parse_json, read_bytes, typed
from attnviz.records import (
    NO_LABEL,
    AttentionRecord,
    HeadLabel,
    HeadScores,
    HeadsReport,
    Kind,
    LayerWeights,
    ModelInfo,
    Source,
    Tokens,
)

Floats = NDArray[np.floating]
Arrays = Mapping[str, NDArray[Any]]

MOST_BYTES = 2**31
"""2 GiB of a file, and of what an archive holds: the weights of 1,024 heads over 700 tokens."""

_RUN = re.compile(rb'\s*\{\s*"schema"\s*:\s*"' + re.escape(RUN.encode()) + rb'"')
_SPECIAL = re.compile(r"<(?!0x)[^<>\s]+>|\[[^\[\]\s]+\]")

_ROUNDING = 0.02
"""How far the weights of a row may sum to more than one."""

_DAMAGED = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, EOFError),
    *(RecursionError, NotImplementedError, RuntimeError, MemoryError, struct.error),
    *(zipfile.BadZipFile, zlib.error),
)
"""What parsing may raise on bytes that are not what they say."""


@dataclass(frozen=True, eq=False)
class SavedSession:
    """One text that was looked at before; of a comparison one variant of two.

    seen: the one frame there is. run: what the model wrote behind it, or None.
    other: what it was saved beside, the other side of a comparison.
    """

    seen: Frame
    other: SavedSession | None = None
    run: Run | None = None

    live = False
    context = None

    @property
    def info(self) -> ModelInfo:
        return self.seen.report.record.model

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.seen.text,)

    @property
    def sampling(self) -> Sampling | None:
        return None if self.run is None else self.run.sampling

    def frame(self, text: str, removed: frozenset[Head] = frozenset()) -> Frame:
        """The frame, whatever heads it is without; UsageError for another text or other heads."""
        if text != self.seen.text or (removed and removed != self.seen.removed):
            raise UsageError(f"{_NO_MODEL}: its text and its heads are what they are")
        return self.seen

    def effects(self, text: str, advance: Callable[[float], None]) -> Effects:
        raise UnsupportedError(f"{_NO_MODEL}: no head can be removed")

    def generation(
        self, text: str, sampling: Sampling, removed: frozenset[Head] = frozenset()
    ) -> Iterator[Step]:
        """What was written then, whatever the sampling; UnsupportedError where nothing was."""
        if self.run is None:
            raise UnsupportedError(f"{_NO_MODEL}: nothing can be written")
        return iter(self.run.steps)


_NO_MODEL = "this was saved, there is no model behind it"


def open_saved(path: Path) -> SavedSession:
    """What a file holds, told by its content.

    A ``.json``, ``.npz`` or ``.safetensors`` of ``attnviz heads --save``, or the lines of
    ``attnviz generate --save NAME.jsonl``. Of several variants the first two are read.
    Raises LoadError for a file that cannot be read, is damaged, or holds something else.
    """
    name = repr(visible(str(path)))
    content = read_bytes(path, name=name, most=MOST_BYTES)
    if not content:
        raise LoadError(f"{name} is empty: save it again with attnviz heads --save")
    if _RUN.match(content):
        return _of_run(read_run(path))
    try:
        facts, arrays = _opened(content, name)
        if facts.get("schema") != SCHEMA:
            raise LoadError(
                f"{name} holds {_told(facts)}: expected what attnviz heads --save writes as .json, "
                ".npz or .safetensors, or attnviz generate --save as .jsonl"
            )
        return _session(facts, arrays)
    except _DAMAGED as error:
        why = visible(" ".join(str(error).split()))[:100]
        raise LoadError(
            f"{name} is damaged ({type(error).__name__}: {why}): save it again with attnviz heads "
            "--save"
        ) from error


def _told(facts: Mapping[str, Any]) -> str:
    schema = facts.get("schema")
    return f"the schema {visible(str(schema))[:60]!r}" if schema else "no schema"


# Files ---------------------------------------------------------------------------------------


def _opened(content: bytes, name: str) -> tuple[dict[str, Any], Arrays]:
    """The facts of a file, and the weights of its variants by the names that npz gives them."""
    if content[:2] == b"PK":
        arrays = _of_archive(content)
        return parse_json(str(arrays["provenance"]), name), arrays
    if content[8:9] == b"{" and content[:1] != b"{":
        return _of_tensors(content, name)
    if len(content) > TEXT_BYTES:
        raise LoadError(f"{name} is too large to be read as JSON: save it as .npz or .safetensors")
    facts = parse_json(content, name)
    if not isinstance(facts, dict):
        raise LoadError(f"{name} should hold a JSON object, not {type(facts).__name__}")
    if facts.get("schema") != SCHEMA:
        return facts, {}
    weights: dict[int, list[Floats]] = {}
    for entry in facts["heads"]:
        rows = np.array(entry.pop("weights"), np.float64)
        weights.setdefault(entry.get("variant", 0), []).append(rows.astype(np.float32))
    return facts, {f"weights_{variant}": np.stack(maps) for variant, maps in weights.items()}


def _of_archive(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an npz, each held against what its header says before it is made."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes when unpacked")
        return {
            member.filename.removesuffix(".npy"): _array(archive.read(member)) for member in members
        }


def _array(content: bytes) -> NDArray[Any]:
    stream = io.BytesIO(content)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(np.lib.format.read_magic(stream))
    if read is None:
        raise ValueError("an array of an unknown version")
    shape, fortran, dtype = read(stream)
    if dtype.kind not in "fiuU":
        raise ValueError(f"an array of {dtype}, which is neither numbers nor texts")
    data = content[stream.tell() :]
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array of shape {shape} in {len(data):,} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _of_tensors(content: bytes, name: str) -> tuple[dict[str, Any], Arrays]:
    """Of safetensors; see ``heads.data.write_heads_safetensors``."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    size = int.from_bytes(content[:8], "little")
    metadata = parse_json(content[8 : 8 + size], name)["__metadata__"]
    facts = parse_json(metadata["provenance"], name)
    heads: dict[str, list[int]] = json.loads(metadata["heads"])
    several = "variants" in facts
    found: dict[str, dict[Head, Floats]] = {}
    for tensor, weights in tensors.items():
        parts = tensor.split(".")
        end, layer = (parts[1], parts[3]) if several else ("0", parts[1])
        kept = heads[tensor if several else layer]
        of_heads = {(int(layer), head): one for head, one in zip(kept, weights, strict=True)}
        found.setdefault(f"weights_{end}", {}).update(of_heads)
    order: dict[str, list[Floats]] = {}
    for entry in facts["heads"]:
        end = f"weights_{entry.get('variant', 0)}"
        order.setdefault(end, []).append(found[end][entry["layer"], entry["head"]])
    return facts, {end: np.stack(maps) for end, maps in order.items()}


# From facts to frames ------------------------------------------------------------------------


def _session(facts: dict[str, Any], arrays: Arrays) -> SavedSession:
    """The first variant, with the second one beside it."""
    variants: list[dict[str, Any]] = facts.get("variants") or [{}]
    sides = []
    for variant, differs in enumerate(variants[:2]):
        entries = [entry for entry in facts["heads"] if entry.get("variant", 0) == variant]
        weights = arrays[name if (name := f"weights_{variant}") in arrays else "weights"]
        sides.append(SavedSession(_frame({**facts, **differs}, entries, weights, variant > 0)))
    first, *others = sides
    return SavedSession(first.seen, others[0] if others else None)


def _frame(
    facts: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    weights: NDArray[Any],
    second: bool,
) -> Frame:
    """second: whether the variant is another than the one that ``facts["sink"]`` is of."""
    info = model_of(facts["model"])
    kind: Kind = one_of(facts["kind"], get_args(Kind))
    causal, sinks = typed(facts["causal"], bool), facts["sink"]
    marks = set() if causal or second else set(sinks["keys"])  # of causal attention any first token
    queries = keys = _tokens(facts["tokens"], facts["token_ids"], marks)
    if kind == "cross":
        keys = _tokens(facts["key_tokens"], facts["key_token_ids"], marks)
        queries = _tokens(facts["tokens"], facts["token_ids"], set())
    scores = [_scores(entry) for entry in entries]
    whole = not typed(sinks["left_out"], bool)
    _check_weights(weights, (len(entries), len(queries), len(keys)), scores, whole)
    places = [(entry.layer, entry.head) for entry in scores]
    if len(set(places)) < len(places) or not places:
        raise ValueError("a head that is there twice" if places else "no heads")
    sizes = (max(info.layers, 1), info.heads)
    if any(not (0 <= layer < sizes[0] and 0 <= head < sizes[1]) for layer, head in places):
        raise ValueError("a head that the model does not have")
    by_layer: dict[int, list[int]] = {}
    for at, (layer, _) in enumerate(places):
        by_layer.setdefault(layer, []).append(at)
    layers = tuple(
        LayerWeights(layer, tuple(places[at][1] for at in some), weights[some])
        for layer, some in sorted(by_layer.items())
    )
    weighed = {
        place: finite(entry["sink_weight"])
        for place, entry in zip(places, entries, strict=True)
        if entry["sink_weight"] is not None
    }
    removed = frozenset(
        (typed(layer, int), typed(head, int)) for layer, head in facts.get("ablated", ())
    )
    target = facts.get("target")
    report = HeadsReport(
        AttentionRecord(info, kind, causal, queries, keys, layers),
        tuple(scores),
        notable_heads(scores, 3),
        len(places) < info.layers * info.heads,
        text=typed(facts["text"], str),
        target=None if target is None else typed(target, str),
        sinks=weighed,
        resting=1.0 if sinks["resting_above"] is None else finite(sinks["resting_above"]),
        sink=whole,
        ablated=tuple(sorted(removed)),
        norm_weighted=typed(facts.get("norm_weighted", False), bool),
    )
    return Frame(report.text, report, removed)


def _check_weights(
    weights: NDArray[Any],
    shape: tuple[int, int, int],
    scores: Sequence[HeadScores],
    whole: bool,
) -> None:
    """ValueError for what no softmax gives: NaN only where a head has no numbers, or no sink."""
    if weights.shape != shape or weights.dtype.kind != "f":
        raise ValueError(f"weights of shape {weights.shape}, expected {shape}")
    for entry, one in zip(scores, weights, strict=True):
        known = np.nan_to_num(one, nan=0.0, posinf=-1.0)
        blank = not whole or entry.label is NO_LABEL
        if known.min() < 0 or known.sum(-1).max() > 1 + _ROUNDING or np.isnan(one).any() > blank:
            raise ValueError(f"weights of L{entry.layer}H{entry.head} that are no shares of one")


def _scores(entry: Mapping[str, Any]) -> HeadScores:
    told, name = entry["trait"], entry["trait"]["name"]
    found = {one: entry[one] for one in OF_ONE_TEXT}
    scores = {one: None if value is None else finite(value) for one, value in found.items()}
    label = NO_LABEL
    if name != NO_LABEL.name:
        measure = label_named(one_of(name, (*LABELS, *UNLABELLED)))
        numbers = (
            math.nan if told[one] is None else finite(told[one])
            for one in ("score", "base_rate", "measured")
        )
        score, base, measured = numbers
        source: Source = one_of(told["source"], get_args(Source))
        label = HeadLabel(
            *(name, measure.letter, score, base, measure.short, measure.said),
            *(source, typed(told["events"], int), measured),
        )
    return HeadScores(typed(entry["layer"], int), typed(entry["head"], int), scores, label)


def _tokens(texts: Any, ids: Any, special: Collection[int]) -> Tokens:
    """special: places that are; others are told by their looks, such as ``<bos>``."""
    known = tuple(typed(text, str) for text in texts)
    if not known:
        raise ValueError("no tokens")
    marks = (at in special or bool(_SPECIAL.fullmatch(text)) for at, text in enumerate(known))
    return Tokens(tuple(typed(number, int) for number in ids), known, tuple(marks))


# Runs ----------------------------------------------------------------------------------------


def _of_run(run: Run) -> SavedSession:
    """The prompt, and what was written; of what the file has no weights, there are none: NaN."""
    queries = run.begun
    keys = run.source if run.kind == "cross" and run.source is not None else queries
    layers = run.prompt
    if not layers:
        shape = (len(queries), len(keys))
        layers = tuple(
            LayerWeights(layer, tuple(range(len(row))), np.full((len(row), *shape), np.nan))
            for layer, row in sorted(run.steps[0].rows.items())
        )
        for layer in layers:
            layer.weights[:, -1] = run.steps[0].rows[layer.layer]
    record = AttentionRecord(run.model, run.kind, run.kind != "cross", queries, keys, layers)
    report = heads_report(record, False, run.index_base, text=run.text, ablated=run.removed)
    frame = Frame(run.text, report, frozenset(run.removed), run.steps[0].likely)
    return SavedSession(frame, run=run)
