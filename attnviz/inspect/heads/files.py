"""The files of weights that ``attnviz heads`` saves: JSON, ``.npz`` and ``.safetensors``.

They are written and read here. Anyone may have written a file that is read: all of it is bounded
and checked, no pickle is read, and each failure is one sentence.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import IO, TYPE_CHECKING, Any, BinaryIO, get_args

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.files import Writer, text_file
from attnviz.draw.labels import visible
from attnviz.draw.regions import read_regions
from attnviz.draw.scale import visible_cells
from attnviz.draw.values import model_of, shortest
from attnviz.errors import LoadError
from attnviz.inspect.heads.data import (
    SCHEMA,
    TOKENS,
    asked_facts,
    comparison_facts,
    head_entries,
    link_facts,
    run_facts,
    write_heads_csv,
)
from attnviz.inspect.heads.report import NOTABLE, HeadsReport, HeadsView
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
    HeadLabel,
    HeadScores,
    HeadsRecord,
    Kind,
    LayerWeights,
    Score,
    Source,
    Tokens,
)

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

Floats = NDArray[np.floating]
Arrays = Mapping[str, NDArray[Any]]

_PACKED = 100
"""How many times smaller than its arrays an archive may be; NumPy's own are at most twice."""

_READ = ("provenance", "weights")
"""The first words of the names of the arrays that are read."""

_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compressions that NumPy uses; the library unpacks others without a limit."""

_PIECE = 2**20
_HEADER = 2**16
"""The most bytes that the header of an array may take; NumPy writes 128."""

_SPECIAL = re.compile(r"<(?!0x)[^<>\s]+>|\[[^\[\]\s]+\]")

_ROUNDING = 0.02
"""How far the sum of a row of weights may exceed one."""

# JSON ----------------------------------------------------------------------------------------


def weight_rows(weights: NDArray[np.floating]) -> list[list[float | None]]:
    """Return attention weights (query, key) as lists; a number that is not finite becomes None."""
    rows: list[list[float | None]] = shortest(weights).tolist()
    if np.isfinite(weights).all():
        return rows
    finite = np.isfinite(weights).tolist()
    return [
        [value if good else None for value, good in zip(row, marks, strict=True)]
        for row, marks in zip(rows, finite, strict=True)
    ]


def _encode(value: object) -> str:
    """Return ASCII JSON: an escape sequence in a token must not reach a terminal."""
    return json.dumps(value, allow_nan=False)


def _row_texts(weights: NDArray[np.floating], causal: bool) -> Iterator[str]:
    """Yield each row of attention weights as JSON, with the result of ``weight_rows``.

    weights: (query, key). causal: whether a query sees no later key.
    ``%.9g`` prints a number of at most nine digits as its repr does, in half the time. It cannot
    print null or the ``.0`` of a whole number: rows with such cells go through ``_encode``.
    """
    visible = visible_cells(weights.shape[0], weights.shape[1], causal)
    special = (weights == np.rint(weights)) | ~np.isfinite(weights)
    plain = ~np.where(visible, special, weights != 0).any(axis=1)
    if weights.dtype != np.float32:
        plain[:] = False
    seen = visible.sum(axis=1).tolist()
    for row, short, count in zip(weight_rows(weights), plain.tolist(), seen, strict=True):
        if short:
            digits = ", ".join(["%.9g"] * count) % tuple(row[:count])
            yield f"[{digits}{', 0.0' * (len(row) - count)}]"
        else:
            yield _encode(row)


def write_heads_json(
    found: HeadsReport, stream: SupportsWrite[str], view: HeadsView | None = None
) -> None:
    """Write the JSON of a report, a row of weights at a time, so that it may exceed the memory.

    stream: where it is written. view: a requested word or word pair, whose facts are written as
        well; None for no such request. ``heads`` has an entry for each selected head and run, in
        the order of the first run's heads; weights have the fewest digits that give the same
        float32. A single run has a line for each row of weights, a comparison a line for each
        entry.
    """
    facts = comparison_facts(found) | link_facts(found) | asked_facts(found, view or HeadsView())
    stream.write(_encode(facts).removesuffix("}") + ', "heads": [')
    begin, between = ("\n", ",\n") if len(found.reports) == 1 else ("", ", ")
    for index, (entry, report, scores) in enumerate(head_entries(found)):
        stream.write(f'{"," if index else ""}\n{_encode(entry).removesuffix("}")}, "weights": [')
        weights = report.weights(scores.layer, scores.head)
        for place, row in enumerate(_row_texts(weights, report.record.causal)):
            stream.write((between if place else begin) + row)
        stream.write("]}")
    stream.write("\n]}\n")


# Arrays --------------------------------------------------------------------------------------


def _provenance(found: HeadsReport) -> str:
    """Return the JSON document without the weights."""
    return _encode(
        {**comparison_facts(found), "heads": [entry for entry, _, _ in head_entries(found)]}
    )


def write_heads_npz(found: HeadsReport, stream: BinaryIO) -> None:
    """Write an archive that ``numpy.load`` opens with ``allow_pickle=False``.

    ``weights`` (selected head, query, key) in the order of ``report.heads``; ``layers`` and
    ``heads`` give each one's indices from 0, so that ``weights[(layers == 2) & (heads == 5)]`` is
    L2H5; ``tokens``, ``token_ids``, for cross attention also ``key_tokens``, ``key_token_ids``;
    ``provenance``: the JSON document without the weights. NumPy drops NUL characters at the end of
    a string: the tokens in ``provenance`` keep them. If runs are compared, the other names end in
    ``_VARIANT``, such as ``weights_1``.
    """
    arrays: dict[str, Any] = {"provenance": np.array(_provenance(found))}
    for index, report in enumerate(found.reports):
        end = f"_{index}" if len(found.reports) > 1 else ""
        facts, heads = run_facts(report), report.heads
        arrays |= {
            f"weights{end}": np.stack([report.weights(each.layer, each.head) for each in heads]),
            f"layers{end}": np.array([each.layer for each in heads]),
            f"heads{end}": np.array([each.head for each in heads]),
        }
        arrays |= {f"{name}{end}": np.array(facts[name]) for name in TOKENS if name in facts}
    np.savez(stream, allow_pickle=False, **arrays)


def write_heads_safetensors(found: HeadsReport, stream: BinaryIO) -> None:
    """Write a tensor ``layer.N.weights`` (selected head, query, key) for each selected layer.

    Metadata, all JSON: ``heads`` (the head indices of each layer's tensor, by layer), ``tokens``,
    ``token_ids``, for cross attention also ``key_tokens``, ``key_token_ids``; ``provenance``: the
    JSON document without the weights. ``schema`` is plain text. If runs are compared, the names
    begin with ``variant.V.``, ``heads`` is by tensor, and the tokens are in ``provenance``.
    """
    from safetensors.numpy import save

    several = len(found.reports) > 1
    tensors: dict[str, NDArray[np.floating]] = {}
    heads: dict[str, list[int]] = {}
    for index, report in enumerate(found.reports):
        for kept in report.record.layers:
            name = f"{f'variant.{index}.' if several else ''}layer.{kept.layer}.weights"
            tensors[name] = np.ascontiguousarray(kept.weights)
            heads[name if several else str(kept.layer)] = list(kept.heads)
    facts = {} if several else run_facts(found.first)
    metadata = {
        "schema": SCHEMA,
        "heads": json.dumps(heads),
        "provenance": _provenance(found),
        **{name: json.dumps(facts[name]) for name in TOKENS if name in facts},
    }
    stream.write(save(tensors, metadata=metadata))


def array_files(found: HeadsReport, view: HeadsView | None = None) -> dict[str, Writer]:
    """Return the functions that write the attention weights to a file, by the ending of its name.

    view: the requested word or word pair; only the ``.csv`` depends on it.
    """
    return {
        ".csv": text_file(partial(write_heads_csv, found, view=view)),
        ".npz": partial(write_heads_npz, found),
        ".safetensors": partial(write_heads_safetensors, found),
    }


# Read back -----------------------------------------------------------------------------------


def read_heads(content: bytes, name: str) -> HeadsReport:
    """Return the runs in a file that ``attnviz heads --save`` wrote, in any of its formats.

    content: the whole file. name: of the file, for messages. In the result, layers and heads are
        named from 0. Raises LoadError, in one line, if it is damaged or has other content.
    """
    with damaged(name, "save it again with attnviz heads --save"):
        facts, arrays = _opened(content, name)
        if facts.get("schema") != SCHEMA:
            raise LoadError(
                f"{name} holds {_told(facts)}: expected what attnviz heads --save writes as .json, "
                ".npz or .safetensors, or attnviz generate --save as .jsonl"
            )
        return _comparison(facts, arrays)


def _told(facts: Mapping[str, Any]) -> str:
    schema = facts.get("schema")
    return f"the schema {visible(str(schema))[:60]!r}" if schema else "no schema"


def _opened(content: bytes, name: str) -> tuple[dict[str, Any], Arrays]:
    """Return the JSON facts of a file, and its arrays of weights by name as in an npz.

    content: the whole file, whose first bytes tell the format. name: of the file, for messages.
    """
    if content[:2] == b"PK":
        arrays = _of_archive(content)
        return parse_json(str(arrays["provenance"]), name), arrays
    if content[8:9] == b"{" and content[:1] != b"{":
        return _of_tensors(content, name)
    if len(content) > RESULT_BYTES:
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
    """Return the arrays of an npz by name; sizes are checked before unpacking.

    content: the whole file.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if unpacked > min(ARRAY_BYTES, _PACKED * len(content)):
            raise ValueError(f"{unpacked:,} bytes when unpacked")
        if any(member.compress_type not in _PACKINGS for member in members):
            raise ValueError("an archive that NumPy does not write")
        arrays = {}
        for member in members:
            if not member.filename.startswith(_READ):
                continue
            with archive.open(member) as stream:
                name = member.filename.removesuffix(".npy")
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
    data = np.empty(length, np.uint8)
    first = begin.read()
    data[: len(first)] = np.frombuffer(first, np.uint8)
    done = len(first)
    while piece := stream.read(min(length - done, _PIECE)):
        data[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
    if done < length:
        raise ValueError(f"{done:,} of {length:,} bytes")
    return data.view(dtype).reshape(shape, order="F" if fortran else "C")


def _of_tensors(content: bytes, name: str) -> tuple[dict[str, Any], Arrays]:
    """Return the facts and the arrays of a ``.safetensors`` file, in the form of ``_opened``.

    content: the whole file. name: of the file, for messages.
    """
    from safetensors.numpy import load

    tensors = load(content)
    size = int.from_bytes(content[:8], "little")
    metadata = parse_json(content[8 : 8 + size], name)["__metadata__"]
    facts = parse_json(metadata["provenance"], name)
    heads: dict[str, list[int]] = parse_json(metadata["heads"], name)
    several = "variants" in facts
    found: dict[str, dict[tuple[int, int], Floats]] = {}
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


def _comparison(facts: dict[str, Any], arrays: Arrays) -> HeadsReport:
    variants: list[dict[str, Any]] = facts.get("variants") or [{}]
    reports, moved = [], []
    for variant, differs in enumerate(variants):
        entries = [entry for entry in facts["heads"] if entry.get("variant", 0) == variant]
        weights = arrays[name if (name := f"weights_{variant}") in arrays else "weights"]
        reports.append(
            _report({**facts, **differs}, entries, weights, first=not variant or "sink" in differs)
        )
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
    """Return the report of one run from a file.

    facts: of that run. entries: the JSON objects of its heads. weights: (head, query, key) in the
    same order. first: whether it is the first run; the sink in the facts is that of the first one.
    """
    kind: Kind = one_of(facts["kind"], get_args(Kind))
    score: Score | None = one_of(facts["score"], (None, *get_args(Score)))
    info = replace(model_of(facts["model"]), score=score)
    causal, sinks = typed(facts["causal"], bool), facts["sink"]
    marks = (
        set(sinks["keys"]) if first and not causal else set()
    )  # a causal sink is any first token
    queries = keys = _tokens(facts["tokens"], facts["token_ids"], marks)
    if kind == "cross":
        keys = _tokens(facts["key_tokens"], facts["key_token_ids"], marks)
        queries = _tokens(facts["tokens"], facts["token_ids"], set())
    named = replace(keys, regions=read_regions(facts.get("regions", ()), len(keys)))
    queries, keys = named if queries is keys else queries, named
    scores = [_scores(entry) for entry in entries]
    whole, removed = not typed(sinks["left_out"], bool), facts.get("ablated", ())
    _check_weights(weights, (len(entries), len(queries), len(keys)), scores, whole)
    layers = _layers(scores, weights, (max(info.layers, 1), info.heads))
    sort = optional(facts.get("sorted_by"), str)
    leading = tuple((entry.layer, entry.head) for entry in scores[:NOTABLE])
    with_target = (first and "variants" not in facts) or kind in ("decoder", "cross")
    return HeadsRecord(
        AttentionRecord(info, kind, causal, queries, keys, layers),
        tuple(scores),
        notable_heads(scores, NOTABLE) if sort is None else leading,
        len(scores) < info.layers * info.heads,
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
    """Return the attention weights by layer.

    scores: of each head. weights: (head, query, key) in the same order. sizes: how many layers the
    model has, and heads in each.
    """
    places = [(entry.layer, entry.head) for entry in scores]
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

    weights: (head, query, key). shape: the expected one. scores: of each head. whole: whether the
    sink is among the weights. NaN is allowed only if it was left out, or if the head has no label.
    """
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
        last = "on_text" if "on_text" in told else "score"
        measure = label_named(one_of(name, (*LABELS, *UNLABELLED)))
        score, base, known, on_text = (
            math.nan if told[one] is None else finite(told[one])
            for one in ("score", "base_rate", "measured", last)
        )
        source: Source = one_of(told["source"], get_args(Source))
        shown = label_named(SINK) if source == "none" and name in SINKS else measure
        label = HeadLabel(
            name=name,
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


def _tokens(texts: Any, ids: Any, special: Collection[int]) -> Tokens:
    """Return tokens from a file; ones at the indices ``special`` or like ``<bos>`` are special.

    texts, ids: of each token, from a file.
    """
    known = tuple(typed(text, str) for text in texts)
    if not known:
        raise ValueError("no tokens")
    marks = (at in special or bool(_SPECIAL.fullmatch(text)) for at, text in enumerate(known))
    return Tokens(tuple(typed(number, int) for number in ids), known, tuple(marks))
