"""From a request to a report: reads a prompt and lets the model write step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from attnviz.engine.capture import Asked, check_regions, encoded, require_maps
from attnviz.engine.generation import Step, begun, generate, written_context, written_kind
from attnviz.engine.head_run import Head
from attnviz.engine.known_labels import by_label, known_labels
from attnviz.engine.selection import choose_heads
from attnviz.engine.text_pass import TextReader
from attnviz.errors import UsageError
from attnviz.inspect.generate.report import TELLING, Ending, GenerateReport, WrittenRun, activities
from attnviz.inspect.generate.request import GenerateRequest
from attnviz.measures.labels import KnownLabels
from attnviz.measures.one_text import head_scores, notable_heads
from attnviz.models.model import Model
from attnviz.models.third_party import ErrorsAs
from attnviz.models.work import Work, about_tokens
from attnviz.records import AttentionRecord, Input
from attnviz.regions import region_reader

Advance = Callable[[float, Callable[[], WrittenRun]], None]
"""Called after each step with the share that is done and a function that returns the run."""


def work(text: str, request: GenerateRequest) -> Work:
    """Return the planned work for a prompt, from which the loader chooses NumPy or torch."""
    return Work(about_tokens(text) + request.tokens)


@dataclass(frozen=True, eq=False)
class WritingJob:
    """A generation that is ready to run.

    model: generates the text. steps: yields the generation steps. so_far: makes a ``WrittenRun``
        from some of them and the reason of its end. heads: the (layer, head) of the shown heads,
        the first one colours the text; chosen: whether the user chose them, or they are the most
        distinctive ones of the prompt.
    """

    model: Model
    steps: Iterator[Step]
    so_far: partial[WrittenRun]
    heads: tuple[Head, ...]
    chosen: bool

    @classmethod
    def prepare(
        cls,
        model: Model,
        text: str,
        request: GenerateRequest,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> WritingJob:
        """Tokenize the prompt, run the model on it, and return a generation that is ready to run.

        text: the prompt. request: the options of the command. cancelled: returns whether the user
            asked to stop.
        Raises UsageError if a head does not exist or the prompt fills the whole context,
        UnsupportedError if the model does not generate text.
        """
        sampling, info = request.sampling, model.info
        kind = written_kind(model, request.kind)

        def named(layers: str | None, typed: tuple[str, ...]) -> tuple[Head, ...]:
            named = by_label(model, kind, typed, request.index_base)
            chosen = choose_heads(layers, named, info.layers, info.heads, request.index_base) or {}
            return tuple((layer, head) for layer in chosen for head in sorted(chosen[layer]))

        reader = region_reader(model, text, request, answering=True)
        text = text if reader is None else reader.shown
        encode = None if reader is None else reader.encode
        tokens = encoded(model, text if reader is None else reader.text, None, encode)
        check_regions(kind, tokens)
        removed = named(None, request.ablate)
        steps = generate(model, tokens, sampling, kind=kind, removed=removed, cancelled=cancelled)
        start = begun(model, tokens, kind)
        given = Input(tokens, None if kind == "self" else start)
        every, keys = info.layers * info.heads, len(given.keys(kind))
        require_maps(every, len(given.queries(kind)), keys, "shorten the prompt")
        most = min(sampling.tokens, written_context(model, kind) or sampling.tokens)
        require_maps(every, most, keys + most, "write fewer --tokens")
        record = TextReader(model).read(Asked(given, kind, None), removed).record
        known = known_labels(model, kind, ignored=request.no_known_labels)
        chosen = named(request.layer, request.head)
        if not {(layer, head) for layer, head, _ in record}.issuperset(chosen):
            raise UsageError("none of the chosen layers has such a head: choose others")
        so_far = partial(
            WrittenRun,
            model=record.model,
            kind=kind,
            text=text,
            source=None if kind == "self" else tokens,
            begun=start,
            prompt=record.layers,
            sampling=sampling,
            removed=removed,
            index_base=request.index_base,
            known=known,
            region="assistant" if request.chat is not None else WrittenRun.region,
        )
        shown = chosen or (_distinctive(record, known),)
        return cls(model, steps, so_far, shown, bool(chosen))

    def write(
        self, asked: Callable[[], bool], advance: Advance = lambda share, run: None
    ) -> tuple[GenerateReport | None, BaseException | None]:
        """Generate the text to its end, or until the user asks to stop.

        asked: returns whether the user asked to stop. advance: is called with the share that is
            done, and a function that returns the run so far.
        Returns the report, None if no token was generated, and what ended the text early: the error
        of a step, or KeyboardInterrupt. It is returned, not raised, so that the tokens so far are
        not lost.
        """
        steps: list[Step] = []
        early: BaseException | None = None

        def run(ending: Ending = "tokens") -> WrittenRun:
            return self.so_far(steps=tuple(steps), ending=ending)

        def keep(error: Exception) -> None:
            nonlocal early
            early = error

        most = self.so_far.keywords["sampling"].tokens
        with ErrorsAs(keep):
            for step in self.steps:
                steps.append(step)
                advance(len(steps) / most, run)
        ending: Ending = "context" if early is None else "failed"
        if steps and (len(steps) == most or steps[-1].ended):
            ending = "end" if steps[-1].ended else "tokens"
        elif early is None and asked():
            ending, early = "interrupted", KeyboardInterrupt()
        if not steps:
            return None, early
        whole = run(ending)
        more = self.model.notes_for(whole.tokens)
        notes = (*whole.model.notes, *(note for note in more if note not in whole.model.notes))
        whole = replace(whole, model=replace(whole.model, notes=notes))
        heads = self.heads if self.chosen else (_copying(whole, self.heads[0]),)
        return GenerateReport(whole, activities(whole), heads, self.chosen), early


def _copying(run: WrittenRun, head: Head) -> Head:
    """Return ``head``; for an induction head the one that copies most, then the clearest one."""
    known = {} if run.known is None else run.known.heads
    same = [at for at in run.heads if at in known and known[at].name == "induction"]
    return max(same, key=lambda at: (run.copies[at], known[at].score)) if head in same else head


def _distinctive(record: AttentionRecord, known: KnownLabels | None) -> Head:
    """Return the most distinctive (layer, head) over the prompt, to be shown in full.

    It is chosen by its label if the text shows one, else by its attention weights. known: labels
    that were measured before.
    """
    scores = head_scores(record, known)
    named = {
        label.score: (layer, head)
        for layer, head, _, label in scores
        if label.is_finding and label.name in TELLING
    }
    return named[max(named)] if named else notable_heads(scores, 1)[0]
