"""The functions that change a model or compare two models; each has the name of its command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnviz.api.opening import (
    given_corpus,
    has_tensor,
    in_own_modes,
    is_module,
    named_or_loaded,
    open_given,
    open_picture_texts,
    read_pictures,
    refuse_beside_pictures,
    text_or_none,
)
from attnviz.errors import UsageError
from attnviz.options import refuse_unknown, spelled_head
from attnviz.texts import built_in_texts, read_texts, texts_of

__all__ = ["ablate", "check", "diff", "patch", "path", "prune"]

if TYPE_CHECKING:
    from attnviz.api.opening import AnyChat, AnyHeads, AnyModel, AnyPairs
    from attnviz.engine.any_module import Module
    from attnviz.engine.effects import Method, Metric, Mode, Positions, Unit
    from attnviz.engine.patching import Direction, Into, PatchMetric, What
    from attnviz.inspect.check.report import CheckReport
    from attnviz.inspect.diff.report import DiffReport
    from attnviz.inspect.heads.head_maps import TokenLabels
    from attnviz.inspect.interventions.ablate.report import AblationReport
    from attnviz.inspect.interventions.patch.report import PatchReport
    from attnviz.inspect.interventions.patch.request import Asked, At
    from attnviz.inspect.interventions.path.report import PathReport
    from attnviz.inspect.prune.report import PruneReport
    from attnviz.inspect.prune.request import Importance
    from attnviz.records import Kind


@in_own_modes
def ablate(
    model: AnyModel | Module = "tiny",
    texts: Any = None,
    *inputs: Any,
    loss: Callable[[Any], Any] | None = None,
    tokenizer: Any = None,
    tokens: TokenLabels | None = None,
    key_tokens: TokenLabels | None = None,
    chat: AnyChat = None,
    head: AnyHeads = None,
    layer: str | int | None = None,
    image: Any = None,
    processor: Any = None,
    edge: str | None = None,
    together: bool = False,
    unit: Unit = "head",
    mode: Mode = "zero",
    reference: str | Iterable[str] | None = None,
    draws: int | None = None,
    metric: Metric | None = None,
    answer: str | None = None,
    foil: str | None = None,
    positions: Positions = "all",
    method: Method | None = None,
    budget: str | None = None,
    max_memory: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    by_token: bool = False,
    top: int = 8,
    kind: Kind | None = None,
    target: str | None = None,
    second: str | None = None,
    truncate: bool = False,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
    shard: str | None = None,
    column: str | None = None,
    **named: Any,
) -> AblationReport:
    """Ablate each head and measure exactly how much the loss rises, over one text or many.

    model, tokenizer: see ``capture``. texts: one or several; the built-in ones by default. chat: a
        chat in place of them, see ``heads``. For an ``nn.Module`` its own arguments, ``tokens``,
        ``key_tokens``, ``named`` as in ``capture``, and ``loss``: a function of the module's output
        that returns a number, or one for each text, which gives intervals.
    shard: ``K/N``, the share of a corpus that is measured; ``texts`` may then be a path, and the
        ``record`` of the report adds up with those of the other shards, see ``merge``.
    layer, head: the heads to ablate, see ``capture``; all by default. together: all at once.
    edge: an edge such as ``"it→cat"`` between two words of the text, or several with commas, whose
        attention is hidden in these heads; the heads themselves stay.
    image: pictures in place of texts, or that one text is about; ``"it→picture"`` is then an edge,
        too. processor: of a loaded model, see ``heads``.
    mode: what replaces a head's output: ``zero``, ``mean`` or ``resample`` (the output
        for another text), the last two from the texts in ``reference``.
    metric: the effect by which heads are ranked; the rise of the loss by default.
    second: a text that is joined to the one text, for models that compare two.
    The other options are those of ``attnviz ablate``: see ``AblateRequest``.
    Raises what ``capture`` raises, UnsupportedError if the heads cannot be ablated.
    """
    from attnviz.inspect.interventions.ablate import ablate as question
    from attnviz.inspect.interventions.ablate.request import AblateRequest
    from attnviz.regions import chat_or_text

    request = AblateRequest.of(locals())
    own = loss is not None or has_tensor((texts, image, *inputs))
    own = own or (bool(named) and not isinstance(texts, str))
    if is_module(model) and own:
        from attnviz.inspect.heads.own_modules import ModuleChoice
        from attnviz.inspect.interventions.ablate.own_modules import ablate_module

        refuse_unknown("ablate", named, ablate, model.forward)
        given = () if texts is None else (texts, *inputs)
        theirs = {"target": target, "image": image, "processor": processor}  # if it has them
        named |= {name: value for name, value in theirs.items() if value is not None}
        request = replace(request, target=None)
        choice = ModuleChoice(
            layer, head, kind, tokens=tokens, key_tokens=key_tokens, index_base=index_base
        )
        return ablate_module(model, given, named, loss, choice, request)
    refuse_unknown("ablate", named, ablate)
    if inputs or loss is not None or tokens is not None or key_tokens is not None:
        raise UsageError("loss and tokens are for an nn.Module with its own inputs")
    reads: Any = model  # an nn.Module that reads no text is refused
    if image is not None:
        refuse_beside_pictures(tokenizer=tokenizer, chat=chat, column=column, shard=shard)
        about, _, opening = read_pictures(texts, image)
        return question.ablate(opening(reads, processor), about, request)
    if shard is not None:
        from attnviz.inspect.interventions.ablate.corpus import ablate_over, refuse_for_corpus

        refuse_for_corpus(request)
        many = [texts] if isinstance(texts, str) else texts
        corpus, share, file = given_corpus(many, column, shard, request.resume)
        opened = open_given(reads, tokenizer, question.work(corpus, request))
        return ablate_over(opened, corpus, request, share, file)
    read = read_texts(chat_or_text(request, None, None), None, texts_of(texts))
    opened = open_given(reads, tokenizer, question.work(read, request))
    return question.ablate(opened, read, request)


@in_own_modes
def prune(
    model: AnyModel = "tiny",
    texts: str | Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    fraction: float | None = None,
    heads: AnyHeads = None,
    until_loss: float | None = None,
    uniform: bool = False,
    empty_layers: bool = False,
    out: str | os.PathLike[str] | None = None,
    method: Importance = "exact",
    rerank: bool = False,
    draws: int = 5,
    max_memory: str | None = None,
    truncate: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> PruneReport:
    """Remove the least important heads for good; compare the loss with that of random removals.

    model, tokenizer: see ``capture``. texts: one or several; the built-in ones by default.
    fraction: the share of heads to remove. heads: these heads instead. until_loss: remove while the
        held-out loss is below this multiple of the whole model's. out: the new directory for the
        pruned model; None to write nothing.
    The other options are those of ``attnviz prune``; see ``PruneRequest``.
    Raises what ``capture`` raises, UnsupportedError if the heads cannot be removed for good.
    """
    from attnviz.inspect.prune import prune as question
    from attnviz.inspect.prune.request import PruneRequest

    request = PruneRequest.of(locals())
    read = texts_of(texts) or built_in_texts()
    return question.prune(open_given(model, tokenizer), read, request)


@in_own_modes
def patch(
    model: AnyModel = "tiny",
    clean: str | None = None,
    corrupt: str | None = None,
    *,
    pairs: AnyPairs = None,
    image: Any = None,
    tokenizer: Any = None,
    processor: Any = None,
    chat: bool = False,
    second: str | None = None,
    align: Literal["start", "end"] | None = None,
    what: What = "output",
    direction: Direction = "denoise",
    at: At | None = None,
    by_token: bool = False,
    together: AnyHeads = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    metric: PatchMetric = "logit_diff",
    answer: str | None = None,
    foil: str | None = None,
    method: Asked = "exact",
    fdr: bool = False,
    max_memory: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    kind: Kind | None = None,
    target: str | None = None,
    top: int = 8,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> PatchReport:
    """Patch activations between two prompts; measure which heads cause the different predictions.

    model, tokenizer: see ``capture``. clean, corrupt: the prompts. pairs: many of them instead, a
        file or mappings with ``clean``, ``corrupt`` and, if wanted, ``answer``, ``foil`` and
        ``and``; the built-in ones by default. chat: read each prompt through the model's chat
        template, as a user's message or a chat of its own. second: a text that is joined to both
        prompts, for models that compare two. image: two pictures for the prompt ``clean``, between
        which is patched. processor: of a loaded model, see ``heads``.
    The options are those of ``attnviz patch``; see ``PatchRequest``.
    Raises what ``capture`` raises, UnsupportedError if the model cannot be patched.
    """
    from attnviz.inspect.interventions.patch import patch as question
    from attnviz.inspect.interventions.patch.request import PatchRequest
    from attnviz.prompts.request import picture_pair, read_pairs

    request = PatchRequest.of(locals())
    typed = text_or_none(clean), text_or_none(corrupt)
    if image is not None:
        refuse_beside_pictures(tokenizer=tokenizer, chat=chat, pairs=pairs, second=second)
        given = picture_pair(*typed, image)
        return question.patch(open_picture_texts(model, processor), given, request)
    read = read_pairs(*typed, request.pairs, request.second, chat=chat)
    opened = open_given(model, tokenizer, question.work(read, request))
    return question.patch(opened, read, request)


@in_own_modes
def path(
    model: AnyModel,
    sender: str | tuple[int, int],
    clean: str | None = None,
    corrupt: str | None = None,
    *,
    pairs: AnyPairs = None,
    tokenizer: Any = None,
    chat: bool = False,
    into: Into | None = None,
    top: int = 8,
    index_base: int = 0,
    seed: int = 0,
) -> PathReport:
    """Follow one head: measure which later heads its output acts through, over pairs of prompts.

    model, tokenizer: see ``capture``. sender: the head, such as ``"L0H0"``.
    clean, corrupt, pairs: see ``patch``. The other options are those of ``attnviz path``.
    Raises UsageError (also a ValueError) if ``sender`` is not one head or is in the last layer, and
    what ``patch`` raises.
    """
    from attnviz.inspect.interventions.path import path as question
    from attnviz.inspect.interventions.path.request import PathRequest
    from attnviz.prompts.request import read_pairs

    request = PathRequest.of(locals() | {"sender": spelled_head(sender)})
    read = read_pairs(text_or_none(clean), text_or_none(corrupt), request.pairs, chat=chat)
    opened = open_given(model, tokenizer, question.work(read, request))
    return question.path(opened, read, request)


@in_own_modes
def diff(
    a: AnyModel = "tiny",
    b: AnyModel | None = None,
    texts: str | Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    texts_b: str | Iterable[str] | None = None,
    image: Any = None,
    processor: Any = None,
    device: str = "cpu",
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = "auto",
    backend: Literal["auto", "numpy", "torch"] = "auto",
    revision: str | None = None,
    dtype_b: Literal["auto", "float32", "float16", "bfloat16", "float64"] | None = None,
    backend_b: Literal["auto", "numpy", "torch"] | None = None,
    revision_b: str | None = None,
    kind: Kind | None = None,
    match: bool = False,
    noise_floor: float | None = None,
    truncate: bool = False,
    reduce: Literal["auto", "fused", "full"] = "auto",
    top: int = 8,
    index_base: int = 0,
    seed: int = 0,
) -> DiffReport:
    """Compare two models, or one under two conditions, head by head, beyond a noise floor.

    a, b: models, see ``capture``, or results saved as JSON; b is the same as a by default.
    texts: one or several; by default the built-in ones. texts_b: those of b, by default ``texts``.
    image: a picture or a list of them in place of texts, or that one text is about, see ``heads``.
    tokenizer, processor: for loaded models. device, dtype, backend, revision: for models given by
        name; a saved result is compared as it is. dtype_b, backend_b, revision_b: for b.
    The other options are those of ``attnviz diff``; see ``DiffRequest``.
    Raises what ``capture`` raises, UnsupportedError if the attention cannot be observed.
    """
    from attnviz.inspect.diff import diff as question
    from attnviz.inspect.diff.compare import both_sides
    from attnviz.inspect.diff.request import DiffRequest
    from attnviz.models.resolve import LoadOptions

    request = DiffRequest.of(locals())
    options = LoadOptions(device=device, dtype=dtype, backend=backend, revision=revision, seed=seed)
    both = [a, a if b is None else b]
    if image is not None:
        refuse_beside_pictures(tokenizer=tokenizer, texts_b=texts_b)
        about, work, opening = read_pictures(texts, image)
        first, second = named_or_loaded(both, processor, opening)
        sides = both_sides(request, first, second, options, texts=about, pictures=work)
        return question.diff(*sides, request)
    first, second = named_or_loaded(both, tokenizer)
    read, read_b = texts_of(texts), texts_of(texts_b)
    sides = both_sides(request, first, second, options, texts=read, texts_b=read_b)
    return question.diff(*sides, request)


@in_own_modes
def check(
    model: AnyModel | None,
    file: str | os.PathLike[str],
    *,
    tokenizer: Any = None,
    init: bool = False,
    force: bool = False,
    update: bool = False,
    junit: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> CheckReport:
    """Check a model by the rules in a file; the report's ``passed`` is True if all hold.

    model: see ``capture``; None for the one that the file names. tokenizer: see ``capture``.
    file: rules in TOML. init, force, update: write the file or renew its baselines, as the options
        of ``attnviz check`` do. junit: a file to be written as JUnit XML.
    Raises what ``capture`` raises, UnsupportedError if the attention cannot be observed.
    """
    from attnviz.inspect.check import check as question
    from attnviz.inspect.check.ci import write_junit
    from attnviz.inspect.check.request import CheckRequest
    from attnviz.models.resolve import LoadOptions

    request, path = CheckRequest.of(locals()), Path(file)
    written = [] if junit is None else [Path(junit)]
    (given,) = [None] if model is None else named_or_loaded([model], tokenizer)
    rules, options = question.rules_of(path, request, written), LoadOptions(seed=seed)
    checked = question.checked_model(given, rules, seed, options=lambda name: options)
    report = question.check(checked, path, request, rules)
    for target in written:
        write_junit(target, report)
    return report
