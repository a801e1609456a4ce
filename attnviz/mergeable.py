"""The record that a shard of a corpus leaves: numbers that add up to the bit in any order.

A sum of floats depends on the order of its terms. A record holds sums of fixed-point numbers,
counts, largest values and the best k of a list instead, so that ``a + b`` equals ``b + a`` and
records of shards add up to what one process finds. Its size does not depend on the number of texts.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz import corpus as corpora
from attnviz.corpus import MOST_SHARDS, Reading, Shard, TextBlock, TextCorpus
from attnviz.draw.files import check_writable, whole_file
from attnviz.draw.labels import visible
from attnviz.draw.numbers import counted, listed
from attnviz.draw.values import model_of
from attnviz.errors import LoadError, UsageError
from attnviz.measures.exact_sums import Floats, Integers
from attnviz.progress import UNWATCHED, Watch
from attnviz.reading import (
    ARRAY_BYTES,
    RESULT_BYTES,
    WHOLE,
    check_memory,
    damaged,
    fits,
    read_bytes,
)
from attnviz.resume import refuse_other_run
from attnviz.texts import empty_note

SCHEMA = "attnviz.record/1"

UNUSUAL = (
    "longer than what the model was trained on, or of many tokens that its tokenizer does not know"
)
"""What a report says of the texts about which the model has notes."""

_NAMED = 4  # the most missing shards that are named
_ADVICE = "it is not part of a corpus, or was changed; measure it again"

_SHARD = tuple[Annotated[int, range(MOST_SHARDS)], Annotated[int, range(1, MOST_SHARDS + 1)]]
_TEXTS = Annotated[int, range(10**8 + 1)]  # an exact sum has room for as many terms
_PART = tuple[_SHARD, _TEXTS, _TEXTS, str, WHOLE, str]
_HEAD = {"command": str, "run": dict, "shown": dict, "parts": list[_PART], "texts": dict}
"""The kinds of what a file says beside its arrays."""

_SHOWN = {"model": dict, "source": str, "index_base": Literal[0, 1]}
"""The kinds of the facts that every record shows."""

_SECONDS = 30.0  # how often the file of a shard is written anew


class Form(NamedTuple):
    """What the record of one command may hold, checked before anything is computed from it.

    facts: the kinds of its facts, see ``reading.fits``. sizes: returns from the facts how long an
        axis is; an axis without a size has the same length in all arrays.
    arrays: their names by their axes, in ``sums`` unless they say otherwise; one that ends with a
        dot stands for all with a number there. ``exact`` is the last axis of an exact sum, ``any``
        has any length. text: the kind of a text that is kept.
    """

    facts: Mapping[str, Any]
    sizes: Callable[[Mapping[str, Any]], Mapping[str, int]]
    arrays: Mapping[str, str]
    text: Any = type(None)


class ShardPart(NamedTuple):
    """What one shard has measured so far.

    blocks, texts: how many blocks, and texts in them, are measured. read: a hash of all texts of
    the corpus read so far. whole, digest: the number of all texts and a hash of them; 0 and empty
    until the shard has read the corpus to its end.
    """

    shard: Shard
    blocks: int = 0
    texts: int = 0
    read: str = ""
    whole: int = 0
    digest: str = ""


@dataclass(frozen=True)
class Tallies:
    """The numbers of a record, by name; those of one block are of the same form.

    sums: whole numbers that are added: counts, histograms, exact sums. most: whole numbers of which
        the largest counts. best: (row, k, column) floats, the k entries of each row with the
        largest first column; see ``best_of``. texts: JSON values of the texts that ``best`` names
        in its second column, by their index in the corpus.
    """

    sums: Mapping[str, Integers] = field(default_factory=dict)
    most: Mapping[str, Integers] = field(default_factory=dict)
    best: Mapping[str, Floats] = field(default_factory=dict)
    texts: Mapping[int, Any] = field(default_factory=dict)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays, by kind and name, such as ``sums.texts``."""
        every = ((kind, *entry) for kind in _JOINS for entry in getattr(self, kind).items())
        return {f"{kind}.{name}": np.asarray(values, order="C") for kind, name, values in every}

    def __add__(self, other: Tallies) -> Tallies:
        """Return the numbers of both; raise LoadError if they are not of the same heads."""
        joined: dict[str, dict[str, Any]] = {}
        for kind, join in _JOINS.items():
            own, others = getattr(self, kind), getattr(other, kind)
            joined[kind] = {**own, **others}
            for name in own.keys() & others.keys():
                mine, theirs = own[name], others[name]
                lists_heads = kind == "most" and mine.ndim == 2
                if mine.shape != theirs.shape or (lists_heads and (mine != theirs).any()):
                    raise LoadError(f"a record is damaged: its {name} are not those of the others")
                joined[kind][name] = join(mine, theirs)
            joined[kind] = dict(sorted(joined[kind].items()))
        named = [rows[..., 1].ravel() for rows in joined["best"].values()]
        texts, kept = {**self.texts, **other.texts}, {*np.concatenate([np.zeros(0), *named])}
        return Tallies(**joined, texts={at: texts[at] for at in sorted(texts) if at in kept})


def best_of(entries: Floats, count: int) -> Floats:
    """Return the ``count`` entries of each row with the largest first column, the largest first.

    entries: (row, entry, column). Ties are broken by the other columns, smallest first. Of entries
        with an equal last column only the first is kept, so that what is there twice is named once.
        Where a row has fewer entries, the rest is NaN.
    """

    def ranked_of(rows: Floats) -> Floats:
        keys = [rows[..., column] for column in reversed(range(1, rows.shape[-1]))]
        order = np.lexsort((*keys, -rows[..., 0]), axis=-1)
        return np.take_along_axis(rows, order[..., None], 1)

    ranked = ranked_of(entries)
    kinds = ranked[..., -1]
    order = np.argsort(kinds, axis=1, kind="stable")
    sorted_kinds = np.take_along_axis(kinds, order, 1)
    again = np.zeros(kinds.shape, bool)
    np.put_along_axis(again, order[:, 1:], sorted_kinds[:, 1:] == sorted_kinds[:, :-1], 1)
    ranked[again] = np.nan
    rest = np.full((len(ranked), max(count - ranked.shape[1], 0), ranked.shape[2]), np.nan)
    return np.concatenate([ranked_of(ranked)[:, :count], rest], 1)


_JOINS: Mapping[str, Callable[[Any, Any], Any]] = {
    "sums": np.add,
    "most": np.maximum,
    "best": lambda a, b: best_of(np.concatenate([a, b], 1), max(a.shape[1], b.shape[1])),
}
"""How the arrays of each kind are joined."""


@dataclass(frozen=True, eq=False)
class CorpusRecord:
    """The results of some shards of a corpus; ``a + b`` has the results of both.

    run: all that the numbers depend on, as JSON values by name; records of another run do not add
        up. shown: JSON values that only the report needs.
    """

    command: str
    run: Mapping[str, Any]
    shown: Mapping[str, Any]
    parts: tuple[ShardPart, ...]
    tallies: Tallies

    def __add__(self, other: CorpusRecord) -> CorpusRecord:
        """Return the record of both; raise UsageError if they are not of the same run."""
        if not isinstance(other, CorpusRecord):
            return NotImplemented
        if self.command != other.command:
            raise UsageError(f"{other} is of {other.command}, {self} of {self.command}")
        advice = f"merge it with those of its own run, not {self}"
        refuse_other_run(str(other), other.run, self.run, advice)
        parts = tuple(sorted((*self.parts, *other.parts)))
        if len({part.shard for part in parts}) < len(parts):
            twice = next(a.shard for a, b in pairwise(parts) if a[0] == b[0])
            raise UsageError(f"shard {twice} is there twice: name each part once")
        if len({part.shard.of for part in parts}) > 1:
            raise UsageError(
                f"{other} does not fit {self}: a corpus is cut into one number of shards"
            )
        if len(read := {(part.whole, part.digest) for part in parts if part.digest}) > 1:
            sizes = listed([f"{whole:,}" for whole, _ in sorted(read)])
            raise UsageError(f"{self} and {other} read different texts ({sizes} of them)")
        shown = min(self, other, key=lambda record: record.parts[0]).shown
        return replace(self, shown=shown, parts=parts, tallies=self.tallies + other.tallies)

    def __str__(self) -> str:
        """Return the name of the record in messages: ``shard 0/4``, or of several shards."""
        return f"shard {listed([str(part.shard) for part in self.parts])}"

    def check(self, form: Form, name: str) -> None:
        """Raise LoadError, naming the file ``name``, if the record lacks parts of ``form``."""
        with damaged(name, _ADVICE):
            facts = {**self.run, **self.shown}
            for fact, kind in {**_SHOWN, **form.facts}.items():
                if not fits(facts[fact], kind):
                    raise ValueError(f"its {fact.replace('_', ' ')} is {facts[fact]!r:.40}")
            if not all(fits(text, form.text) for text in self.tallies.texts.values()):
                raise ValueError("a text is not its ids, tokens and marks")
            model = model_of(facts["model"])
            sizes = {"layer": model.layers, "of_layer": model.heads, "exact": 2}
            sizes |= form.sizes(facts)
            known = {own: axes for axes, names in form.arrays.items() for own in names.split()}
            for array, values in self.tallies.arrays.items():
                axes = known.get(re.sub(r"\.[0-9]{1,9}$", ".", array).removeprefix("sums."))
                lengths = zip(() if axes is None else axes.split(), values.shape, strict=False)
                expected = [
                    length if axis == "any" else sizes.setdefault(axis, length)
                    for axis, length in lengths
                ]
                if axes is None or len(axes.split()) != values.ndim or expected != [*values.shape]:
                    raise ValueError(f"{array} of {values.shape} is none of its arrays")
                if axes == "head pair":
                    order = values @ [2**20, 1]
                    beyond = (values >= [model.layers, model.heads]).any()
                    if beyond or (values < 0).any() or (np.diff(order) <= 0).any():
                        raise ValueError(f"{array} are no heads of the model, each once, in order")

    @property
    def texts(self) -> int:
        """Return the number of texts that were measured."""
        return sum(part.texts for part in self.parts)

    @property
    def missing(self) -> str:
        """Return a sentence on shards that are missing or not finished; empty if all are there."""
        of, there = self.parts[0].shard.of, {part.shard.number for part in self.parts}
        absent = [str(Shard(number, of)) for number in range(of) if number not in there]
        if absent:
            more = [f"{len(absent) - _NAMED} more"] if len(absent) > _NAMED else []
            verb = "is" if len(absent) == 1 else "are"
            named = listed([*absent[:_NAMED], *more])
            return f"{len(there)} of {counted(of, 'shard')}: {named} {verb} missing"
        cut = [f"{part.shard} after {part.texts:,} texts" for part in self.parts if not part.digest]
        return f"not finished: shard {listed(cut)}" if cut else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a report's notes: on missing shards, and on the table that has the texts."""
        lacks = (f"{self.missing}: attnviz merge adds all shards up",) if self.missing else ()
        source = str(self.shown.get("source", ""))
        named = [f"the texts are those of {source}"] * (", column " in source)
        return (*lacks, *named, *empty_note(self.shown.get("empty", 0)))

    def save(self, path: Path) -> None:
        """Write the record to a file, whole or not at all; LoadError if the system refuses."""
        from safetensors.numpy import save

        facts = {name: getattr(self, name) for name in ("command", "run", "shown", "parts")}
        told = json.dumps({"schema": SCHEMA, **facts, "texts": dict(self.tallies.texts)})
        arrays = self.tallies.arrays
        content = save(arrays, {"record": told, "sha256": _hash(told, arrays)})
        with whole_file(path, named=True) as stream:
            stream.write(content)


def _hash(told: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(told.encode())
    for name in sorted(arrays):
        digest.update(name.encode() + arrays[name].tobytes())
    return digest.hexdigest()


def read_record(path: Path) -> CorpusRecord:
    """Return the record in a file; LoadError if it is damaged, UsageError if it is none."""
    from safetensors.numpy import load

    shown = visible(str(path))
    content = read_bytes(path, name=shown, most=ARRAY_BYTES)
    with damaged(shown, _ADVICE):
        told = content[8 : 8 + int.from_bytes(content[:8], "little")].decode()
        check_memory(told, shown, RESULT_BYTES)
        facts = json.loads(told)["__metadata__"]
        head, arrays = json.loads(facts["record"]), load(content)
        if head["schema"] != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        if facts["sha256"] != _hash(facts["record"], arrays):
            raise ValueError("its content does not fit its hash")
        kinds: dict[str, dict[str, Any]] = {kind: {} for kind in _JOINS}
        for name, values in arrays.items():
            kind, _, own = name.partition(".")
            if values.dtype != (np.float64 if kind == "best" else np.int64):
                raise ValueError(f"{name} holds {values.dtype}")
            kinds[kind][own] = values
        for name, expected in _HEAD.items():
            if not fits(head[name], expected):
                raise ValueError(f"its {name} is {head[name]!r:.40}")
        if not fits(empty := head["shown"].get("empty", 0), WHOLE):
            raise ValueError(f"its empty rows are {empty!r:.40}")
        parts = tuple(ShardPart(Shard(*shard), *rest) for shard, *rest in head["parts"])
        shards = {part.shard for part in parts}
        if len({shard.of for shard in shards}) != 1 or len(shards) < len(parts):
            raise ValueError("it names no shard, or one twice")
        for (number, of), blocks, count, _, whole, digest in parts:
            all_of = len(range(number, -(-whole // corpora.BLOCK), of))
            wrong = -(-count // corpora.BLOCK) != blocks or (digest and blocks != all_of)
            if number >= of or wrong:
                raise ValueError("its numbers of shards, blocks and texts do not go together")
        texts = {int(index): text for index, text in head["texts"].items()}
        tallies = Tallies(**kinds, texts=texts)
        return CorpusRecord(head["command"], head["run"], head["shown"], parts, tallies)


def merged(records: Sequence[CorpusRecord]) -> CorpusRecord:
    """Return the sum of all shards' records; raise UsageError if one is missing or unfinished."""
    if not records:
        raise UsageError("expected the records of all shards, got none")
    record = reduce(add, records)
    if record.missing:
        raise UsageError(f"{record.missing}; give the records of all shards")
    return record


def recorded(
    corpus: TextCorpus,
    shard: Shard,
    begun: CorpusRecord,
    measure: Callable[[TextBlock], Tallies],
    form: Form,
    file: Path | None = None,
    watch: Watch = UNWATCHED,
) -> CorpusRecord:
    """Measure the blocks of a shard, and return its record.

    begun: the record of no text yet, which has the command and the facts of the run.
    measure: returns the numbers of a block. file: where the record is kept from time to time and on
        Ctrl-C; if it is there, the run goes on where it ended.
    Raises UsageError for a file of another run or of other texts, LoadError for one that cannot be
    read or written. A finished file is returned as it is, once the corpus was read and compared.
    KeyboardInterrupt passes, after the file was written.
    """
    run, shown = (json.loads(json.dumps(facts)) for facts in (begun.run, begun.shown))
    record = replace(begun, run=run, shown=shown, parts=(ShardPart(shard),))
    name = visible(str(file))
    mend = "it is left as it is, name another file"
    other = UsageError(f"{name} is of other texts than {corpus.source}: {mend}")
    if file is not None:
        check_writable(file, named=True)
    if file is not None and file.exists():
        record = read_record(file)
        if record.command != begun.command or [part.shard for part in record.parts] != [shard]:
            raise UsageError(f"{name} is of {record.command}, {record}: {mend}")
        refuse_other_run(name, record.run, run, mend)
        record.check(form, name)
    reading, (part,) = Reading(corpus, shard), record.parts
    before, blocks, written = part.blocks, 0, time.monotonic()
    try:
        for blocks, block in enumerate(reading, start=1):
            unlike = part.digest if blocks > before else reading.digest != part.read
            if unlike and blocks >= before:
                raise other
            if blocks <= before:
                continue
            tallies = record.tallies + measure(block)
            texts = part.texts + len(block.lines)
            part = part._replace(blocks=blocks, texts=texts, read=reading.digest)
            record = replace(record, parts=(part,), tallies=tallies)
            watch(reading.share)
            watch.found(partial("{:,} texts are measured".format, texts))
            if file is not None and time.monotonic() - written > _SECONDS:
                record.save(file)
                written = time.monotonic()
    except BaseException:
        if file is not None and part.blocks > before:
            record.save(file)
        raise
    if blocks < before or part.digest not in ("", reading.digest):
        raise other
    if not part.digest:
        part = part._replace(whole=reading.texts, digest=reading.digest)
        shown = {**record.shown, **({"empty": reading.empty} if reading.empty else {})}
        record = replace(record, parts=(part,), shown=shown)
        if file is not None:
            record.save(file)
    return record
