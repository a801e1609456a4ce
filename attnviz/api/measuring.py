"""The functions that measure heads, and explain predictions; each has the name of its command."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnviz.api.opening import (
    given_corpus,
    given_prompt,
    in_own_modes,
    open_given,
    text_or_none,
)
from attnviz.errors import UsageError
from attnviz.models.threads import threads_kept
from attnviz.options import spelled_heads
from attnviz.texts import texts_of

__all__ = [
    *("align", "atlas", "head", "lens", "link", "merge", "patterns", "report", "retrieve", "why"),
]

if TYPE_CHECKING:
    from attnviz.api.opening import AnyChat, AnyCorpus, AnyFiles, AnyHeads, AnyModel
    from attnviz.draw.report import Report
    from attnviz.engine.observer import Reduce
    from attnviz.inspect.align.report import AlignReport
    from attnviz.inspect.atlas.report import AtlasReport
    from attnviz.inspect.head.report import HeadCard
    from attnviz.inspect.lens.report import LensReport
    from attnviz.inspect.link.report import LinkReport
    from attnviz.inspect.patterns.report import PatternReport
    from attnviz.inspect.report.report import ModelReport
    from attnviz.inspect.retrieve.report import RetrieveReport
    from attnviz.inspect.why.report import WhyReport
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
        question.refuse_for_corpus(request)
        corpus, share, file = given_corpus(texts, column, shard, resume)
        opened = open_given(model, tokenizer, question.work(corpus, request))
        return question.patterns_over(opened, corpus, request, share, file)
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
        sounds = tuple(os.fspath(path) for path in given)
        table, gold = (None if path is None else Path(path) for path in (words, pairs))
        options = AlignOptions(audio=sounds, words=table, pairs=gold, prefix=prefix)
        studied = options.read(recipe)
    elif given or words is not None or recipe is not None:
        raise UsageError("pairs are texts: leave out audio, words and recipe")
    else:
        studied = read_gold(pairs, prefix)
    opened = open_speech(model, processor) if pairs is None else open_given(model, tokenizer)
    return question(opened, studied, request)


@in_own_modes
def lens(
    model: AnyModel,
    text: str | None = None,
    *,
    tokenizer: Any = None,
    chat: AnyChat = None,
    answer: str | None = None,
    position: str | int | None = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: Literal["decoder", "cross"] | None = None,
    target: str | None = None,
    second: str | None = None,
    truncate: bool = False,
    no_known_labels: bool = False,
    index_base: int = 0,
) -> LensReport:
    """Measure what a model would predict after each block, and what each head writes there.

    model, tokenizer: see ``capture``. text: one prompt. chat: a chat in its place, see ``heads``.
    answer: the token that is followed, by default the model's top prediction. position: where it is
        predicted, a word or an index; by default the last. layer, head: the heads that are listed.
    second: a text that is joined to the prompt, for models that compare two.
    The other options are those of ``attnviz lens``; see ``LensRequest``.
    Raises what ``capture`` raises, UnsupportedError if its blocks do not add to one residual
    stream.
    """
    from attnviz.inspect.lens import lens as question
    from attnviz.inspect.lens.request import LensRequest

    request = LensRequest.of(locals())
    read = given_prompt(request, text, 'attnviz.lens("tiny", "The cat sat.")')
    opened = open_given(model, tokenizer, question.work(read, request))
    return question.lens(opened, read, request)


@in_own_modes
def link(
    model: AnyModel,
    prompts: str | Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    chat: AnyChat = None,
    head: str | int | tuple[int, int] | None = None,
    query: str | int | None = None,
    key: str | int | None = None,
    than: str | int | None = None,
    controls: int | None = None,
    kind: Kind | None = None,
    target: str | None = None,
    truncate: bool = False,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> LinkReport:
    """Split a head's attention to one key exactly, by the parts that wrote the query and the key.

    model, tokenizer: see ``capture``. prompts: one, or several for means with intervals. chat: a
        chat in their place, see ``heads``.
    head: such as ``"L1H2"`` or ``(1, 2)``. query, key, than: the token that attends, the one that
        is attended to, and a key to compare it with, each a word or an index. controls: the number
        of changed prompts, with other words around query and key.
    The other options are those of ``attnviz link``; see ``LinkRequest``, which has the defaults.
    Raises what ``capture`` raises, UnsupportedError if the parts do not give its own weights.
    """
    given = locals() | {"head": None if head is None else spelled_heads(head)[0]}
    from attnviz.inspect.link import link as question
    from attnviz.inspect.link.request import LinkRequest
    from attnviz.prompts.study import read_prompts

    request = LinkRequest.of(given)
    read, source = read_prompts("link", request, texts=texts_of(prompts))
    opened = open_given(model, tokenizer, question.work(read, request))
    report = question.link(opened, read, request, source=source)
    report.require_tally()
    return report


@in_own_modes
def why(
    model: AnyModel,
    prompts: str | Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    chat: AnyChat = None,
    answer: str | None = None,
    foil: str | None = None,
    position: str | int | None = None,
    controls: int | None = None,
    inputs: bool = False,
    draws: int = 20,
    ffn: str | None = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: Literal["decoder", "cross"] | None = None,
    target: str | None = None,
    second: str | None = None,
    truncate: bool = False,
    top: int = 8,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> WhyReport:
    """Split the predicted token's logit exactly into what each head adds to it.

    model, tokenizer: see ``capture``. prompts: one, or several for means with intervals. chat: a
        chat in their place, see ``heads``.
    answer: the token whose logit is explained, by default the model's top prediction. foil: explain
        logit(answer) − logit(foil) instead. position: where it is predicted, a word or an index; by
        default the last. controls: the number of changed prompts, with another token wherever the
        answer occurs.
    inputs: also measure what the prediction loses with ``draws`` other words in the place of each
        word, and with each word hidden; see ``InputEffects``. ffn: a layer, ``"L2"``, whose
        feed-forward block is split into its neurons; see ``NeuronReading``.
    layer, head: the heads whose maps are in the report.
    second: a text that is joined to the prompt, for models that compare two.
    The other options are those of ``attnviz why``; see ``WhyRequest``.
    Raises what ``capture`` raises, UnsupportedError if the parts do not sum to its logit.
    """
    from attnviz.inspect.why import why as question
    from attnviz.inspect.why.request import WhyRequest
    from attnviz.prompts.study import read_prompts

    request = WhyRequest.of(locals())
    read, source = read_prompts("why", request, texts=texts_of(prompts))
    opened = open_given(model, tokenizer, question.work(read, request))
    report = question.why(opened, read, request, source=source)
    report.require_tally()
    return report
