"""Reads the files of weights that ``attnviz heads`` saved: JSON and ``.npz``; and captures.

Anyone may have written a file that is read: all of it is bounded and checked, no pickle is read,
and each failure is one sentence.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import IO, Any, get_args

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.labels import visible
from attnviz.draw.regions import read_regions
from attnviz.draw.values import model_of
from attnviz.errors import LoadError
from attnviz.inspect.heads import captured
from attnviz.inspect.heads.report import NOTABLE, SCHEMA, TOKENS, HeadsReport
from attnviz.measures.labels import SINK
from attnviz.measures.one_text import notable_heads
from attnviz.measures.registry import LABELS, OF_ONE_TEXT, UNLABELLED, label_named
from attnviz.reading import (
    ARRAY_BYTES,
    RESULT_BYTES,
    damaged,
    finite,
    one_of,
    optional,
    parse_json,
    typed,
)
from attnviz.records import (
    NO_LABEL,
    SINKS,
    AttentionRecord,
    Floats,
    HeadLabel,
    HeadScores,
    HeadsRecord,
    HeadVectors,
    Kind,
    LayerWeights,
    Score,
    Source,
)

Arrays = Mapping[str, NDArray[Any]]

_PACKED = 100
"""How many times smaller than its arrays an archive may be; NumPy's own are at most twice."""

_VECTORS = ("value_norms", "queries", "keys", "query_key_factor")
_SAVED = re.compile(rf"(weights|layers|heads|{'|'.join((*TOKENS, *_VECTORS))})(_[0-9]+)?")
"""The names of the arrays of runs, with the index of a run."""

_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compressions that NumPy uses; the library unpacks others without a limit."""

_HEADER = 2**16
"""The most bytes that the header of an array may take; NumPy writes 128."""


def read_heads(content: bytes, name: str) -> HeadsReport:
    """Return the runs in a file that ``attnviz heads --save`` wrote, in any of its formats.

    content: the whole file. name: of the file, for messages. In the result, layers and heads are
        named from 0. Raises LoadError, in one line, if it is damaged or has other content.
    """
    with damaged(name, "save it again"):
        facts, arrays = _opened(content, name)
        if facts.get("schema") == captured.CAPTURE:
            return captured.captured_heads(facts, arrays, name)
        if (schema := facts.get("schema")) != SCHEMA:
            told = f"the schema {visible(str(schema))[:60]!r}" if schema else "no schema"
            raise LoadError(
                f"{name} holds {told}: expected what attnviz heads --save writes as .json "
                "or .npz, or attnviz.capture/1"
            )
        return _comparison(facts, arrays)


def _opened(content: bytes, name: str) -> tuple[dict[str, Any], Arrays]:
    """Return the JSON facts of a file, and its arrays of weights by name as in an npz."""
    if content[:2] == b"PK":
        arrays = _of_archive(content)
        told = arrays.pop("capture", arrays.pop("provenance", np.array("{}")))
        return parse_json(str(told), name), arrays
    if content[8:9] == b"{" and content[:1] != b"{":
        return _of_tensors(content, name)
    if not content.lstrip(b" \t\r\n\xef\xbb\xbf").startswith((b"{", b"[", b'"')):
        raise LoadError(f"{name} is no .npz, .safetensors or .json file: it begins like none")
    if content.startswith(b'{"schema": "attnviz.generate/') and b"\n{" in content:
        raise LoadError(f"{name} is a run that attnviz generate saved: attnviz explore replays it")
    if len(content) > RESULT_BYTES:
        raise LoadError(f"{name} is too large to be read as JSON: save it as .npz")
    facts = parse_json(content, name)
    if not isinstance(facts, dict):
        raise LoadError(f"{name} should hold a JSON object, not {type(facts).__name__}")
    if facts.get("schema") != SCHEMA:
        return facts, {}
    arrays_of: dict[str, list[Floats]] = {}
    for entry in facts["heads"]:
        for part in ("weights", "value_norms"):
            if part in entry:
                rows = np.array(entry.pop(part), np.float64).astype(np.float32)
                arrays_of.setdefault(f"{part}_{entry.get('variant', 0)}", []).append(rows)
    return facts, {part: np.stack(heads) for part, heads in arrays_of.items()}


def _of_archive(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz by name; sizes are checked before unpacking."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if unpacked > min(ARRAY_BYTES, _PACKED * len(content)):
            raise ValueError(f"{unpacked:,} bytes when unpacked")
        if any(member.compress_type not in _PACKINGS for member in members):
            raise ValueError("an archive that NumPy does not write")
        arrays = {}
        for member in members:
            with archive.open(member) as stream:
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f"{visible(name)} is there twice")
                arrays[name] = _array(stream, member.file_size)
        return arrays


def _array(stream: IO[bytes], size: int) -> NDArray[Any]:
    """Read one array in NumPy's format from a stream of ``size`` bytes, and check its size."""
    begin = io.BytesIO(stream.read(min(size, _HEADER)))
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(np.lib.format.read_magic(begin))
    if read is None:
        raise ValueError("an array of an unknown version")
    shape, fortran, dtype = read(begin)
    if dtype.kind not in "fiuU":
        raise ValueError(f"an array of {dtype}, which is neither numbers nor texts")
    length = size - begin.tell()
    if math.prod(shape) * dtype.itemsize != length:
        raise ValueError(f"an array of shape {shape} in {length:,} bytes")
    stream.seek(begin.tell())
    data = stream.read(length)
    if len(data) < length:
        raise ValueError(f"{len(data):,} of {length:,} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _of_tensors(content: bytes, name: str) -> tuple[dict[str, Any], Arrays]:
    """Return the facts and the arrays of a capture in a ``.safetensors`` file; else nothing."""
    from safetensors import deserialize

    unpack: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = deserialize
    tensors = {tensor: _tensor(tensor, **one) for tensor, one in unpack(content)}
    size = int.from_bytes(content[:8], "little")
    metadata = parse_json(content[8 : 8 + size], name).get("__metadata__", {})
    if "capture" in metadata:
        return parse_json(metadata["capture"], name), tensors
    return {}, {}


_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def _tensor(name: str, dtype: str, shape: Sequence[int], data: bytes) -> NDArray[Any]:
    """Return a tensor of a ``.safetensors`` file; bfloat16, which NumPy lacks, as float32."""
    if dtype not in _TYPES:
        raise LoadError(f"the tensor {visible(name)!r} has numbers of {dtype}, expected floats")
    array = np.frombuffer(data, _TYPES[dtype]).reshape(shape)
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else array


def _comparison(facts: dict[str, Any], arrays: Arrays) -> HeadsReport:
    if strange := [name for name in arrays if not _SAVED.fullmatch(name)]:
        raise ValueError(f"{visible(strange[0])[:60]!r} is no array of {SCHEMA}")
    variants: list[dict[str, Any]] = facts.get("variants") or [{}]
    reports, moved = [], []
    for variant, differs in enumerate(variants):
        entries = [entry for entry in facts["heads"] if entry.get("variant", 0) == variant]
        own = {
            name: arrays[kept]
            for name in ("weights", *_VECTORS)
            for kept in (f"{name}_{variant}", name)
            if kept in arrays
        }
        first = not variant or "sink" in differs
        report = _report({**facts, **differs}, entries, own.pop("weights"), first=first)
        reports.append(replace(report, vectors=_vectors(report, own)))
        distances = {
            (entry["layer"], entry["head"]): finite(entry["moved"])
            for entry in entries
            if entry.get("moved") is not None
        }
        moved.append(distances or None)
    return HeadsReport(tuple(reports), tuple(moved))


def _report(
    facts: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], weights: Floats, *, first: bool
) -> HeadsRecord:
    """Return the report of one run from a file."""
    kind: Kind = one_of(facts["kind"], get_args(Kind))
    score: Score | None = one_of(facts["score"], (None, *get_args(Score)))
    info = replace(model_of(facts["model"]), score=score)
    causal, sinks = typed(facts["causal"], bool), facts["sink"]
    marks = set(sinks["keys"]) if first and not causal else set()  # else any first token
    queries = keys = captured.read_tokens(facts["tokens"], facts["token_ids"], marks)
    if kind == "cross":
        keys = captured.read_tokens(facts["key_tokens"], facts["key_token_ids"], marks)
        queries = captured.read_tokens(facts["tokens"], facts["token_ids"], set())
    named = replace(keys, regions=read_regions(facts.get("regions", ()), len(keys)))
    queries, keys = named if queries is keys else queries, named
    scores = [_scores(entry) for entry in entries]
    whole, removed = not typed(sinks["left_out"], bool), facts.get("ablated", ())
    _check_weights(weights, (len(entries), len(queries), len(keys)), scores, whole)
    layers = _layers(scores, weights, (max(info.layers, 1), info.heads))
    sort = optional(facts.get("sorted_by"), str)
    leading = tuple(entry.place for entry in scores[:NOTABLE])
    with_target = (first and "variants" not in facts) or kind in ("decoder", "cross")
    return HeadsRecord(
        AttentionRecord(info, kind, causal, queries, keys, layers),
        tuple(scores),
        notable_heads(scores, NOTABLE) if sort is None else leading,
        len(scores) < sum(info.heads_of_layers.values()),
        sorted_by=None if sort is None else one_of(sort, tuple(scores[0].scores)),
        text=typed(facts["text"], str),
        target=optional(facts.get("target"), str) if with_target else None,
        sinks={
            (entry["layer"], entry["head"]): finite(entry["sink_weight"])
            for entry in entries
            if entry["sink_weight"] is not None
        },
        resting=1.0 if sinks["resting_above"] is None else finite(sinks["resting_above"]),
        sink=whole,
        ablated=tuple(sorted({(typed(layer, int), typed(head, int)) for layer, head in removed})),
        norm_weighted=typed(facts.get("norm_weighted", False), bool),
    )


def _layers(
    scores: Sequence[HeadScores], weights: Floats, sizes: tuple[int, int]
) -> tuple[LayerWeights, ...]:
    """Return the attention weights by layer."""
    places = [entry.place for entry in scores]
    if len(set(places)) < len(places) or not places:
        raise ValueError("a head that is there twice" if places else "no heads")
    if any(not (0 <= layer < sizes[0] and 0 <= head < sizes[1]) for layer, head in places):
        raise ValueError("a head that the model does not have")
    by_layer: dict[int, list[int]] = {}
    for at, (layer, _) in enumerate(places):
        by_layer.setdefault(layer, []).append(at)
    return tuple(
        LayerWeights(layer, tuple(places[at][1] for at in some), weights[some])
        for layer, some in sorted(by_layer.items())
    )


def _check_weights(
    weights: NDArray[Any], shape: tuple[int, int, int], scores: Sequence[HeadScores], whole: bool
) -> None:
    """Raise ValueError for attention weights that no softmax gives, or of another shape.

    whole: whether the sink is among the weights (head, query, key). NaN is allowed only if it was
    left out, or if the head has no label.
    """
    if weights.shape != shape or weights.dtype.kind != "f":
        raise ValueError(f"weights of shape {weights.shape}, expected {shape}")
    for entry, one in zip(scores, weights, strict=True):
        known = np.nan_to_num(one, nan=0.0, posinf=-1.0)
        blank, most = not whole or entry.label is NO_LABEL, 1 + captured.ROUNDING
        if known.min() < 0 or known.sum(-1).max() > most or np.isnan(one).any() > blank:
            raise ValueError(f"weights of L{entry.layer}H{entry.head} that are no shares of one")


def _vectors(report: HeadsRecord, arrays: Arrays) -> HeadVectors | None:
    """Return the queries, keys and norms that a run's file has; None if it has none of them."""
    if not arrays:
        return None
    heads, layers = report.heads, {entry.layer for entry in report.heads}
    queries, keys = len(report.record.queries), len(report.record.keys)

    def by_layer(name: str, *shape: int) -> dict[int, Floats]:
        array = arrays.get(name)
        if array is None:
            return {}
        if array.shape != (len(heads), *shape) or array.dtype.kind != "f":
            raise ValueError(f"{name} of shape {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} with numbers that are not finite")
        whole = np.full((max(entry.head for entry in heads) + 1, *shape), np.nan, array.dtype)
        by_head = {layer: whole.copy() for layer in layers}
        for entry, values in zip(heads, array, strict=True):
            by_head[entry.layer][entry.head] = values
        return by_head

    width = arrays["queries"].shape[-1] if "queries" in arrays else 0
    factor = finite(float(arrays.get("query_key_factor", np.ones(()))))
    return HeadVectors(
        norms=by_layer("value_norms", keys),
        queries=by_layer("queries", queries, width),
        keys=by_layer("keys", keys, width),
        factor=factor,
    )


def _scores(entry: Mapping[str, Any]) -> HeadScores:
    told, label_name = entry["trait"], entry["trait"]["name"]
    scores = {name: None if entry[name] is None else finite(entry[name]) for name in OF_ONE_TEXT}
    label = NO_LABEL
    if label_name != NO_LABEL.name:
        last = "on_text" if "on_text" in told else "score"
        measure = label_named(one_of(label_name, (*LABELS, *UNLABELLED)))
        score, base, known, on_text = (
            math.nan if told[one] is None else finite(told[one])
            for one in ("score", "base_rate", "measured", last)
        )
        source: Source = one_of(told["source"], get_args(Source))
        shown = label_named(SINK) if source == "none" and label_name in SINKS else measure
        label = HeadLabel(
            name=label_name,
            letter=measure.letter,
            score=score if math.isnan(known) else known,
            base_rate=base,
            short=shown.short,
            said=shown.said,
            source=source,
            events=typed(told["events"], int),
            on_text=on_text,
            date=date.fromisoformat(told["date"]).isoformat() if told.get("date") else "",
        )
    return HeadScores(typed(entry["layer"], int), typed(entry["head"], int), scores, label)
