"""What the panes show: results of passes and the user's choices, and what is kept of that.

A view is kept as a command that gives it again, as a file, or as an interactive page.
"""

from __future__ import annotations

import shlex
import unicodedata
from bisect import bisect
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from attnviz.draw import document as doc
from attnviz.draw.files import check_path, save, text_file
from attnviz.draw.heatmap import Axes
from attnviz.draw.labels import cut, token_labels, visible
from attnviz.draw.maps import signed_limit
from attnviz.draw.numbers import NumberScale
from attnviz.draw.page.data import LARGEST_CHANGE, Page, largest_changes, with_difference
from attnviz.draw.report import EVERY, report_files
from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme
from attnviz.engine.generation import Sampling, Step, written
from attnviz.engine.head_run import Head
from attnviz.engine.scan.run import Effects
from attnviz.errors import UsageError
from attnviz.inspect.explore.session import Frame, Mode, model_name, two_models, unlike
from attnviz.inspect.generate.report import Ending, WrittenRun, write_run_lines
from attnviz.inspect.heads.links import LONGEST, link_names
from attnviz.inspect.heads.look import WITHOUT_WITH, measures, page_capture, with_effects
from attnviz.inspect.heads.report import compare_heads
from attnviz.measures.sinks import sink_of
from attnviz.measures.words import word_spans
from attnviz.records import AttentionRecord, Floats, LayerWeights, Tokens

Side = Literal["a", "b", "difference"]
"""Which of two sides is shown: the first, the second, or their difference."""

SIDES: tuple[Side, ...] = get_args(Side)


@dataclass(frozen=True)
class Written:
    """The text that the model generates in explore, as far as it is done and shown.

    at: how many of them are shown. paused: whether generation waits for a key.
    """

    sampling: Sampling
    steps: tuple[Step, ...] = ()
    at: int = 0
    running: bool = True
    paused: bool = False


@dataclass(frozen=True)
class View:
    """The screen state of explore: everything that the panes draw.

    frame: the result without the removed heads; whole: with all heads. other: the second side, if
        there is one; else, if heads are removed, the whole model is the second side.
    mode: how weights are shown: raw, without the sink or norm-weighted.
    removed: the heads that the user removed; ``frame`` follows when its pass is done.
    effects: the effect of each removal, if known; scanned: the share done of a running measurement.
    written: the text that the model generates after that of ``frame``; its weights are raw.
    """

    frame: Frame
    whole: Frame
    other: Frame | None
    head: Head
    query: int = 0
    key: int = 0
    mode: Mode = "raw"
    side: Side = "a"
    removed: frozenset[Head] = frozenset()
    effects: Effects | None = None
    scanned: float | None = None
    by_effect: bool = False
    written: Written | None = None

    @classmethod
    def of(cls, frame: Frame, other: Frame | None = None) -> View:
        """Return the first screen state for a result: at its most notable head and last token."""
        head = (*frame.report.notable, *frame.heads)[0]
        record, removed = frame.report.record, frame.removed
        view = cls(frame, frame, other, head, removed=removed)
        return view.at(len(record.queries) - 1, len(record.keys) - 1)

    # What is shown ---------------------------------------------------------------------------

    @property
    def against(self) -> Frame | None:
        """Return the result with which the first side is compared, or None if there is none."""
        return self.other or (self.whole if self.frame.removed else None)

    @property
    def shown(self) -> Frame:
        """Return the result of the side that is shown."""
        return self.against or self.frame if self.side == "b" else self.frame

    @property
    def comparable(self) -> bool:
        """Return whether there are two sides whose attention weights can be subtracted."""
        return self.against is not None and not self.unlike

    @property
    def unlike(self) -> str:
        """Return why the two sides cannot be subtracted for this head; empty if they can."""
        return "" if self.against is None else unlike(self.frame, self.against, self.head)

    @property
    def dark(self) -> bool:
        """Return whether the shown head is ablated in the run that is shown, and so drawn dark."""
        gone = self.removed if self.side == "a" else self.shown.removed
        return self.side != "difference" and self.head in gone

    @property
    def step(self) -> Step | None:
        """Return the generation step that is shown; None if the prompt alone is shown."""
        text = self.written
        return text.steps[text.at - 1] if text is not None and text.at else None

    @cached_property
    def record(self) -> AttentionRecord:
        """Return the attention record that is shown; of a growing text the tokens, no weights."""
        record = self.shown.report.record
        if self.written is None or not self.written.at:
            return record
        grown = written(record.queries, self.written.steps[: self.written.at])
        keys = record.keys if record.kind == "cross" else grown
        return replace(record, queries=grown, keys=keys, layers=())

    @cached_property
    def weights(self) -> Floats:
        """Return the attention weights (query, key) of the chosen head, or their difference.

        NaN stands for weights that do not exist yet. Raises UsageError if the mode is not
        available.
        """
        if self.side == "difference" and self.against is not None:
            if self.unlike:
                raise UsageError(self.unlike)
            a, b = (side.weights(self.head, self.mode) for side in (self.frame, self.against))
            return b - a if self.other is not None else a - b
        weights = self.shown.weights(self.head, self.mode)
        if self.written is None or not self.written.at:
            return weights
        grown = np.full((len(self.record.queries), len(self.record.keys)), np.nan)
        grown[: len(weights), : weights.shape[1]] = weights
        layer, head = self.head
        for step in self.written.steps[: self.written.at]:
            row = step.rows[layer][head]
            grown[step.place, : len(row)] = row
        return grown

    def without_sink(self, row: Floats) -> Floats:
        """Return a row of attention weights with zeros for the attention sink."""
        keys = sink_of(self.shown.report.record)[1]
        left = row.copy()
        left[: len(keys)][keys[: len(row)]] = 0.0
        return left

    @property
    def limit(self) -> float:
        """Return the difference that is drawn in the full colour; 0 if weights are shown."""
        if self.side != "difference" or self.against is None:
            return 0.0
        return NumberScale(signed_limit(self.weights)).limit

    def axes(self, encoding: str) -> Axes:
        """Return the axes of the map with their labels."""
        queries, keys = self.record.queries, self.record.keys
        return Axes(
            _labels(queries, encoding),
            _labels(keys, encoding),
            self.record.causal,
            query_regions=queries.regions,
            key_regions=keys.regions,
        )

    def names(self, encoding: str) -> tuple[list[str], list[str]]:
        """Return the names of the queries and keys; a repeated token has its index in the name."""
        if self.step is not None:
            return _names(self.record, encoding)
        return _names_of(self.shown, encoding)

    def name(self, head: Head) -> str:
        """Return a head's name, such as ``L2H5``. head: (layer, head) from 0."""
        base = self.shown.report.index_base
        return f"L{head[0] + base}H{head[1] + base}"

    # Changes ---------------------------------------------------------------------------------

    def fitted(self, removed: frozenset[Head] | None = None) -> View:
        """Return the screen state with a head, a cursor and a side that exist in its results."""
        view = self
        if self.against is None or (self.side == "difference" and self.unlike):
            view = replace(self, side="a")
        heads = view.shown.heads
        head = view.head if view.head in heads else heads[0]
        gone = self.frame.removed if removed is None else removed
        return replace(view, head=head, removed=gone).at(view.query, view.key)

    def with_written(self, written: Written) -> View:
        """Return the screen state for a text that is being generated.

        The cursor stands on the newest query and on its key with the largest weight, sinks
        excluded.
        """
        view = replace(self, written=written)
        step, (layer, head) = view.step, view.head
        if step is None:
            return view.at(view.query, view.key)
        return view.at(step.place, int(view.without_sink(step.rows[layer][head]).argmax()))

    def at(self, query: int, key: int) -> View:
        """Return the view with its cursor on a query and a key, or on the nearest that exist."""
        query, key = _within(query, self.record.queries), _within(key, self.record.keys)
        return replace(self, query=query, key=key)

    def search(self, typed: str) -> View:
        """Return the view at the next token that begins the typed text, cyclically.

        The cursor's key moves to this token too, except in cross attention. The view is unchanged
        if the text occurs nowhere.
        """
        tokens = places_of(self.record.queries, typed)
        if not tokens:
            return self
        query = next((at for at in tokens if at > self.query), tokens[0])
        return self.at(query, self.key if self.record.kind == "cross" else query)

    def with_head(self, head: Head) -> View:
        """Return the view with another head; unchanged if there is no such head."""
        return replace(self, head=head) if head in self.shown.heads else self

    def next_in(self, heads: Sequence[Head], step: int) -> View:
        """Return the view ``step`` heads further in a list, not beyond its ends.

        heads: the list; if the shown head is not in it, its first head is shown.
        """
        at = heads.index(self.head) + step if self.head in heads else 0
        return self.with_head(heads[_within(at, heads)]) if heads else self

    def next_in_layer(self, step: int) -> View:
        """Return the view ``step`` heads further in the same layer; not beyond its ends."""
        return self.next_in([head for head in self.shown.heads if head[0] == self.head[0]], step)

    def next_layer(self, step: int) -> View:
        """Return the view ``step`` layers further, at this head number or the nearest below."""
        heads = self.shown.heads
        layers = list(dict.fromkeys(layer for layer, _ in heads))
        layer = layers[_within(layers.index(self.head[0]) + step, layers)]
        within = [head for head in heads if head[0] == layer]
        return self.with_head(max((h for h in within if h[1] <= self.head[1]), default=within[0]))


def _within(index: int, among: Sized) -> int:
    return min(max(index, 0), max(len(among) - 1, 0))


def places_of(tokens: Tokens, typed: str) -> tuple[int, ...]:
    """Return the indices of the tokens at which the typed text begins, ignoring case.

    The text may extend over several tokens; if it is found nowhere, its words are searched.
    """
    wanted = typed.casefold()
    if not wanted.strip():
        return ()
    texts = [text.casefold() for text in tokens.texts]
    ends, folded = [*accumulate(map(len, texts))], "".join(texts)
    indices, at = [], folded.find(wanted)
    while at >= 0:
        indices.append(bisect(ends, at))
        at = folded.find(wanted, at + 1)
    return tuple(dict.fromkeys(indices)) or tuple(span.start for span in word_spans(tokens, typed))


@lru_cache(maxsize=8)
def _labels(tokens: Tokens, encoding: str) -> Sequence[str]:
    return token_labels(tokens, encoding)


def _names(record: AttentionRecord, encoding: str) -> tuple[list[str], list[str]]:
    axes = link_names(record, LONGEST)
    queries, keys = ([visible(name, encoding) for name in names] for names in axes)
    return queries, keys


@lru_cache(maxsize=4)
def _names_of(frame: Frame, encoding: str) -> tuple[list[str], list[str]]:
    return _names(frame.report.record, encoding)


def command_line(view: View, options: Sequence[str] = (), file: Path | None = None) -> str:
    """Return the ``attnviz heads`` command that shows the same head, to be pasted into a shell.

    file: the file of the text, which the command then names instead. Control characters are escaped
        (``$'…'``).
    """
    words, shown = ["attnviz", "heads", *options, "--head", view.name(view.head)], view.shown
    text, base = shown.text, shown.report.index_base
    if shown.removed:
        words += ["--ablate", ",".join(map(view.name, sorted(shown.removed)))]
    if view.mode != "raw":
        words.append("--no-sink" if view.mode == "no-sink" else "--norm-weighted")
    if base:
        words += ["--index-base", str(base)]
    line = " ".join(map(shell_word, words))
    if "--chat" in options:  # which gives the text
        return line
    if file is not None:
        return f"{line} --file {shell_word(str(file))}"
    if text == "-":  # alone it means standard input
        return f"printf %s - | {line} -"
    return f"{line} {'-- ' if text.startswith('-') else ''}{shell_word(text)}"


def shell_word(word: str) -> str:
    """Return one word quoted for a shell, its control characters escaped."""
    if all(map(_is_plain, word)):
        return shlex.quote(word)
    spelled = ""
    for character in word:
        escapes = (f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))
        kept = f"\\{character}" if character in "\\'" else character
        spelled += kept if _is_plain(character) else "".join(escapes)
    return f"$'{spelled}'"


def _is_plain(character: str) -> bool:
    return character == " " or unicodedata.category(character)[0] not in "CZ"


_LONGEST = 40
_MODES = {"raw": "raw", "no-sink": "sinkless", "value-weighted": "value"}


def explored_document(view: View) -> doc.Document:
    """Return the documents of all sides as one, with a page that opens at the view."""
    sides, page = _sides(view), _page(view)
    documents = [frame.alone.document() for frame, _ in sides]
    groups = [group for document in documents for group in document.groups]
    whole = documents[0]._replace(groups=groups, page=lambda: page)
    if len(sides) == 1:
        return whole
    changed = [f"{page.captures[2].heads[cell.head].name}: {cell.says}" for cell in page.look[:1]]
    names = " next to ".join(name for _, name in sides)
    return whole._replace(finding="; largest change in ".join([names, *changed]) + ".")


def _page(view: View) -> Page:
    """Return the page: one side, or both and their difference where they have one."""
    sides, effects = _sides(view), view.effects
    captures = [page_capture(frame.report, name) for frame, name in sides]
    if view.mode == "value-weighted":
        for at, (frame, _) in enumerate(sides):
            norms = [frame.norms[head.layer][head.head] for head in captures[at].heads]
            captures[at] = replace(captures[at], norms=np.stack(norms))
    known = measures(captures[0].heads)
    if effects is not None and not sides[0][0].removed:
        unit = "nats/token" if effects.metric == "loss_delta" else ""
        captures[0], measure = with_effects(captures[0], effects.values, unit)
        known.append(measure)
    if view.comparable:
        between = "B − A" if view.other is not None else WITHOUT_WITH
        captures = [*with_difference(captures[0], captures[1], between)]
        known.append(LARGEST_CHANGE)
    at = SIDES.index(view.side)
    if len(captures) > 1 and view.other is None and view.side != "difference":
        at = 1 - at  # the whole model stands first
    link = f"{view.shown.report.name(*view.head)}&capture={at}&q={view.query}&k={view.key}"
    link += f"&mode={_MODES[view.mode]}" if view.side != "difference" else ""
    look = [*largest_changes(captures)]
    return Page(view.record.model.name, captures, known, look, link=f"{link}&lock")


def _sides(view: View) -> list[tuple[Frame, str]]:
    """Return each side and its name; the whole model stands before the one without heads."""
    frame, against = view.frame, view.against

    def without(frame: Frame) -> str:
        return f"without {', '.join(frame.report.name(*head) for head in sorted(frame.removed))}"

    if against is None:
        return [(frame, "")]
    if view.other is None:
        return [(against, "every head"), (frame, without(frame))]
    models, sides = two_models(frame, against), []
    for letter, side in (("A", frame), ("B", against)):
        name = model_name(side.report.record.model) if models else side.text
        removed = f", {without(side)}" if side.removed else ""
        sides.append((side, f"{letter} {cut(visible(name), _LONGEST)}{removed}"))
    return sides


ENDINGS = (*EVERY.split(), ".npz")
"""The endings of the files that a view can be saved as, the same as for ``attnviz heads``."""


def save_view(path: Path, view: View, theme: Theme, width: int) -> None:
    """Save the shown head, or the whole generation, to a file in the format of its ending.

    A page has all heads, of both sides and of their difference, and opens at the view.

    Raises UsageError for an unknown ending and for a difference, which only a page can hold,
    LoadError if the system refuses.
    """
    if view.written is not None and view.written.at:
        if path.suffix.lower() != ".jsonl":
            raise UsageError("what was written is saved as .jsonl; Esc, then s saves the prompt")
        run = _run_of(view, view.written)
        save(path, {".jsonl": text_file(partial(write_run_lines, run))})
        return
    check_path(path, ENDINGS)
    page = path.suffix.lower() == ".html"
    if view.side == "difference" and view.against is not None and not page:
        raise UsageError("a difference is not saved, but as .html: press d for one side")
    report, (layer, head) = view.shown.report, view.head
    record = replace(view.record, layers=(LayerWeights(layer, (head,), view.weights[None]),))
    chosen = replace(
        report,
        record=record,
        heads=(report.scores(layer, head),),
        notable=(view.head,),
        selected=True,
        ablated=tuple(sorted(view.shown.removed)),
        sink=view.mode != "no-sink",
        norm_weighted=view.mode == "value-weighted",
    )
    seen, plain = compare_heads([chosen]), Theme(theme.palette, colour=False, ascii=theme.ascii)
    document = partial(explored_document, view) if page else seen.document

    def screen() -> str:
        return terminal_block(seen.document(), plain, width).plain

    save(path, report_files(seen, document, theme.palette, screen))


def _run_of(view: View, written: Written) -> WrittenRun:
    """Return the generation so far as the record that ``attnviz generate`` saves."""
    report, steps, sampling = view.frame.report, written.steps, written.sampling
    ended: Ending = "end" if steps[-1].ended else "tokens"
    if not steps[-1].ended and len(steps) < sampling.tokens:
        ended = "interrupted" if written.running else "context"
    known = report.record.layers
    return WrittenRun(
        report.record.model,
        report.record.kind,
        text=view.frame.text,
        source=None,
        begun=report.record.queries,
        prompt=known if all(np.isfinite(layer.weights).all() for layer in known) else (),
        sampling=sampling,
        removed=tuple(sorted(view.frame.removed)),
        steps=steps,
        ending=ended,
        index_base=report.index_base,
        known=view.frame.known,
    )
