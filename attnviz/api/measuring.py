"""The functions that measure heads over many texts; each has the name of its command."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnviz.api.opening import given_corpus, in_own_modes, open_given, text_or_none
from attnviz.errors import UsageError
from attnviz.models.threads import threads_kept
from attnviz.options import spelled_heads
from attnviz.texts import texts_of

__all__ = ["align", "atlas", "head", "merge", "patterns", "report", "retrieve"]

if TYPE_CHECKING:
    from attnviz.api.opening import AnyCorpus, AnyFiles, AnyHeads, AnyModel
    from attnviz.draw.report import Report
    from attnviz.engine.observer import Reduce
    from attnviz.inspect.align.report import AlignReport
    from attnviz.inspect.atlas.report import AtlasReport
    from attnviz.inspect.head.report import HeadCard
    from attnviz.inspect.patterns.report import PatternReport
    from attnviz.inspect.report.report import ModelReport
    from attnviz.inspect.retrieve.report import RetrieveReport
    from attnviz.mergeable import CorpusRecord
    from attnviz.records import Kind


@in_own_modes
def patterns(
    model: AnyModel = "tiny",
    text: str | None = None,
    *,
    tokenizer: Any = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: Kind | None = None,
    target: str | None = None,
    truncate: bool = False,
    probe: AnyFiles = (),
    without_first: bool = False,
    norm_weighted: bool = False,
    control: Literal["random-weights"] | None = None,
    watch: str | None = None,
    top: int | None = None,
    reduce: Reduce = "auto",
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
    texts: AnyCorpus = None,
    shard: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    column: str | None = None,
) -> PatternReport:
    """Score each head's attention by every measure, with its chance level, and label the head.

    model, tokenizer, layer, head: see ``capture``. text: is scored instead of the built-in probes.
    texts: a corpus is scored instead: several texts, a file, or the name of a hub's data set.
    shard: ``K/N``, the share of it that is measured; the ``record`` of the report adds up with
        those of the other shards, see ``merge``. resume: the file that keeps the record.
    probe: files of annotated sentences. without_first, norm_weighted: score the attention weights
        without the first token, or times the norm of each key's value.
    The other options are those of ``attnviz patterns``; see ``PatternsRequest``.

    Raises what ``capture`` raises, UnsupportedError if its attention cannot be observed.
    """
    from attnviz.inspect.patterns import patterns as question
    from attnviz.inspect.patterns.request import PatternsRequest

    request = PatternsRequest.of(locals())
    if texts is not None:
        if text is not None:
            raise UsageError("expected one source of texts: give text or texts, not both")
        from attnviz.inspect.patterns.corpus import patterns_over, refuse_for_corpus

        refuse_for_corpus(request)
        corpus, share, file = given_corpus(texts, column, shard, resume)
        opened = open_given(model, tokenizer, question.work(corpus, request))
        return patterns_over(opened, corpus, request, share, file)
    read = text_or_none(text)
    sentences = question.read_sentences(request, read)
    opened = open_given(model, tokenizer, question.work(read, request, sentences))
    return question.patterns(opened, read, request, sentences=sentences)


@in_own_modes
def retrieve(
    model: AnyModel = "tiny",
    *,
    tokenizer: Any = None,
    needle: str | Sequence[str] = (),
    haystack: str | os.PathLike[str] | None = None,
    chat: bool = False,
    lengths: str | None = None,
    haystacks: int = 5,
    top: int = 8,
    index_base: int = 0,
    seed: int = 0,
    texts: AnyCorpus = None,
    shard: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    column: str | None = None,
) -> RetrieveReport:
    """Find the heads that fetch a fact from a long text, and measure the loss without them.

    model, tokenizer: see ``capture``. needle: facts, ``"CUE|ANSWER"``; built-in ones by default.
    texts: a corpus, whose texts are the haystacks. shard, resume: see ``patterns``.
    The other options are those of ``attnviz retrieve``; see ``RetrieveRequest``.

    Raises UsageError (also a ValueError) for needles and lengths that do not fit, LoadError for a
    file that cannot be read, UnsupportedError for a model that does not predict the next token.
    """
    from attnviz.inspect.retrieve import retrieve as question
    from attnviz.inspect.retrieve.haystacks import read_sentences
    from attnviz.inspect.retrieve.request import RetrieveRequest

    request = RetrieveRequest.of(locals())
    if texts is not None:
        from attnviz.inspect.retrieve.corpus import refuse_for_corpus, retrieve_over

        refuse_for_corpus(request)
        corpus, share, file = given_corpus(texts, column, shard, resume)
        opened = open_given(model, tokenizer, question.work(corpus, request))
        return retrieve_over(opened, corpus, request, share, file)
    sentences = read_sentences(request.haystack)
    opened = open_given(model, tokenizer, question.work(None, request))
    return question.retrieve(opened, sentences, request)


@in_own_modes
def head(
    model: AnyModel,
    head: str | int | tuple[int, int],
    text: str | None = None,
    texts: str | Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    kind: Kind | None = None,
    target: str | None = None,
    truncate: bool = False,
    top: int = 5,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> HeadCard:
    """Measure everything that attnviz can on one head; the result's ``save("card.svg")`` draws it.

    model, tokenizer: see ``capture``. head: such as ``"L1H2"`` or ``(1, 2)``.
    text: for its map and the prediction, by default a short one. texts: one or several, over
        which the head is ablated; by default the built-in ones.
    The options are those of ``attnviz head``; see ``HeadRequest``.

    Raises what ``capture`` raises, UnsupportedError if its attention cannot be observed.
    """
    given = locals() | {"head": spelled_heads(head)[0]}
    from attnviz.inspect.head import head as question
    from attnviz.inspect.head.request import HeadRequest
    from attnviz.texts import built_in_texts

    request, read = HeadRequest.of(given), text_or_none(text)
    many = texts_of(texts) or built_in_texts()
    opened = open_given(model, tokenizer, question.work(many, request))
    return question.head(opened, read, many, request)


@in_own_modes
def report(
    model: AnyModel = "tiny",
    texts: str | Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    kind: Kind | None = None,
    text: str | None = None,
    truncate: bool = False,
    budget: str | None = None,
    cards: int = 5,
    top: int = 5,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> ModelReport:
    """Return the description of a model: its heads, what they do, which matter.

    The report's ``save("report.html")`` writes it as a page.

    model, tokenizer: see ``capture``. texts: see ``head``. text: for the maps of the described
        heads.
    budget: the most time or heads of the ablation, such as ``"5m"`` or ``"50"``; None for all.
    The options are those of ``attnviz report``; see ``ReportRequest``.

    Raises what ``capture`` raises, UnsupportedError if its attention cannot be observed.
    """
    from attnviz.inspect.report import report as question
    from attnviz.inspect.report.request import ReportRequest
    from attnviz.texts import built_in_texts

    request, read = ReportRequest.of(locals()), text_or_none(text)
    many = texts_of(texts) or built_in_texts()
    opened = open_given(model, tokenizer, question.work(many, request))
    return question.report(opened, read, many, request)


@in_own_modes
def atlas(
    model: AnyModel = "tiny",
    texts: AnyCorpus = None,
    *,
    tokenizer: Any = None,
    kind: Kind | None = None,
    truncate: bool = False,
    top: int = 10,
    out: str | os.PathLike[str] | None = None,
    shard: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    column: str | None = None,
    index_base: int = 0,
) -> AtlasReport:
    """Measure at which tokens each head attends most over many texts, next to its usual weight.

    model, tokenizer: see ``capture``. texts: several, a file, or the name of a hub's data set; by
        default the built-in ones. kind: of an encoder–decoder: its decoder reads the text too, and
        for ``"cross"`` what the model itself writes. out: also write the atlas as a new directory.
    shard, resume: see ``patterns``. The other options are those of ``attnviz atlas``; see
        ``AtlasRequest``.

    Raises what ``capture`` raises, UnsupportedError if its attention cannot be observed.
    """
    from attnviz.inspect.atlas import atlas as question
    from attnviz.inspect.atlas.request import AtlasRequest
    from attnviz.texts import built_in_texts

    request = AtlasRequest.of(locals())
    many = built_in_texts() if texts is None else texts
    corpus, share, file = given_corpus(many, column, shard, resume)
    opened = open_given(model, tokenizer, question.work(corpus, request))
    atlas = question.atlas(opened, corpus, request, share, file)
    if request.out is not None:
        atlas.write(request.out, opened)
    return atlas


@threads_kept()
def merge(parts: Iterable[CorpusRecord | str | os.PathLike[str]]) -> Report:
    """Return the report of a whole corpus from the records of all its shards, or from their files.

    parts: each the ``record`` of a report of ``shard="K/N"``, or the file of its ``resume``, in
        any order; records also add up with ``+``.
    Raises UsageError (also a ValueError) if a shard is missing, not finished or of another run,
    LoadError for a file that cannot be read.
    """
    from attnviz.inspect import merge as question

    return question.merge(parts)


@in_own_modes
def align(
    model: AnyModel,
    audio: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    words: str | os.PathLike[str] | None = None,
    *,
    pairs: str | os.PathLike[str] | Iterable[Mapping[str, str]] | None = None,
    prefix: str = "",
    processor: Any = None,
    tokenizer: Any = None,
    most: int = 10,
    recipe: Literal["openai", "transformers"] | None = None,
    seed: int = 0,
    index_base: int = 0,
) -> AlignReport:
    """Find the cross-attention heads that align words, on held-out clips or sentence pairs.

    model: a name or path, or a loaded transformers model with its ``processor`` (Whisper) or
        ``tokenizer`` (a translation model). audio: files and directories of sounds. words: a table
        of clip, word, start and end in seconds. pairs: a file of sentence pairs with gold links, or
        mappings with source, target and alignment, such as ``0-0 1?2``.
    The options are those of ``attnviz align``. ``report.alignment_heads`` is the list that
    ``generation_config`` takes.

    Raises what ``capture`` raises, UnsupportedError for another kind of model.
    """
    from attnviz.api.opening import open_speech
    from attnviz.inspect.align.align import align as question
    from attnviz.inspect.align.request import AlignOptions, AlignRequest
    from attnviz.inspect.align.study import read_gold

    request = AlignRequest.of(locals())
    given = [audio] if isinstance(audio, str | os.PathLike) else audio
    if pairs is None or isinstance(pairs, str | os.PathLike):
        sounds = tuple(os.fspath(each) for each in given)
        table, gold = (None if path is None else Path(path) for path in (words, pairs))
        options = AlignOptions(audio=sounds, words=table, pairs=gold, prefix=prefix)
        studied = options.read(recipe)
    elif given or words is not None or recipe is not None:
        raise UsageError("pairs are texts: leave out audio, words and recipe")
    else:
        studied = read_gold(pairs, prefix)
    opened = open_speech(model, processor) if pairs is None else open_given(model, tokenizer)
    return question(opened, studied, request)
