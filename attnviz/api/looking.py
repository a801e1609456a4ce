"""The functions that show what heads attend to; each has the name of its command.

The order of arguments is the same everywhere: the model, the text or texts, then keywords.
``--index-base 1`` is ``index_base=1``. Errors name options as the command line does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from attnviz.api.opening import (
    given_prompt,
    in_own_modes,
    is_module,
    one_text,
    open_given,
    open_picture_texts,
    open_pictures,
    open_speech,
)
from attnviz.errors import UsageError
from attnviz.options import refuse_unknown, spelled_heads
from attnviz.texts import Texts, texts_of

__all__ = ["capture", "cut", "generate", "heads", "rollout"]

if TYPE_CHECKING:
    from attnviz.api.opening import AnyChat, AnyHeads, AnyModel, AnySpans
    from attnviz.engine.any_module import Module
    from attnviz.engine.generation import Step
    from attnviz.inspect.generate.report import GenerateReport
    from attnviz.inspect.heads.head_maps import HeadMaps, TokenLabels
    from attnviz.inspect.heads.report import HeadsReport, LongHeads
    from attnviz.inspect.picture.report import PictureReport
    from attnviz.inspect.picture_text.report import PictureTextReport
    from attnviz.inspect.rollout.report import RolloutReport
    from attnviz.inspect.speech.report import SpeechReport
    from attnviz.measures.registry import Sorting
    from attnviz.models.model import Model
    from attnviz.records import Kind


@in_own_modes
def capture(
    model: AnyModel | Module,
    text: Any = None,
    *inputs: Any,
    tokenizer: Any = None,
    tokens: TokenLabels | None = None,
    key_tokens: TokenLabels | None = None,
    batch: int = 0,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: Kind | None = None,
    target: str | None = None,
    truncate: bool = False,
    spans: AnySpans = None,
    no_known_labels: bool = False,
    vectors: bool = False,
    **named: Any,
) -> HeadMaps:
    """Return the attention weights of all heads of a model for a text, or of selected heads.

    model: a name that ``attnviz.load`` takes, the result of ``attnviz.load``, or a loaded
        transformers model, which is left exactly as it is. tokenizer: of a transformers model.
        Or any ``nn.Module`` that calls ``nn.MultiheadAttention``, ``scaled_dot_product_attention``
        or softmax(Q Kᵀ) V, with its own arguments in place of a text: ``capture(module, x)``,
        ``capture(module, src, tgt, tgt_mask=mask)``.
    layer, head: the heads to return, as ``--layer`` and ``--head`` take them (``"L2H5"``,
        ``"2.*"``, ``3``: of every layer, ``(2, 5)``); several in a list. All by default.
    kind: for an encoder–decoder, ``encoder`` (its default), ``decoder`` or ``cross``; ``mha`` takes
        ``cross``. target: the decoder's text, by default what the model writes itself; for ``mha``
        the text of the queries.
    truncate, no_known_labels: as the options of that name. spans: see ``heads``.
    vectors: also keep queries, keys and the norms of values, for the page: a second pass.
    tokens, key_tokens, batch, named: of an ``nn.Module``. tokens: one for each query; by default
        token ids, or indices. key_tokens: one for each key, by default ``tokens``. batch: the index
        of the text that is kept. named: the module's own keywords. ``layer`` may be the name of a
        module, such as ``"decoder.*"``; ``maps.layers`` has them all.

    The attention weights are those of the model's own eager attention; each row sums to one.
    Raises UsageError (also a ValueError) for a choice or text that does not fit the model,
    LoadError or OfflineError if it cannot be loaded, UnsupportedError if it cannot be observed.
    """
    from attnviz.engine.capture import Choice, asked, capture_text
    from attnviz.engine.known_labels import known_labels
    from attnviz.engine.text_pass import vectors_of
    from attnviz.inspect.heads.head_maps import HeadMaps
    from attnviz.inspect.heads.heads import heads_report
    from attnviz.models.work import Work, about_tokens
    from attnviz.options import RegionOptions
    from attnviz.regions import region_reader

    if is_module(model) and not isinstance(text, str) and (text is not None or named):
        from attnviz.inspect.heads.own_modules import ModuleChoice, module_maps

        refuse_unknown("capture", named, capture, model.forward)
        if tokenizer is not None or truncate or spans is not None or vectors:
            raise UsageError(
                "tokenizer, truncate, spans and vectors are for models that read texts"
            )
        given = () if text is None else (text, *inputs)
        named |= {} if target is None else {"target": target}  # the module's, if it has one
        asked_for = ModuleChoice(layer, head, kind, batch, tokens, key_tokens)
        return module_maps(model, given, named, asked_for).maps
    refuse_unknown("capture", named, capture)
    if inputs or tokens is not None or key_tokens is not None or batch:
        raise UsageError(
            "a model that reads a text takes one text, and makes its tokens itself: only an "
            "nn.Module takes tensors, as in attnviz.capture(module, x, tokens=words)"
        )
    read = one_text(text, 'attnviz.capture("tiny", "The cat sat.")')
    layers = None if layer is None else str(layer)
    choice = Choice(
        layers=layers,
        heads=spelled_heads(head),
        kind=kind,
        target=target,
        truncate=truncate,
        no_known_labels=no_known_labels,
    )
    reads: Any = model  # an nn.Module that reads no text is refused
    opened = open_given(reads, tokenizer, Work(about_tokens(read)))
    reader = region_reader(opened, read, RegionOptions.of({"spans": spans}))
    if reader is not None:
        choice = replace(choice, encode=reader.encode)
    record, selected = capture_text(opened, read, choice)
    known = known_labels(opened, record.kind, ignored=no_known_labels)
    kept = vectors_of(opened, asked(opened, read, choice)) if vectors else None
    return HeadMaps(
        heads_report(record, selected, text=read, target=target, known=known, vectors=kept)
    )


@in_own_modes
def heads(
    model: AnyModel,
    text: str | Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: str | None = None,
    target: str | None = None,
    truncate: bool = False,
    values: bool = False,
    top: int | None = None,
    token: str | None = None,
    pair: tuple[str, str] | None = None,
    sink: bool | None = None,
    norm_weighted: bool = False,
    ablate: AnyHeads = None,
    chat: AnyChat = None,
    spans: AnySpans = None,
    second: str | None = None,
    sort: Sorting | None = None,
    reverse: bool = False,
    compare_mask: bool = False,
    score: str | None = None,
    no_known_labels: bool = False,
    index_base: int = 0,
    queries: str | None = None,
    keys: str | None = None,
    reduce: Literal["auto", "fused", "full"] = "auto",
    vectors: bool = False,
    image: Any = None,
    processor: Any = None,
    at: tuple[int, int] | None = None,
    generate: int | None = None,
    audio: str | None = None,
    transcript: str | None = None,
) -> HeadsReport | LongHeads | PictureReport | PictureTextReport | SpeechReport:
    """Show where each head of a model attends in a text; ``capture`` gives only the weights.

    model, tokenizer, vectors: see ``capture``. text: one, or several, which stand side by side.
    kind, score: one, or several with commas to compare them; score and compare_mask need ``mha``.
    chat: a list of messages with role and content, or a file, in place of the text. spans: regions
        of the text by name, each (start, end) in tokens or words, or a file. second: a text that
        the tokenizer joins to the first, as ``--and`` does.
    image: a picture in place of the text, for a vision model: its path, a PIL image, or an array
        (height, width, 3); next to a text, for a vision-language model, one or a list of them.
        processor: of a loaded vision model. generate: how many tokens a vision-language model
        writes first. at: the pixel (x, y) of the picture
        from whose patch is looked; ``token`` names other queries, such as ``CLS`` or ``4,7``.
    audio: the path of a sound in place of the text, for a Whisper model. transcript: its words; by
        default the model writes them.
    The options are those of ``attnviz heads``. Over a long text the maps are pooled.
    Raises what ``capture`` raises, UnsupportedError if its attention cannot be observed.
    """
    from attnviz.inspect.heads import heads as question
    from attnviz.inspect.heads.request import HeadsRequest
    from attnviz.models.resolve import LoadOptions, refuse_ignored

    request = HeadsRequest.of(locals())
    given = () if text is None else ("text",)
    if image is not None and isinstance(text, str):
        from attnviz.inspect.picture_text.picture_text import picture_text
        from attnviz.inspect.picture_text.request import picture_text_request
        from attnviz.models.pictures import picture_prompt

        prompted, prompt = picture_text_request(request, generate), picture_prompt(text, image)
        return picture_text(open_picture_texts(model, processor), prompt, prompted)
    if generate is not None:
        raise UsageError("generate is for a text with images: give text and image")
    if image is not None:
        from attnviz.inspect.picture.picture import picture
        from attnviz.inspect.picture.request import picture_request
        from attnviz.models.pictures import read_picture

        looked = picture_request(request, given, at)
        pictured = open_pictures(model, processor)
        return picture(pictured, pictured.read(read_picture(image)), looked)
    if audio is not None:
        from attnviz.inspect.speech.request import speech_request
        from attnviz.inspect.speech.speech import speech

        hearing = open_speech(model, processor)
        if request.kind == "decoder" and text is None:
            hearing.hear(audio)
            asked = replace(request, target=transcript)
            return question.heads(hearing, audio, asked, lambda changes: hearing)
        return speech(hearing, hearing.hear(audio), speech_request(request, given, transcript))
    if transcript is not None:
        raise UsageError("transcript holds the words of the audio: add audio=")
    if processor is not None or at is not None:
        raise UsageError("processor and at are for images: add image=, or leave them out")
    read: str | Texts
    several = None if text is None or isinstance(text, str) else texts_of(text)
    if text is None or isinstance(text, str):
        read = given_prompt(request, text, 'attnviz.heads("tiny", "The cat sat.")')
    elif several is None or request.chat is not None:
        raise UsageError("chat gives the text: leave out text")
    else:
        read = several

    def opening(changes: dict[str, Any]) -> Model:
        if isinstance(model, str | os.PathLike):
            refuse_ignored(os.fspath(model), LoadOptions(**changes), request.changed)
        elif changes:
            raise UsageError("compare_mask and score draw several models: name mha as the model")
        return open_given(model, tokenizer, question.work(read, request), **changes)

    (first, _), *_ = question.requested_runs(request, of_texts=isinstance(read, Texts))
    return question.heads(opening(first), read, request, opening, vectors=vectors)


@in_own_modes
def cut(model: AnyModel, *arguments: Any, **options: Any) -> NoReturn:
    """Raise UsageError, which says to cut edges with ``attnviz.ablate`` and its ``edge``."""
    raise UsageError(
        'attnviz.cut is gone: call attnviz.ablate(model, text, edge="it→cat"), on the command line '
        'attnviz ablate TEXT --edge "it→cat"'
    )


@in_own_modes
def rollout(
    model: AnyModel,
    text: str | None = None,
    *,
    tokenizer: Any = None,
    chat: AnyChat = None,
    kind: Literal["self", "encoder", "decoder"] | None = None,
    target: str | None = None,
    truncate: bool = False,
    token: str | int | None = None,
    values: bool = False,
    sink: bool = False,
    reduce: Literal["auto", "fused", "full"] = "auto",
) -> RolloutReport:
    """Follow attention through all layers to the input (Abnar & Zuidema 2020), over one text.

    model, tokenizer: see ``capture``. chat: in place of the text, see ``heads``.
    kind: for an encoder–decoder, which self-attention is followed. token: a word of the text, or
        its index; by default the last word. values: print the shares in the cells. sink: keep the
        attention sink in the maps.
    Of a long text 16 rows are followed, see ``sampled`` of the report.
    The other options are those of ``attnviz rollout``; see ``RolloutRequest``.
    Raises what ``capture`` raises, UnsupportedError if its attention cannot be observed.
    """
    from attnviz.inspect.rollout import rollout as question
    from attnviz.inspect.rollout.request import RolloutRequest

    request = RolloutRequest.of(locals())
    read = given_prompt(request, text, 'attnviz.rollout("tiny", "The cat sat.")')
    opened = open_given(model, tokenizer, question.work(read, request))
    return question.rollout(opened, read, request)


@in_own_modes
def generate(
    model: AnyModel,
    prompt: str | None = None,
    *,
    tokenizer: Any = None,
    tokens: int = 40,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    ablate: AnyHeads = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: Literal["decoder", "cross"] | None = None,
    chat: AnyChat = None,
    spans: AnySpans = None,
    second: str | None = None,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
    on_step: Callable[[Step], None] = lambda step: None,
) -> GenerateReport:
    """Let a model continue a prompt, and show which tokens its heads attend to at each step.

    The report yields steps with ``text``, ``id``, ``probability``, ``likely``, ``entropy`` and
    ``rows``: by layer the attention weights (head, key) of the newest token.

    model, tokenizer: see ``capture``. chat, spans, second: see ``heads``; generated tokens are the
        region ``assistant``, or ``written``. on_step: is called with each step. Ctrl-C ends the
        text between two steps.
    The options are those of ``attnviz generate``; see ``GenerateRequest``.
    Raises what ``capture`` raises, UnsupportedError if the model does not predict the next token.
    """
    from attnviz.inspect.generate import generate as question
    from attnviz.inspect.generate.request import GenerateRequest
    from attnviz.progress import between_steps

    request = GenerateRequest.of(locals())
    opens = 'attnviz.generate("tiny", "The cat sat on the")'
    text = given_prompt(request, prompt, opens, "prompt")

    def reported(step: Step) -> Step:
        on_step(step)
        return step

    with between_steps() as asked:
        opened = open_given(model, tokenizer, question.work(text, request))
        job = question.WritingJob.prepare(opened, text, request, asked)
        report, early = replace(job, steps=map(reported, job.steps)).write(asked)
    if early is not None and (report is None or not isinstance(early, KeyboardInterrupt)):
        raise early
    assert report is not None
    return report
