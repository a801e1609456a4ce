"""Reads the weights that ``attnviz heads`` saved as JSON and ``.npz``, and other programs captured.

Anyone may have written a file that is read: all of it is bounded and checked, no pickle is read,
and each failure is one sentence. The layout of a capture, ``attnviz.capture/1``, is on the manual
page ``heads``. Its queries and keys stand as they enter the product: after the rotation of their
positions and after any norm. The weights follow in blocks of rows:

    softmax(cap · tanh(scale · q kᵀ / cap) + mask), with a learned sink as one more key.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Annotated, Any, get_args

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import causal_mask, repeat_kv_heads, softmax
from attnviz.draw.labels import visible
from attnviz.draw.regions import read_regions
from attnviz.draw.values import model_of
from attnviz.errors import LoadError
from attnviz.inspect.heads.heads import heads_report
from attnviz.inspect.heads.report import NOTABLE, SCHEMA, TOKENS, HeadsReport, compare_heads
from attnviz.measures.labels import LOCAL, SINK
from attnviz.measures.one_text import notable_heads
from attnviz.measures.registry import LABELS, OF_ONE_TEXT, UNLABELLED, label_named
from attnviz.measures.words import joined
from attnviz.models.pieces import looks_special, undone
from attnviz.reading import (
    ARRAY_BYTES,
    RESULT_BYTES,
    damaged,
    finite,
    fits,
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
    ModelInfo,
    Score,
    Source,
    Tokens,
)

Arrays = Mapping[str, NDArray[Any]]

_PACKED = 100
"""How many times smaller than its arrays an archive may be; NumPy's own are at most twice."""

_VECTORS = ("value_norms", "queries", "keys", "query_key_factor")
_SAVED = re.compile(rf"(weights|layers|heads|{'|'.join((*TOKENS, *_VECTORS))})(_[0-9]+)?")
"""The names of the arrays of runs, with the index of a run."""

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compressions that NumPy uses; the library unpacks others without a limit."""

_CAPTURE = "attnviz.capture/1"
_PARTS = ("query", "key", "sinks", "weights")
_TENSOR = rf"layer\.(?:0|[1-9][0-9]{{0,5}})\.(?:{'|'.join(_PARTS)})"
"""The name of an array of a capture."""

_FACTS = {
    *("schema", "model", "text", "tokens", "token_ids", "key_tokens", "key_token_ids", "special"),
    *("causal", "scale", "window", "softcap"),
}
_BLOCK = 2**22  # the most scores that are computed at once
_KEPT = 2_000_000  # the most numbers of queries and keys that are kept for a page
_ROUNDING = 0.02  # how far the sum of a row of 16-bit weights may exceed one


def read_heads(content: bytes, name: str) -> HeadsReport:
    """Return the runs in a file that ``attnviz heads --save`` wrote, in any of its formats.

    In the result, layers and heads are named from 0. Raises LoadError, in one line, if it is
    damaged or has other content.
    """
    with damaged(name, "save it again"):
        facts, arrays = _opened(content, name)
        if facts.get("schema") == _CAPTURE:
            return _captured(facts, arrays, name)
        if (schema := facts.get("schema")) != SCHEMA:
            told = f"the schema {visible(str(schema))[:60]!r}" if schema else "no schema"
            raise LoadError(
                f"{name} holds {told}: expected what attnviz heads --save writes as .json "
                "or .npz, or attnviz.capture/1"
            )
        return _comparison(facts, arrays)


def _opened(content: bytes, name: str) -> tuple[dict[str, Any], Arrays]:
    """Return the JSON facts of a file, and its arrays by name as in an npz."""
    if content[:2] == b"PK":
        arrays = _of_archive(content)
        facts = arrays.pop("capture", arrays.pop("provenance", np.array("{}")))
        return parse_json(str(facts), name), arrays
    if content[8:9] == b"{" and content[:1] != b"{":
        return _of_tensors(content, name)
    if not content.lstrip(b" \t\r\n\xef\xbb\xbf").startswith((b"{", b"[", b'"')):
        raise LoadError(f"{name} is not an .npz, .safetensors or .json file")
    if content.startswith(b'{"schema": "attnviz.generate/') and b"\n{" in content:
        raise LoadError(f"{name} is a run that attnviz generate saved: attnviz explore replays it")
    if len(content) > RESULT_BYTES:
        raise LoadError(f"{name} is too large to be read as JSON: save it as .npz")
    facts = parse_json(content, name)
    if not isinstance(facts, dict):
        raise LoadError(f"{name} should hold a JSON object, not {type(facts).__name__}")
    if facts.get("schema") != SCHEMA:
        return facts, {}
    parts: dict[str, list[Floats]] = {}
    for entry in facts["heads"]:
        for part in ("weights", "value_norms"):
            if part not in entry:
                continue
            rows = np.array(entry.pop(part), np.float64).astype(np.float32)
            parts.setdefault(f"{part}_{entry.get('variant', 0)}", []).append(rows)
    return facts, {part: np.stack(heads) for part, heads in parts.items()}


def _of_archive(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz by name; sizes are checked before unpacking."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    if unpacked > min(ARRAY_BYTES, _PACKED * len(content)):
        raise ValueError(f"{unpacked:,} bytes when unpacked")
    if any(member.compress_type not in _PACKINGS for member in members):
        raise ValueError("an archive that NumPy does not write")
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = {name: np.asarray(array) for name, array in archive.items()}
    for array in arrays.values():
        if array.dtype.kind not in "fiuU":
            raise ValueError(f"an array of {array.dtype}, which is neither numbers nor texts")
    return arrays


def _of_tensors(content: bytes, name: str) -> tuple[dict[str, Any], Arrays]:
    """Return the facts and the arrays of a capture in a ``.safetensors`` file; else nothing."""
    from safetensors import deserialize

    unpack: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = deserialize
    tensors = {}
    for tensor, stored in unpack(content):
        if (dtype := stored["dtype"]) not in _TYPES:
            named = visible(tensor)
            raise LoadError(f"the tensor {named!r} has numbers of {dtype}, expected floats")
        array = np.frombuffer(stored["data"], _TYPES[dtype]).reshape(stored["shape"])
        if dtype == "BF16":  # which NumPy lacks
            array = (array.astype(np.uint32) << 16).view(np.float32)
        tensors[tensor] = array
    size = int.from_bytes(content[:8], "little")
    metadata = parse_json(content[8 : 8 + size], name).get("__metadata__", {})
    return (parse_json(metadata["capture"], name), tensors) if "capture" in metadata else ({}, {})


def _comparison(facts: dict[str, Any], arrays: Arrays) -> HeadsReport:
    if strange := [name for name in arrays if not _SAVED.fullmatch(name)]:
        raise ValueError(f"{visible(strange[0])[:60]!r} is no array of {SCHEMA}")
    variants: list[dict[str, Any]] = facts.get("variants") or [{}]
    reports, moved = [], []
    for variant, differs in enumerate(variants):
        entries = [entry for entry in facts["heads"] if entry.get("variant", 0) == variant]
        names = ("weights", "layers", "heads", *TOKENS, *_VECTORS)
        named = ((name, arrays.get(f"{name}_{variant}", arrays.get(name))) for name in names)
        kept = {name: array for name, array in named if array is not None}
        own, first = {**facts, **differs}, not variant or "sink" in differs
        report = _report(own, entries, kept.pop("weights"), first=first)
        own["layers"] = [head.layer for head in report.heads]
        own["heads"] = [head.head for head in report.heads]
        for name in ("layers", "heads", *TOKENS):
            if name in kept and not np.array_equal(kept.pop(name), np.array(own.get(name))):
                raise ValueError(f"{name} that are not those of its provenance")
        reports.append(replace(report, vectors=_vectors(report, kept)))
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
    kind: Kind = one_of(facts["kind"], get_args(Kind))
    score: Score | None = one_of(facts["score"], (None, *get_args(Score)))
    info = replace(model_of(facts["model"]), score=score)
    causal, sinks = typed(facts["causal"], bool), facts["sink"]
    marks = set(sinks["keys"]) if first and not causal else set()  # else any first token
    queries = keys = _read_tokens(facts["tokens"], facts["token_ids"], marks)
    if kind == "cross":
        keys = _read_tokens(facts["key_tokens"], facts["key_token_ids"], marks)
        queries = _read_tokens(facts["tokens"], facts["token_ids"], set())
    named = replace(keys, regions=read_regions(facts.get("regions", ()), len(keys)))
    queries, keys = named if queries is keys else queries, named
    scores = [_scores(entry) for entry in entries]
    whole, removed = not typed(sinks["left_out"], bool), facts.get("ablated", ())
    if weights.shape != (shape := (len(entries), len(queries), len(keys))):
        raise ValueError(f"weights of shape {weights.shape}, expected {shape}")
    layers = _layers(scores, weights, (max(info.layers, 1), info.heads), whole)
    if hidden := optional(facts.get("padding"), int):
        mask = np.tile(np.arange(len(keys)) < len(keys) - hidden, (len(queries), 1))
        layers = tuple(replace(layer, mask=mask) for layer in layers)
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
    scores: Sequence[HeadScores], weights: Floats, sizes: tuple[int, int], whole: bool
) -> tuple[LayerWeights, ...]:
    """Return the attention weights by layer; raise ValueError for some that no softmax gives.

    NaN is allowed only if it was left out, or if the head has no label.
    """
    for entry, own in zip(scores, weights, strict=True):
        known = np.nan_to_num(own, nan=0.0, posinf=-1.0)
        blank, most = not whole or entry.label is NO_LABEL, 1 + _ROUNDING
        wrong = known.min() < 0 or known.sum(-1).max() > most or np.isnan(own).any() > blank
        if wrong or weights.dtype.kind != "f":
            raise ValueError(f"weights of L{entry.layer}H{entry.head} that are not shares of one")
    heads = [entry.place for entry in scores]
    if len(set(heads)) < len(heads) or not heads:
        raise ValueError("a head that is there twice" if heads else "no heads")
    if any(not (0 <= layer < sizes[0] and 0 <= head < sizes[1]) for layer, head in heads):
        raise ValueError("a head that the model does not have")
    by_layer: dict[int, list[int]] = {}
    for at, (layer, _) in enumerate(heads):
        by_layer.setdefault(layer, []).append(at)
    return tuple(
        LayerWeights(layer, tuple(heads[at][1] for at in some), weights[some])
        for layer, some in sorted(by_layer.items())
    )


def _vectors(report: HeadsRecord, arrays: Arrays) -> HeadVectors | None:
    """Return the queries, keys and norms that a run's file has; None if it has none of them."""
    if not arrays:
        return None
    heads, layers = report.heads, {entry.layer for entry in report.heads}

    def by_layer(name: str, *shape: int) -> dict[int, Floats]:
        if (array := arrays.get(name)) is None:
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
    queries, keys = len(report.record.queries), len(report.record.keys)
    return HeadVectors(
        factor=finite(float(arrays.get("query_key_factor", np.ones(())))),
        norms=by_layer("value_norms", keys),
        queries=by_layer("queries", queries, width),
        keys=by_layer("keys", keys, width),
    )


def _scores(entry: Mapping[str, Any]) -> HeadScores:
    trait, label_name = entry["trait"], entry["trait"]["name"]
    # A file of an earlier version lacks the measures that came later.
    own = {name: entry[name] if name != LOCAL else entry.get(name) for name in OF_ONE_TEXT}
    scores = {name: None if score is None else finite(score) for name, score in own.items()}
    label = NO_LABEL
    if label_name != NO_LABEL.name:
        last = "on_text" if "on_text" in trait else "score"
        measure = label_named(one_of(label_name, (*LABELS, *UNLABELLED)))
        score, base, known, on_text = (
            math.nan if trait[name] is None else finite(trait[name])
            for name in ("score", "base_rate", "measured", last)
        )
        source: Source = one_of(trait["source"], get_args(Source))
        shown = label_named(SINK) if source == "none" and label_name in SINKS else measure
        label = HeadLabel(
            name=label_name,
            letter=measure.letter,
            score=score if math.isnan(known) else known,
            base_rate=base,
            short=shown.short,
            said=shown.said,
            source=source,
            events=typed(trait["events"], int),
            on_text=on_text,
            date=date.fromisoformat(trait["date"]).isoformat() if trait.get("date") else "",
        )
    return HeadScores(typed(entry["layer"], int), typed(entry["head"], int), scores, label)


# What other programs captured ----------------------------------------------------------------


def _read_tokens(texts: Any, ids: Any, special: Collection[int]) -> Tokens:
    """Return tokens from a file; ones at the indices ``special`` or like ``<bos>`` are special."""
    if not texts or not fits(texts, list[str]) or not fits(ids, list[int]):
        raise ValueError("expected tokens as a list of texts, and their ids as whole numbers")
    marks = tuple(at in special or looks_special(text) for at, text in enumerate(texts))
    return Tokens(tuple(ids), tuple(texts), marks)


def _checked(array: NDArray[Any], where: str, name: str, shape: tuple[int, ...]) -> Floats:
    """Return an array of finite float32 numbers of a shape, in which 0 is any number."""
    filled = tuple(want or came for want, came in zip(shape, array.shape, strict=False))
    if array.shape != filled or array.ndim != len(shape) or 0 in array.shape:
        wanted = " × ".join(str(size) if size else "any" for size in shape)
        came = " × ".join(map(str, array.shape)) or "one number"
        raise LoadError(f"{where}: {name} is {came}, expected {wanted}")
    if array.dtype.kind != "f":
        kinds = f"numbers of {array.dtype}, expected float16, bfloat16 or float32"
        raise LoadError(f"{where}: {name} has {kinds}")
    with np.errstate(over="ignore"):
        numbers: Floats = array.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise LoadError(f"{where}: {name} has numbers that are not finite: capture it again")
    return numbers


def _weights(
    query: Floats, key: Floats, sinks: Floats | None, mask: Any, *, scale: float, cap: float
) -> Floats:
    """Return the weights (head, query, key) of queries and keys (head, token, d); NaN if too large.

    sinks: of each head, the logit of a key that moves nothing. mask: (query, key), True if seen.
    """
    heads, queries, keys = len(query), query.shape[1], key.shape[1]
    weights, rows = np.empty((heads, queries, keys), np.float32), max(1, _BLOCK // keys)
    for head in range(heads):
        for start in range(0, queries, rows):
            some = slice(start, start + rows)
            with np.errstate(over="ignore", invalid="ignore"):
                scores = (query[head, some] @ key[head].T) * scale
                scores = cap * np.tanh(scores / cap) if cap else scores
            if not np.isfinite(scores).all():
                return np.full_like(weights, np.nan)
            if mask is not None:
                scores = np.where(mask[some], scores, -np.inf)
            if sinks is not None:
                scores = np.pad(scores, ((0, 0), (0, 1)), constant_values=sinks[head])
            weights[head, some] = softmax(scores)[:, :keys]
    return weights


def _captured(facts: Mapping[str, Any], arrays: Arrays, name: str) -> HeadsReport:
    if unknown := [visible(key) for key in facts if key not in _FACTS]:
        raise LoadError(f"{name}: {unknown[0]!r} is no fact of {_CAPTURE}: see attnviz docs heads")
    if "tokens" not in facts:
        raise LoadError(f"{name}: its capture has no tokens: give one text for each query")
    cross, marks = "key_tokens" in facts, facts.get("special", ())
    queries = _axis(facts, "token", () if cross else marks)
    keys = _axis(facts, "key_token", marks) if cross else queries
    if not fits([*marks], list[Annotated[int, range(len(keys))]]):
        raise LoadError(f"{name}: special are no indices of its {len(keys):,} keys")
    model = typed(facts.get("model", "a capture"), str)
    if not model.isprintable():
        raise LoadError(f"{name}: the model's name {model[:60]!r} cannot be printed: rename it")
    causal = typed(facts.get("causal", not cross), bool) and not cross
    layers, vectors = _capture_layers(facts, arrays, name, (len(queries), len(keys)), causal)
    kept = arrays.get("layer.0.key", layers[0].weights)
    whole = min(layer.weights.sum(-1).min() for layer in layers) > 1 - _ROUNDING
    info = ModelInfo(
        name=model,
        revision=None,
        architecture="capture",
        dtype=str(arrays.get("layer.0.query", kept).dtype),
        layers=len(layers),
        heads=len(layers[0].heads),
        kv_heads=len(kept),
        head_dim=kept.shape[-1] if "layer.0.key" in arrays else 1,
        weights="captured",
        notes=() if whole else ("rows sum to less than one: the rest is on a learned sink",),
        backend="numpy",
    )
    record = AttentionRecord(info, "cross" if cross else "self", causal, queries, keys, layers)
    text, target = typed(facts.get("text", joined(keys)), str), joined(queries) if cross else None
    return compare_heads([heads_report(record, False, text=text, target=target, vectors=vectors)])


def _axis(facts: Mapping[str, Any], name: str, special: Collection[int]) -> Tokens:
    """Return the tokens of one axis as texts; without ids, equal tokens have equal ones."""
    texts = facts[f"{name}s"]
    if fits(texts, list[str]):
        texts = [*undone(texts)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return _read_tokens(texts, facts.get(f"{name}_ids", [*map(numbers.get, texts)]), special)


def _capture_layers(
    facts: Mapping[str, Any], arrays: Arrays, name: str, tokens: tuple[int, int], causal: bool
) -> tuple[tuple[LayerWeights, ...], HeadVectors]:
    """Return the weights of each layer, and its queries and keys as far as a page shows them."""
    if strange := [visible(array) for array in arrays if not re.fullmatch(_TENSOR, array)]:
        wanted = ", ".join(f"layer.N.{part}" for part in _PARTS)
        raise LoadError(f"{name} has an array {strange[0][:60]!r}, expected {wanted}")
    numbers = {int(array.split(".")[1]) for array in arrays}
    if missing := [at for at in range(max(numbers, default=0) + 1) if at not in numbers]:
        raise LoadError(f"{name} has no layer {missing[0]}: expected all layers from 0")
    for fact in ("scale", "window", "softcap"):
        if isinstance(own := facts.get(fact), list) and len(own) != len(numbers):
            raise LoadError(f"{name}: {fact} has {len(own)} numbers, expected one per layer")
    first = arrays.get("layer.0.query", arrays.get("layer.0.weights"))
    heads = len(first) if first is not None and first.ndim == 3 else 0
    needed = 4 * len(numbers) * heads * tokens[0] * tokens[1]
    if needed > ARRAY_BYTES:
        sizes = f"{len(numbers)} layers × {heads} heads × {tokens[0]:,} × {tokens[1]:,} tokens"
        most = f"{needed / 1e9:.1f} GB, expected at most {ARRAY_BYTES / 1e9:.1f}"
        raise LoadError(f"{name}: weights of {sizes} take {most}: capture fewer heads or tokens")
    layers, pairs, scales = list[LayerWeights](), list[tuple[Floats, Floats]](), set[float]()
    for at in sorted(numbers):
        query, key, sinks, weights = (arrays.get(f"layer.{at}.{part}") for part in _PARTS)
        where, wrong = f"{name}, layer {at}", ""
        parts = {part for part in _PARTS if f"layer.{at}.{part}" in arrays}
        if parts not in ({"weights"}, {"query", "key"}, {"query", "key", "sinks"}):
            needs = "expected query and key, or weights; sinks go with query and key"
            raise LoadError(f"{where}: {needs}")
        width = 0 if query is None or query.ndim != 3 else query.shape[-1]
        scale = _fact(facts, "scale", at, where) or 1 / math.sqrt(width or 1)
        window, cap = int(_fact(facts, "window", at, where)), _fact(facts, "softcap", at, where)
        if window and not causal:
            advice = "leave it out, or write weights"
            raise LoadError(f"{where}: a window is of causal attention: {advice}")
        mask = causal_mask(*tokens, np.empty(0, np.float32), window or None) if causal else None
        if weights is not None:
            shares = _checked(weights, where, "weights", (heads, *tokens))
            if shares.min() < 0 or shares.sum(-1).max() > 1 + _ROUNDING:
                wrong = "weights are not shares of one: are these scores before the softmax?"
        elif query is not None and key is not None:
            query = _checked(query, where, "query", (heads, tokens[0], 0))
            key = _checked(key, where, "key", (0, tokens[1], width))
            if heads % len(key):
                raise LoadError(f"{where}: {heads} heads cannot share {len(key)} key heads evenly")
            key = repeat_kv_heads(key, heads // len(key))
            sinks = None if sinks is None else _checked(sinks, where, "sinks", (heads,))
            shares = _weights(query, key, sinks, mask, scale=scale, cap=cap)
            if np.isnan(shares[0, 0, 0]):
                wrong = "the products of queries and keys are too large: is scale right?"
            pairs.append((query, key))
            scales.add(0.0 if cap else scale)
        if not wrong and mask is not None and shares[:, ~mask].any():
            wrong = "a query has weight on a later key, or behind its window: is causal right?"
        if wrong:
            raise LoadError(f"{where}: {wrong}")
        layers.append(LayerWeights(at, tuple(range(heads)), shares, mask if window else None))
    return tuple(layers), _capture_vectors(pairs, scales, len(layers))


def _fact(facts: Mapping[str, Any], key: str, layer: int, where: str) -> float:
    """Return a layer's number, given for all layers at once or one a layer; 0 if not given."""
    value = facts.get(key)
    if isinstance(value, list):
        value = value[layer]
    number = 0.0 if value is None else finite(value)
    if value is not None and (number <= 0 or (key == "window" and number % 1)):
        raise LoadError(f"{where}: {key} is {number:g}, expected a number above 0, or null")
    return number


def _capture_vectors(
    pairs: list[tuple[Floats, Floats]], scales: set[float], layers: int
) -> HeadVectors:
    """Return the queries and keys for a page, or a note that says why they are missing."""
    size, widths = sum(q.size + k.size for q, k in pairs), {q.shape[-1] for q, _ in pairs}
    if not pairs:
        note = "The capture has weights, no queries and keys."
    elif len(pairs) < layers or max(len(scales), len(widths)) > 1 or 0.0 in scales:
        note = "Without query × key: layers differ in their scale or size, or cap their scores."
    elif size > _KEPT:
        note = f"Without query × key: they are more than {_KEPT:,} numbers."
    else:
        queries, keys = ({at: pair[side] for at, pair in enumerate(pairs)} for side in (0, 1))
        return HeadVectors({}, queries, keys, scales.pop(), ("The capture has no value norms.",))
    return HeadVectors(notes=(note,))
