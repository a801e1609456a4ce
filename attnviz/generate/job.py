"""One run of ``attnviz generate``: what is asked of a model, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attnviz.cli import options as shared
from attnviz.engine.capture import Asked, encoded, require_maps
from attnviz.engine.generation import Sampling, Step, begun, generate, written_kind
from attnviz.engine.head_run import Head
from attnviz.engine.known_labels import known_labels
from attnviz.engine.selection import choose_heads
from attnviz.engine.text_pass import TextReader
from attnviz.errors import UsageError
from attnviz.generate.document import Shown
from attnviz.generate.records import TELLING, Ending, Run, looked
from attnviz.measures.labels import KnownLabels
from attnviz.measures.one_text import head_scores, notable_heads
from attnviz.models.model import Model
from attnviz.records import AttentionRecord, Input, Kind, LayerWeights, Tokens

Advance = Callable[[float, Callable[[], Run]], None]
"""Told after each step of the share that is done, and what gives the run so far."""


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be written.

    tokens: of the prompt, which an encoder reads. begun: what writing begins with. prompt: the
    weights over it. heads: those that are shown, the first one in the text; chosen: whether a
    person chose them, or they are the most distinctive ones of the prompt.
    """

    model: Model
    text: str
    kind: Kind
    tokens: Tokens
    begun: Tokens
    prompt: AttentionRecord
    known: KnownLabels | None
    heads: tuple[Head, ...]
    chosen: bool
    removed: tuple[Head, ...]
    sampling: Sampling
    index_base: int
    steps: Iterator[Step]

    @classmethod
    def prepare(
        cls,
        model: Model,
        text: str,
        sampling: Sampling,
        kind: Kind | None,
        heads: shared.HeadChoice,
        ablate: tuple[str, ...],
        index_base: int,
        cancelled: Callable[[], bool],
    ) -> Job:
        """Read the prompt.

        Raises UsageError for heads that are not there and a prompt that leaves no room,
        UnsupportedError for a model that does not write.
        """
        info, kind = model.info, written_kind(model, kind)
        tokens = encoded(model, text, False)
        removed = _heads(choose_heads(None, ablate, info.layers, info.heads, index_base))
        steps = generate(model, tokens, sampling, kind=kind, removed=removed, cancelled=cancelled)
        start = begun(model, tokens, kind)
        given = Input(tokens, None if kind == "self" else start)
        every = info.layers * info.heads
        require_maps(every, len(given.queries(kind)), len(given.keys(kind)), "shorten the prompt")
        record = TextReader(model).read(Asked(given, kind, None), removed).record
        known = known_labels(model, kind)
        shown = _heads(choose_heads(heads.layer, heads.head, info.layers, info.heads, index_base))
        there = {(layer, head) for layer, head, _ in record}
        if not there.issuperset(shown):
            raise UsageError("none of the chosen layers has such a head: choose others")
        return cls(
            model=model,
            text=text,
            kind=kind,
            tokens=tokens,
            begun=start,
            prompt=record,
            known=known,
            heads=shown or (_distinctive(record, known),),
            chosen=bool(shown),
            removed=removed,
            sampling=sampling,
            index_base=index_base,
            steps=steps,
        )

    def write(self, asked: Callable[[], bool], advance: Advance) -> Shown | None:
        """Let the model write to its end, or until ``asked``; None where nothing was written."""
        steps: list[Step] = []
        for step in self.steps:
            steps.append(step)
            advance(len(steps) / self.sampling.tokens, lambda: self.run(steps, "tokens"))
        if not steps:
            return None
        ending: Ending = "context"
        if steps[-1].ended:
            ending = "end"
        elif len(steps) == self.sampling.tokens:
            ending = "tokens"
        elif asked():
            ending = "interrupted"
        run = self.run(steps, ending)
        return Shown(run, looked(run, self.known), self.heads, self.chosen)

    def run(self, steps: list[Step], ending: Ending) -> Run:
        """What was written so far."""
        layers: tuple[LayerWeights, ...] = self.prompt.layers
        return Run(
            model=self.prompt.model,
            kind=self.kind,
            text=self.text,
            source=None if self.kind == "self" else self.tokens,
            begun=self.begun,
            prompt=layers,
            sampling=self.sampling,
            removed=self.removed,
            steps=tuple(steps),
            ending=ending,
            index_base=self.index_base,
        )


def _distinctive(record: AttentionRecord, known: KnownLabels | None) -> Head:
    """The head that says most: by its label if the text can show one, else by its weights."""
    scores = head_scores(record, known)
    named = {
        label.measured if known else label.score: (layer, head)
        for layer, head, _, label in scores
        if label.is_finding and label.name in TELLING
    }
    return named[max(named)] if named else notable_heads(scores, 1)[0]


def _heads(chosen: dict[int, frozenset[int]] | None) -> tuple[Head, ...]:
    """As (layer, head)."""
    return tuple((layer, head) for layer, some in (chosen or {}).items() for head in sorted(some))
