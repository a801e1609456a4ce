"""Exploring what ``attnviz heads`` or ``generate`` saved, without the model.

Anyone may have written a file: all of it is bounded and checked, no pickle is read, and each
failure is one sentence.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import IO, Any, get_args

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
from attnviz.inspect.generate.records import WrittenRun
from attnviz.inspect.heads.data import SCHEMA
from attnviz.inspect.heads.report import heads_report
from attnviz.measures.labels import SINK
from attnviz.measures.one_text import notable_heads
from attnviz.measures.registry import LABELS, OF_ONE_TEXT, UNLABELLED, label_named
from attnviz.reading import (
    ARRAY_BYTES,
    RESULT_BYTES,
    damaged,
    finite,
    one_of,
    parse_json,
    read_bytes,
    typed,
)
from attnviz.records import (
    NO_LABEL,
    SINKS,
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

_PACKED = 100
"""How many times smaller than its arrays an archive may be; NumPy's own are at most twice."""

_READ = ("provenance", "weights")
"""The first words of the names of the arrays that are read."""

_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compressions that NumPy uses; the library unpacks others without a limit."""

_PIECE = 2**20
_HEADER = 2**16
"""The most bytes that the header of an array may take; NumPy writes 128."""

_RUN = re.compile(rb'\s*\{\s*"schema"\s*:\s*"' + re.escape(RUN.encode()) + rb'"')
_SPECIAL = re.compile(r"<(?!0x)[^<>\s]+>|\[[^\[\]\s]+\]")

_ROUNDING = 0.02
"""How far the sum of a row of weights may exceed one."""


@dataclass(frozen=True, eq=False)
class SavedSession:
    """The saved attention of one text; of a comparison, one of its two variants.

    seen: the only frame. run: what the model wrote after the text, or None.
    other: the other variant of a comparison, or None.
    """

    seen: Frame
    other: SavedSession | None = None
    run: WrittenRun | None = None

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
        """Return the only frame; UsageError if another text or other removals are requested."""
        if text != self.seen.text or (removed and removed != self.seen.removed):
            raise UsageError(f"{_NO_MODEL}: its text and its heads are what they are")
        return self.seen

    def effects(self, text: str, advance: Callable[[float], None]) -> Effects:
        raise UnsupportedError(f"{_NO_MODEL}: no head can be removed")

    def generation(
        self, text: str, sampling: Sampling, removed: frozenset[Head] = frozenset()
    ) -> Iterator[Step]:
        """Return the saved steps, whatever the sampling; UnsupportedError if there are none."""
        if self.run is None:
            raise UnsupportedError(f"{_NO_MODEL}: nothing can be written")
        return iter(self.run.steps)


_NO_MODEL = "this was saved, there is no model behind it"


def open_saved(path: Path) -> SavedSession:
    """Return the session of a saved file; its content tells the format.

    A ``.json``, ``.npz`` or ``.safetensors`` of ``attnviz heads --save``, or the lines of
    ``attnviz generate --save NAME.jsonl``. Of several variants the first two are read.
    Raises LoadError for a file that cannot be read, is damaged, or holds something else.
    """
    name = repr(visible(str(path)))
    content = read_bytes(path, name=name, most=ARRAY_BYTES)
    if not content:
        raise LoadError(f"{name} is empty: save it again with attnviz heads --save")
    if _RUN.match(content):
        with damaged(name, "save the run anew"):
            return _of_run(read_run(content, name), name)
    with damaged(name, "save it again with attnviz heads --save"):
        facts, arrays = _opened(content, name)
        if facts.get("schema") != SCHEMA:
            raise LoadError(
                f"{name} holds {_told(facts)}: expected what attnviz heads --save writes as .json, "
                ".npz or .safetensors, or attnviz generate --save as .jsonl"
            )
        return _session(facts, arrays)


def _told(facts: Mapping[str, Any]) -> str:
    schema = facts.get("schema")
    return f"the schema {visible(str(schema))[:60]!r}" if schema else "no schema"


# Files ---------------------------------------------------------------------------------------


def _opened(content: bytes, name: str) -> tuple[dict[str, Any], Arrays]:
    """Return the facts of a file and the weights of its variants, by their names in an npz."""
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
    """Return the arrays of an npz; each size is compared with the header before unpacking."""
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
    """Read an array with its header from a stream of ``size`` bytes."""
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
    """Return the facts and weights of a file of ``heads.data.write_heads_safetensors``."""
    from safetensors.numpy import load

    tensors = load(content)
    size = int.from_bytes(content[:8], "little")
    metadata = parse_json(content[8 : 8 + size], name)["__metadata__"]
    facts = parse_json(metadata["provenance"], name)
    heads: dict[str, list[int]] = parse_json(metadata["heads"], name)
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
    """Return the session of the first variant, with the second one as its ``other``."""
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
    """Return the frame of a variant; if it is the ``second``, ``facts["sink"]`` is not its own."""
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
    """Raise ValueError for weights that no softmax gives.

    NaN is allowed only if the sink was left out, or if the head has no label.
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
        measure = label_named(one_of(name, (*LABELS, *UNLABELLED)))
        score, base, known, on_text = (
            math.nan if told[one] is None else finite(told[one])
            for one in (
                "score",
                "base_rate",
                "measured",
                "on_text" if "on_text" in told else "score",
            )
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
    """Return tokens; those at the places ``special``, or that look like ``<bos>``, are special."""
    known = tuple(typed(text, str) for text in texts)
    if not known:
        raise ValueError("no tokens")
    marks = (at in special or bool(_SPECIAL.fullmatch(text)) for at, text in enumerate(known))
    return Tokens(tuple(typed(number, int) for number in ids), known, tuple(marks))


# Runs ----------------------------------------------------------------------------------------


def _of_run(run: WrittenRun, name: str) -> SavedSession:
    """Return the session of a saved run; weights that the file does not have are NaN."""
    queries = run.begun
    keys = run.source if run.kind == "cross" and run.source is not None else queries
    layers = run.prompt
    if not layers:
        shape = (len(queries), len(keys))
        blank = np.array(np.nan, np.float32)
        if sum(map(len, run.steps[0].rows.values())) * math.prod(shape) > ARRAY_BYTES // 4:
            raise LoadError(f"{name} has a prompt of {len(queries):,} tokens, too long to be shown")
        layers = tuple(
            LayerWeights(layer, tuple(range(len(row))), np.full((len(row), *shape), blank))
            for layer, row in sorted(run.steps[0].rows.items())
        )
        for layer in layers:
            layer.weights[:, -1] = run.steps[0].rows[layer.layer]
    record = AttentionRecord(run.model, run.kind, run.kind != "cross", queries, keys, layers)
    report = heads_report(
        record, False, run.index_base, text=run.text, known=run.known, ablated=run.removed
    )
    frame = Frame(run.text, report, frozenset(run.removed), run.steps[0].likely, known=run.known)
    return SavedSession(frame, run=run)
