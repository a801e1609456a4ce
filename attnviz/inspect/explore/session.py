"""Frames, each the result of one pass over one text, and the sessions that make them.

A session has a model, or what ``attnviz heads`` or ``generate`` saved.

A frame may have removed heads. A call of a session may take long, may run in any thread, and raises
the package's own exceptions. An exception of ``advance`` ends a call and leaves nothing behind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from attnviz.attention.functional import namespace
from attnviz.draw.labels import visible
from attnviz.draw.provenance import size_words
from attnviz.engine.capture import Asked, Choice, asked, attention_kind, encoded
from attnviz.engine.generation import Sampling, Step, generate
from attnviz.engine.head_run import Head
from attnviz.engine.known_labels import known_labels
from attnviz.engine.likely import Likely, likeliest, log_softmax
from attnviz.engine.observer import to_numpy
from attnviz.engine.scan.run import Effects, removal_effects
from attnviz.engine.text_pass import TextReader, token_losses
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.inspect.generate.report import SCHEMA as RUN
from attnviz.inspect.generate.report import WrittenRun, read_run
from attnviz.inspect.heads.heads import heads_report
from attnviz.inspect.heads.report import HeadsReport, compare_heads
from attnviz.inspect.heads.saved import read_heads
from attnviz.measures.labels import KnownLabels
from attnviz.measures.sinks import norm_weighted, sink_of, without_sink
from attnviz.models.memory import byte_text, require_room
from attnviz.models.model import Model
from attnviz.models.resolve import LoadOptions, load
from attnviz.models.work import Work, about_tokens
from attnviz.options import RegionOptions
from attnviz.reading import ARRAY_BYTES, damaged, read_bytes
from attnviz.records import AttentionRecord, Floats, HeadsRecord, LayerWeights, ModelInfo
from attnviz.regions import region_reader, saved_regions

Mode = Literal["raw", "no-sink", "value-weighted"]
"""Weights as they are; rows rescaled without the attention sink; or each weight times the norm of
the value that it moves, rows rescaled to sum to one."""

_LIKELY = 10
_LARGEST = 2 * 10**9
"""The most bytes of maps that are held, where a text cannot be shown without them."""

_COPIES = 2  # the maps in memory at once: as they are, and in the mode on the screen


@dataclass(frozen=True, eq=False)
class Frame:
    """The result of one pass over one text: everything that the screen shows of it.

    report: the raw attention weights of all heads, their scores, labels and sinks. removed: (layer,
        head) of heads whose outputs were set to zero.
    likely: the likeliest next tokens, the likeliest first; empty if nothing is predicted.
    loss: nats per token of the text; None if there is none.
    known: labels of the model's heads that were measured before.
    """

    text: str
    report: HeadsRecord
    removed: frozenset[Head] = frozenset()
    likely: tuple[Likely, ...] = ()
    loss: float | None = None
    known: KnownLabels | None = None
    measure_norms: Callable[[], Mapping[int, Floats]] = field(default=dict, repr=False)

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """Return every (layer, head), in order."""
        return tuple(sorted(self.report.places))

    @cached_property
    def alone(self) -> HeadsReport:
        """Return the report that ``attnviz heads`` makes of this text, with its links tested."""
        return compare_heads([self.report])

    @cached_property
    def norms(self) -> Mapping[int, Floats]:
        """Return by layer the norms ‖v_j W_O^h‖, of shape (head, key); empty if not known.

        The first use takes a pass: call it in a worker's thread.
        Raises UnsupportedError if the model does not show its values.
        """
        return self.measure_norms()

    def weights(self, head: Head, mode: Mode = "raw") -> Floats:
        """Return the attention weights (query, key) of a head.

        Rows sum to one, or are NaN if empty.
        mode: ``raw``, ``no-sink`` (without the sink, rescaled) or weighted by the values' norms.
        Raises KeyError for an unknown head, UsageError if there is no sink or no norms are known.
        """
        weights = self.report.weights(*head)
        if mode == "raw":
            return weights
        if mode == "no-sink":
            keys = sink_of(self.report.record)[1]
            if not keys.any():
                raise UsageError(
                    "there is no attention sink here, neither a special token nor a first one of "
                    "causal attention"
                )
            return without_sink(weights, keys)
        if head[0] not in self.norms:
            raise UsageError("what values move is not known here: the weights stand alone")
        return norm_weighted(weights, self.norms[head[0]][head[1]])


def weigh(frames: Iterable[Frame | None], head: Head, mode: Mode) -> None:
    """Compute and cache what ``mode`` needs of each result; UsageError if that is not there."""
    for frame in frames:
        if frame is not None and mode != "raw":
            frame.weights(head, mode)


def unlike(frame: Frame, other: Frame, head: Head) -> str:
    """Return why two results cannot be subtracted for a head; empty if they can.

    Two texts in one model are compared by position; two models only if the text has the same tokens
    in both, and their attention is causal in both or in neither.
    """
    a, b = frame.report.record, other.report.record
    models = two_models(frame, other)
    if models and not same_tokens(frame, other):
        return f"no difference: {model_name(a.model)} and {model_name(b.model)} have other tokens"
    if a.kind != b.kind or (models and a.causal != b.causal):
        return "no difference: the sides are of other kinds of attention"
    if len(a.queries) != len(b.queries) or len(a.keys) != len(b.keys):
        return f"no difference: one text has {size_words(a)}, the other {size_words(b)}"
    name = frame.report.name(*head)
    return "" if head in other.heads else f"no difference: the other side has no {name}"


def two_models(frame: Frame, other: Frame) -> bool:
    """Return whether two results come from different models."""
    first, second = (replace(side.report.record.model, notes=()) for side in (frame, other))
    return first != second


def same_tokens(frame: Frame, other: Frame) -> bool:
    """Return whether two results have the same tokens in the same order."""
    a, b = frame.report.record, other.report.record
    return (a.queries.texts, a.keys.texts) == (b.queries.texts, b.keys.texts)


def model_name(info: ModelInfo) -> str:
    """Return a model's name; of a path only the last two parts."""
    return visible("/".join(Path(info.name).parts[-2:]))


class LiveSession:
    """A session of explore with a loaded model, which can run any text.

    choice: the kind of attention and its target, whether to truncate, and how heads are numbered.
    live: whether texts can be edited, heads removed and texts continued.
    text: the first one, which is seen before any is typed.
    sampling: how a saved run chose its tokens; None if it can be chosen.
    """

    def __init__(self, model: Model, choice: Choice | None = None, text: str = "") -> None:
        self.model, self.text = model, text
        self._choice = choice or Choice()
        self._reader = TextReader(model)
        self._labels: dict[str, KnownLabels | None] = {}

    live = True
    sampling: Sampling | None = None

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    def frame(self, text: str, removed: frozenset[Head] = frozenset()) -> Frame:
        """Run the model, and return the result. This is slow.

        removed: (layer, head) of heads whose outputs are set to zero. Raises UsageError if the text
            or a head does not fit, or if its maps are too large to be held.
        """
        wanted = self._wanted(text)
        passed = self._reader.read(wanted, removed)
        likely: tuple[Likely, ...] = ()
        loss, kind = None, passed.record.kind
        if kind not in self._labels:
            ignored = self._choice.no_known_labels
            self._labels[kind] = known_labels(self.model, kind, ignored=ignored)
        known = self._labels[kind]
        if (logits := passed.logits) is not None and namespace(logits).isfinite(logits).all():
            logs = log_softmax(to_numpy(logits[-1]).astype(np.float64))
            losses = token_losses(logits, wanted.given.predicted.ids)
            likely = likeliest(logs, self.model.vocabulary().texts, _LIKELY)
            loss = float(losses.mean()) if len(losses) else None
        report = heads_report(
            passed.record,
            False,
            self._choice.index_base,
            text=text,
            target=self._choice.target,
            known=known,
        )
        return Frame(
            text=text,
            report=report,
            removed=removed,
            known=known,
            likely=likely,
            loss=loss,
            measure_norms=lambda: self._reader.norms(wanted, removed),
        )

    def _wanted(self, text: str) -> Asked:
        """Return the checked request for the maps of all heads over a text."""
        choice, info = replace(self._choice, layers=None, heads=()), self.info
        if attention_kind(self.model, choice, across=True) in ("self", "encoder"):
            count = len(encoded(self.model, text, choice.truncate, choice.encode))
            needed = 4 * info.layers * info.heads * count**2
            holds = f"explore holds every map, which takes over {count:,} tokens"
            advice = (
                "shorten the text, or see it with attnviz heads, which shows long texts in pooled "
                "maps and parts of them with --queries 0-50 --keys 0-200"
            )
            if needed > _LARGEST:
                most = byte_text(_LARGEST)
                raise UsageError(f"{holds} {byte_text(needed)}, at most {most} are held: {advice}")
            require_room(holds, _COPIES * needed, advice)
        return asked(self.model, text, choice)

    def effects(self, text: str, advance: Callable[[float], None]) -> Effects:
        """Return the effect of removing each single head, measured on a text.

        Raises UsageError for a text of one token, UnsupportedError if heads cannot be removed.
        """
        return removal_effects(self.model, self._wanted(text), advance)

    def generation(
        self, text: str, sampling: Sampling, removed: frozenset[Head] = frozenset()
    ) -> Iterator[Step]:
        """Return an iterator over generation steps in which the model continues the text; slow.

        removed: (layer, head) of heads whose outputs are set to zero. The steps' rows of attention
            weights continue the result of ``text``. Raises UnsupportedError for a model that does
            not continue a text, UsageError if the text fills the whole context.
        """
        if "decoder" in self.model.kinds:
            raise UnsupportedError(
                f"the decoder of {self.info.name!r} begins a text of its own, which does not go on "
                "from here: attnviz generate shows it"
            )
        tokens = encoded(self.model, text, self._choice.truncate, self._choice.encode)
        return generate(self.model, tokens, sampling, kind=self._choice.kind, removed=removed)


def open_session(
    name: str,
    options: LoadOptions | None = None,
    choice: Choice | None = None,
    text: str = "",
    regions: RegionOptions | None = None,
) -> LiveSession:
    """Load the model that ``--model NAME`` stands for, and return its session.

    text: the first text; its length decides whether NumPy or torch is faster. regions: how it is
        divided into regions; a chat's text is then what the model's template makes of it.
    Raises what ``models.resolve.load`` and ``region_reader`` raise.
    """
    options = replace(options or LoadOptions(), work=Work(about_tokens(text)))
    model = load(name, options)
    reader = region_reader(model, text, regions or RegionOptions())
    if reader is not None:
        choice, text = replace(choice or Choice(), encode=reader.encode), reader.text
    return LiveSession(model, choice, text)


# A saved file in place of a model --------------------------------------------------------------


_RUN = re.compile(rb'\s*\{\s*"schema"\s*:\s*"' + re.escape(RUN.encode()) + rb'"')
_SAVED = (".npz", ".safetensors", ".json", ".jsonl")
_NO_REGIONS = RegionOptions()
_NO_MODEL = "this was saved, there is no model behind it"


@dataclass(frozen=True, eq=False)
class SavedSession:
    """A session of explore without a model: the saved attention of one text.

    run: the generation that was saved after the text, or None.
    other: the other variant of a saved comparison, or None.
    """

    seen: Frame
    other: SavedSession | None = None
    run: WrittenRun | None = None

    live = False

    @property
    def info(self) -> ModelInfo:
        return self.seen.report.record.model

    @property
    def sampling(self) -> Sampling | None:
        return None if self.run is None else self.run.sampling

    def frame(self, text: str, removed: frozenset[Head] = frozenset()) -> Frame:
        """Return the only result in the file.

        Raises UsageError if another text or other ``removed`` heads are requested than it has.
        """
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


Session = LiveSession | SavedSession
"""What makes a ``Frame`` of a text in explore: a model, or a saved file for the texts in it."""


def is_saved(typed: str) -> bool:
    """Return whether the typed string names a saved file and is not a text."""
    path = Path(typed)
    return path.suffix.lower() in _SAVED and (path.is_file() or " " not in typed.strip())


def open_saved(path: Path, regions: RegionOptions = _NO_REGIONS) -> SavedSession:
    """Return the session of a saved file, whose format is recognized by its content.

    regions: the named spans of its text, in place of the regions that it was saved with.
    It is a ``.json`` or ``.npz`` of ``attnviz heads --save``, a capture, or the lines of
    ``attnviz generate --save NAME.jsonl``. Of several variants the first two are shown. Raises
    LoadError for a file that cannot be read, is damaged, or has other content.
    """
    name = repr(visible(str(path)))
    content = read_bytes(path, name=name, most=ARRAY_BYTES)
    if not content:
        raise LoadError(f"{name} is empty: save it again with attnviz heads --save")
    if _RUN.match(content):
        with damaged(name, "save the run again"):
            run = read_run(content, name)
        if regions.regions_given and run.kind == "cross" and run.source is not None:
            run = replace(run, source=saved_regions(run.source, run.text, regions))
        elif regions.regions_given:
            run = replace(run, begun=saved_regions(run.begun, run.text, regions))
        return _of_run(run, name)
    sessions = []
    for report in read_heads(content, name).reports[:2]:
        record, text = report.record, report.text
        if regions.regions_given:
            decoder = record.kind == "decoder" and report.target is not None
            keys = saved_regions(record.keys, (report.target or "") if decoder else text, regions)
            queries = record.queries if record.kind == "cross" else keys
            record = replace(record, queries=queries, keys=keys)
        shown = replace(report, record=record, sorted_by=None)  # heads in their original order
        sessions.append(SavedSession(Frame(text, shown, frozenset(report.ablated))))
    return replace(sessions[0], other=sessions[-1] if sessions[1:] else None)


def _of_run(run: WrittenRun, name: str) -> SavedSession:
    """Return the session of a saved generation; attention weights that the file lacks are NaN."""
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
