"""The commands of attnviz as functions: each has the name and the options of its command.

The order of arguments is the same everywhere: the model, the text or texts, then keywords.
``--index-base 1`` is ``index_base=1``. Errors name options as the command line does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from attnviz.errors import UsageError
from attnviz.models.threads import ASKED, suit, threads_kept, wait_passively
from attnviz.options import spelled_head, spelled_heads
from attnviz.texts import built_in_texts, texts_of

if TYPE_CHECKING:
    from attnviz.count.params.params import ParamsReport
    from attnviz.count.params.request import Dtype as CountedDtype
    from attnviz.engine.effects import Method, Metric, Mode, Positions, Unit
    from attnviz.engine.generation import Step
    from attnviz.engine.patching import Direction, PatchMetric, What
    from attnviz.inspect.ablate.records import AblationReport
    from attnviz.inspect.check.records import CheckReport
    from attnviz.inspect.diff.records import DiffReport
    from attnviz.inspect.generate.records import GenerateReport
    from attnviz.inspect.heads.chosen import HeadChoice
    from attnviz.inspect.heads.cut import CutReport
    from attnviz.inspect.heads.head_maps import HeadMaps
    from attnviz.inspect.heads.report import HeadsComparison
    from attnviz.inspect.patch.path import PathReport
    from attnviz.inspect.patch.records import PatchReport
    from attnviz.inspect.patch.request import Asked, At
    from attnviz.inspect.patterns.records import PatternReport
    from attnviz.inspect.prune.records import PruneReport
    from attnviz.inspect.prune.request import Importance
    from attnviz.inspect.rollout.records import RolloutReport
    from attnviz.inspect.why.records import WhyReport
    from attnviz.learn.scaling.records import ScalingReport
    from attnviz.learn.sweep.records import SweepReport
    from attnviz.learn.train.records import TrainReport
    from attnviz.learn.verify.records import VerifyReport
    from attnviz.models.attention_interface import PreTrainedModel
    from attnviz.models.model import Model
    from attnviz.records import Kind, Score

    AnyModel = str | os.PathLike[str] | PreTrainedModel | Model
    AnyPairs = str | os.PathLike[str] | Iterable[Mapping[str, str]] | None
    AnyFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    AnyHeads = HeadChoice | list[HeadChoice] | None

wait_passively()

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


def _in_own_modes(function: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """Let a function set torch's threads and record gradients; restore the caller's modes after."""

    @wraps(function)
    def in_own_modes(*args: _Given.args, **given: _Given.kwargs) -> _Found:
        torch = sys.modules.get("torch")
        with threads_kept():
            if torch is None:  # nobody can have switched gradients off
                return function(*args, **given)
            with torch.inference_mode(False), torch.enable_grad():
                return function(*args, **given)

    return in_own_modes


@threads_kept()
def load(
    name: str | os.PathLike[str],
    *,
    device: str = "cpu",
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = "auto",
    backend: Literal["auto", "numpy", "torch"] = "auto",
    threads: int | None = None,
    revision: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    progress: Callable[[str, int, int | None], None] | None = None,
    seed: int | None = None,
    d_model: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    causal: bool | None = None,
    score: Score | None = None,
) -> Model:
    """Load a model once; every function of attnviz takes the result.

    name: what ``--model`` takes: ``tiny``, which is bundled; ``mha``, the library's own attention
        with random weights over the words of the text; a directory, a Hugging Face id, a shape.
    device, dtype, backend, revision, offline, trust_remote_code, allow_pickle: as on the command
        line. With the backend ``auto`` torch runs a checkpoint, so that every function can use it.
    threads: how many threads every function uses that takes the result; by default as many as suit
        the model's size. What torch and NumPy are set to elsewhere stays as it is.
    progress: is called as ``progress(file, done, total)`` with bytes while files are downloaded.
    seed: of random weights. d_model, heads, kv_heads, causal, score: the shape of ``mha``.

    Raises UsageError (also a ValueError) for an option that this model does not use, LoadError,
    OfflineError or UnsupportedError if it cannot be loaded.
    """
    given = {key: value for key, value in locals().items() if value is not None and key != "name"}
    from attnviz.models.resolve import SHAPING, LoadOptions, load, refuse_ignored

    options = LoadOptions(**given)
    if backend == "numpy":
        options = replace(options, tokens=0)
    refuse_ignored(os.fspath(name), options, [key for key in SHAPING if key in given])
    model = load(os.fspath(name), options)
    if threads is not None:
        ASKED[model] = threads
    return model


@_in_own_modes
def capture(
    model: AnyModel,
    text: str,
    *,
    tokenizer: Any = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: Kind | None = None,
    target: str | None = None,
    truncate: bool = False,
    no_known_labels: bool = False,
) -> HeadMaps:
    """Return the attention of every head of a model over a text, or of the chosen heads only.

    model: a name that ``attnviz.load`` takes, the result of ``attnviz.load``, or a loaded
        transformers model, which is left exactly as it is. tokenizer: of a transformers model.
    layer, head: the heads to keep, as ``--layer`` and ``--head`` take them (``"L2H5"``, ``"2.*"``,
        ``3``: of every layer, ``(2, 5)``); several in a list. All by default.
    kind: for an encoder–decoder, ``encoder`` (its default), ``decoder`` or ``cross``; ``mha`` takes
        ``cross``. target: the decoder's text, by default what the model writes itself; for ``mha``
        the text of the queries.
    truncate: cut a text that is longer than the model's context.
    no_known_labels: ignore labels that were measured before, as ``--no-known-labels`` does.

    The weights are those of the model's own eager attention; each row sums to one.
    Raises UsageError (also a ValueError) for a choice or text that does not fit the model,
    LoadError or OfflineError if it cannot be loaded, UnsupportedError if it cannot be observed.
    """
    from attnviz.engine.capture import Choice, capture_text
    from attnviz.engine.known_labels import known_labels
    from attnviz.inspect.heads.head_maps import HeadMaps
    from attnviz.inspect.heads.report import heads_report

    if (read := _text(text)) is None:
        raise UsageError('expected a text: attnviz.capture("tiny", "The cat sat.")')
    layers = None if layer is None else str(layer)
    choice = Choice(
        layers=layers,
        heads=spelled_heads(head),
        kind=kind,
        target=target,
        truncate=truncate,
        no_known_labels=no_known_labels,
    )
    opened = _opened(model, tokenizer, _for_one_pass(read))
    record, selected = capture_text(opened, read, choice)
    known = known_labels(opened, record.kind, ignored=no_known_labels)
    return HeadMaps(heads_report(record, selected, text=read, target=target, known=known))


@_in_own_modes
def heads(
    model: AnyModel,
    text: str,
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
    sort: str | None = None,
    reverse: bool = False,
    compare_mask: bool = False,
    score: str | None = None,
    no_known_labels: bool = False,
    index_base: int = 0,
) -> HeadsComparison:
    """Show where each head of a model attends over a text; ``capture`` gives only the weights.

    model, tokenizer: see ``capture``. compare_mask, score: only for the model name ``mha``.
    The options are those of ``attnviz heads``; see ``HeadsRequest``.

    Raises UsageError (also a ValueError) for options, heads or a text that do not fit, LoadError
    for a model that cannot be read, UnsupportedError if its attention cannot be observed.
    """
    given = locals()
    from attnviz.inspect.heads import heads as question
    from attnviz.inspect.heads.request import HeadsRequest
    from attnviz.models.resolve import LoadOptions, load, refuse_ignored

    request = HeadsRequest.of(given)
    if (read := _text(text)) is None:
        raise UsageError('expected a text: attnviz.heads("tiny", "The cat sat.")')

    def opening(changes: dict[str, Any]) -> Model:
        def named(name: str) -> Model:
            options = LoadOptions(tokens=question.reckoned(read, request), **changes)
            refuse_ignored(name, options, request.changed)
            return load(name, options)

        if changes and not isinstance(model, str | os.PathLike):
            raise UsageError("compare_mask and score draw several models: name mha as the model")
        return _opened(model, tokenizer, named)

    return question.heads(opening, read, request)


@_in_own_modes
def cut(
    model: AnyModel,
    text: str,
    edge: str | tuple[str, str],
    *,
    tokenizer: Any = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: Kind | None = None,
    target: str | None = None,
    truncate: bool = False,
    index_base: int = 0,
) -> CutReport:
    """Knock out the attention of one word to another, and measure how the prediction changes.

    model, tokenizer: see ``capture``. edge: query and key, such as ``"it→animal"``, or a pair.
    The options are those of ``attnviz heads --cut``.

    Raises UsageError (also a ValueError) for words, heads or a text that do not fit, LoadError for
    a model that cannot be read, UnsupportedError if its attention cannot be edited.
    """
    given = locals()
    from attnviz.inspect.heads.cut import cut_report, read_edge
    from attnviz.inspect.heads.request import HeadsRequest
    from attnviz.inspect.heads.runs import requested_runs

    ((_, choice),) = requested_runs(HeadsRequest.of(given))
    words = read_edge(edge) if isinstance(edge, str) else edge
    if (read := _text(text)) is None:
        raise UsageError('expected a text: attnviz.cut("tiny", "The cat sat.", "sat→cat")')
    return cut_report(_opened(model, tokenizer), read, words, choice)


@_in_own_modes
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
    raw: bool = False,
    without_first: bool = False,
    norm_weighted: bool = False,
    control: Literal["random-weights"] | None = None,
    watch: str | None = None,
    stats: bool = False,
    top: int | None = None,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> PatternReport:
    """Score what each head attends to: every measure with its chance level, and the head's label.

    model, tokenizer: see ``capture``. text: to score on, in place of the built-in probes.
    The options are those of ``attnviz patterns``; see ``PatternsRequest``.

    Raises UsageError (also a ValueError) for options, heads or a text that do not fit, LoadError
    for a model or a file that cannot be read, UnsupportedError if its attention cannot be observed.
    """
    given = locals()
    from attnviz.inspect.patterns import patterns as question
    from attnviz.inspect.patterns.request import PatternsRequest
    from attnviz.models.resolve import LoadOptions, load

    request, read = PatternsRequest.of(given), _text(text)
    sentences = question.read_sentences(request, read)

    def opening(name: str) -> Model:
        tokens = question.reckoned_tokens(name, read, request, sentences)
        return load(name, LoadOptions(tokens=tokens))

    loaded = _opened(model, tokenizer, opening)
    return question.patterns(loaded, read, request, sentences=sentences)


@_in_own_modes
def ablate(
    model: AnyModel = "tiny",
    texts: str | Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    head: AnyHeads = None,
    layer: str | int | None = None,
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
    truncate: bool = False,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> AblationReport:
    """Ablate each head and measure exactly how much the loss rises, over one text or many.

    model, tokenizer: see ``capture``. texts: one or several; the built-in ones by default.
    The options are those of ``attnviz ablate``: see ``AblateRequest``.

    Raises UsageError (also a ValueError) for options, heads or texts that do not fit, LoadError for
    a model or a file that cannot be read, UnsupportedError if the heads cannot be ablated.
    """
    given = locals()
    from attnviz.inspect.ablate import ablate as question
    from attnviz.inspect.ablate.request import AblateRequest

    request = AblateRequest.of(given)
    read = texts_of(texts) or built_in_texts()
    return question.ablate(_opened(model, tokenizer), read, request)


@_in_own_modes
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
    """Remove the least important heads for good; compare the loss with as many removed at random.

    model, tokenizer: see ``capture``. texts: one or several; the built-in ones by default.
    The options are those of ``attnviz prune``; see ``PruneRequest``.

    Raises UsageError (also a ValueError) for options, heads or texts that do not fit, LoadError for
    what cannot be read or written, UnsupportedError if the heads cannot be removed for good.
    """
    given = locals()
    from attnviz.inspect.prune import prune as question
    from attnviz.inspect.prune.request import PruneRequest

    request = PruneRequest.of(given)
    read = texts_of(texts) or built_in_texts()
    return question.prune(_opened(model, tokenizer), read, request)


@_in_own_modes
def patch(
    model: AnyModel = "tiny",
    clean: str | None = None,
    corrupt: str | None = None,
    *,
    pairs: AnyPairs = None,
    tokenizer: Any = None,
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
    """Patch activations between two prompts; measure which heads carry the difference.

    model, tokenizer: see ``capture``. clean, corrupt: the prompts. pairs: many of them instead, a
        file or mappings with ``clean``, ``corrupt`` and, if wanted, ``answer`` and ``foil``; the
        built-in ones by default.
    The options are those of ``attnviz patch``; see ``PatchRequest``.

    Raises UsageError (also a ValueError) for options, heads or prompts that do not fit, LoadError
    for a model or a file that cannot be read, UnsupportedError if the model cannot be patched.
    """
    given = locals()
    from attnviz.inspect.patch import patch as question
    from attnviz.inspect.patch.prompts import read_pairs
    from attnviz.inspect.patch.request import PatchRequest

    request = PatchRequest.of(given)
    read = read_pairs(_text(clean), _text(corrupt), request.pairs)
    return question.patch(_opened(model, tokenizer), read, request)


@_in_own_modes
def path(
    model: AnyModel,
    sender: str | tuple[int, int],
    clean: str | None = None,
    corrupt: str | None = None,
    *,
    pairs: AnyPairs = None,
    tokenizer: Any = None,
    into: Literal["query", "key", "value"] | None = None,
    top: int = 8,
    index_base: int = 0,
    seed: int = 0,
) -> PathReport:
    """Follow one head: measure which later heads read what it writes, over pairs of prompts.

    model, tokenizer: see ``capture``. sender: the head, such as ``"L0H0"``.
    clean, corrupt, pairs: see ``patch``. The other options are those of ``attnviz path``.

    Raises UsageError (also a ValueError) if ``sender`` is not one head or is in the last layer, and
    what ``patch`` raises.
    """
    given = locals()
    from attnviz.inspect.patch import path as question
    from attnviz.inspect.patch.prompts import read_pairs
    from attnviz.inspect.patch.request import PathRequest

    request = PathRequest.of({**given, "sender": spelled_head(sender)})
    read = read_pairs(_text(clean), _text(corrupt), request.pairs)
    return question.path(_opened(model, tokenizer), read, request)


@_in_own_modes
def diff(
    a: AnyModel = "tiny",
    b: AnyModel | None = None,
    texts: str | Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    texts_b: str | Iterable[str] | None = None,
    device: str = "cpu",
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = "auto",
    backend: Literal["auto", "numpy", "torch"] = "auto",
    revision: str | None = None,
    dtype_b: Literal["auto", "float32", "float16", "bfloat16", "float64"] | None = None,
    backend_b: Literal["auto", "numpy", "torch"] | None = None,
    revision_b: str | None = None,
    kind: Kind | None = None,
    importance: bool = False,
    match: bool = False,
    noise_floor: float | None = None,
    truncate: bool = False,
    top: int = 8,
    index_base: int = 0,
    seed: int = 0,
) -> DiffReport:
    """Compare two models, or one under two conditions, head by head, beyond a noise floor.

    a, b: see ``capture``, or results saved as JSON; by default b is a again.
    texts: one or several; by default the built-in ones. texts_b: what b reads in place of them.
    tokenizer: for loaded models. device, dtype, backend, revision: for models given by name; a
        saved result is compared as it is. dtype_b, backend_b, revision_b: for b.
    The other options are those of ``attnviz diff``; see ``DiffRequest``.

    Raises UsageError (also a ValueError) for options or texts that do not fit, LoadError for what
    cannot be read, UnsupportedError if the attention cannot be observed.
    """
    given = locals()
    from attnviz.inspect.diff import diff as question
    from attnviz.inspect.diff.request import DiffRequest
    from attnviz.inspect.diff.sides import both_sides
    from attnviz.models.resolve import LoadOptions

    request, other = DiffRequest.of(given), a if b is None else b
    named = [isinstance(side, str | os.PathLike) for side in (a, other)]
    if tokenizer is not None and all(named):
        raise UsageError("tokenizer is for a loaded model: a name brings its own")
    options = LoadOptions(device=device, dtype=dtype, backend=backend, revision=revision, seed=seed)
    if (not any(named) and options != LoadOptions(seed=seed)) or (
        not named[1] and request.named_condition()
    ):
        raise UsageError(
            "device, dtype, backend and revision are for a model that is loaded by its name: this "
            "one is loaded"
        )
    if texts_b is not None and texts is None:
        raise UsageError("texts_b is what b reads in place of texts: give texts as well")

    def opened(side: AnyModel) -> str | Model:
        return os.fspath(side) if isinstance(side, str | os.PathLike) else _opened(side, tokenizer)

    first = opened(a)
    second = first if other is a else opened(other)
    sides = both_sides(
        request,
        first,
        second,
        options,
        texts=texts_of(texts) or built_in_texts(),
        texts_b=texts_of(texts_b),
    )
    return question.diff(*sides, request)


@_in_own_modes
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
    """Check a model by the rules in a file; the report's ``passed`` says whether all hold.

    model: see ``capture``; None for the one that the file names. tokenizer: see ``capture``.
    file: rules in TOML. init, force, update: write the file, or renew its baselines, as on the
        command line. junit: a file to be written in JUnit XML.

    Raises UsageError (also a ValueError) for rules that do not fit the model, LoadError for what
    cannot be read or written, UnsupportedError if the attention cannot be observed.
    """
    given = locals()
    from attnviz.inspect.check import check as question
    from attnviz.inspect.check.ci import write_junit
    from attnviz.inspect.check.measure import CheckedModel
    from attnviz.inspect.check.request import CheckRequest
    from attnviz.inspect.patterns.probes import reckoned_probe_tokens
    from attnviz.models.resolve import LoadOptions, load

    request, path = CheckRequest.of(given), Path(file)
    also = [] if junit is None else [Path(junit)]
    rules = question.rules_of(path, request, also)
    if model is None:
        model = (rules.model if rules is not None else None) or question.BUILT_IN
    if isinstance(model, str | os.PathLike):
        name, loaded = os.fspath(model), None
    else:
        loaded = _opened(model, tokenizer)
        name = loaded.info.name

    def opening(name: str) -> Model:
        return load(name, LoadOptions(seed=seed, tokens=reckoned_probe_tokens(None, None)))

    checked = CheckedModel(
        name,
        lambda: _opened(model, tokenizer, opening) if loaded is None else loaded,
        question.counted(name, loaded),
        seed,
    )
    report = question.check(checked, path, request, rules)
    if junit is not None:
        write_junit(Path(junit), report)
    return report


@_in_own_modes
def rollout(
    model: AnyModel,
    text: str,
    *,
    tokenizer: Any = None,
    kind: Literal["self", "encoder", "decoder"] | None = None,
    target: str | None = None,
    truncate: bool = False,
    values: bool = False,
    sink: bool = False,
) -> RolloutReport:
    """Follow attention through all layers to the input (Abnar & Zuidema 2020), over one text.

    model, tokenizer: see ``capture``.
    The options are those of ``attnviz rollout``; see ``RolloutRequest``.

    Raises UsageError (also a ValueError) for options or a text that do not fit, LoadError for a
    model that cannot be read, UnsupportedError if its attention cannot be observed.
    """
    given = locals()
    from attnviz.inspect.rollout import rollout as question
    from attnviz.inspect.rollout.request import RolloutRequest

    request = RolloutRequest.of(given)
    if (read := _text(text)) is None:
        raise UsageError('expected a text: attnviz.rollout("tiny", "The cat sat.")')
    return question.rollout(_opened(model, tokenizer, _for_one_pass(read)), read, request)


@_in_own_modes
def why(
    model: AnyModel,
    prompts: str | Iterable[str],
    *,
    tokenizer: Any = None,
    answer: str | None = None,
    foil: str | None = None,
    position: str | int | None = None,
    controls: int | None = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    kind: Literal["decoder", "cross"] | None = None,
    target: str | None = None,
    truncate: bool = False,
    top: int = 8,
    copying: bool = False,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> WhyReport:
    """Split a prediction exactly into what each head writes towards the predicted token.

    model, tokenizer: see ``capture``. prompts: one, or several for means with intervals.
    The options are those of ``attnviz why``; see ``WhyRequest``.

    Raises UsageError (also a ValueError) for options, heads or prompts that do not fit, LoadError
    for a model that cannot be read, UnsupportedError if the parts do not sum to its logit.
    """
    given = locals()
    from attnviz.inspect.why import why as question
    from attnviz.inspect.why.request import WhyRequest
    from attnviz.models.resolve import LoadOptions

    request = WhyRequest.of(given)
    read, source = question.read_prompts(request, texts=texts_of(prompts))
    loaded = _opened(
        model, tokenizer, lambda name: question.open_model(name, LoadOptions(), read, request)
    )
    report = question.why(loaded, read, request, source=source)
    report.require_tally()
    return report


@threads_kept()
def params(
    model: AnyModel | Sequence[str] | None = None,
    *,
    d_model: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    v_head_dim: int | None = None,
    bias: bool | None = None,
    window: int | None = None,
    linear: bool = False,
    kv_lora: int | None = None,
    q_lora: int | None = None,
    rope_dim: int | None = None,
    nope_dim: int | None = None,
    d_ff: int | None = None,
    ffn: str | None = None,
    experts: int | None = None,
    active_experts: int | None = None,
    shared_experts: int | None = None,
    d_expert: int | None = None,
    layers: int | None = None,
    vocab: int | None = None,
    tied: bool | None = None,
    norm: str | None = None,
    positions: str | None = None,
    max_positions: int | None = None,
    tokens: int | None = None,
    source_tokens: int | None = None,
    batch: int = 1,
    dtype: CountedDtype = "auto",
    cache_dtype: CountedDtype = "auto",
    memory: str | None = None,
    compare: str | Sequence[str] = (),
    formula: bool = False,
    per_layer: bool = False,
    revision: str | None = None,
    offline: bool = False,
) -> ParamsReport:
    """Count parameters, KV cache, FLOPs and memory of a model or of a shape, exactly.

    model: a name, several to compare, or a loaded model; None for a shape, which ``d_model``,
        ``heads`` and the arguments after them describe.
    The options are those of ``attnviz params``; see ``ParamsRequest``.

    Raises UsageError (also a ValueError) for numbers that do not go together, LoadError or
    OfflineError for a name whose model cannot be read.
    """
    given = locals()
    from attnviz.count.params import params as question
    from attnviz.count.params.cases import NamedModel
    from attnviz.count.params.request import ParamsRequest

    request = ParamsRequest.of(given)
    if isinstance(model, str | os.PathLike):
        models = [NamedModel(os.fspath(model), shapes_first=True)]
    elif isinstance(model, Sequence):
        models = [NamedModel(os.fspath(name), shapes_first=True) for name in model]
    elif model is not None:
        loaded = _opened(model, None, reads=False)
        models = [NamedModel(loaded.info.name, loaded=loaded)]
    else:
        models = []
    return question.params(models, request)


@_in_own_modes
def scaling(
    model: AnyModel | None = None,
    text: str | None = None,
    *,
    tokenizer: Any = None,
    d_k: str | None = None,
    seq: int | None = None,
    samples: int | None = None,
    layer: str | int | None = None,
    head: AnyHeads = None,
    truncate: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> ScalingReport:
    """Compare the softmax of the scores with and without the scale 1/√d_k.

    model: the one whose queries and keys are measured; None for random queries and keys of the
        sizes ``d_k``, such as ``"8,64,512"``. tokenizer: see ``capture``. text: built-in by
        default.
    The options are those of ``attnviz scaling``; see ``ScalingRequest``.

    Raises UsageError (also a ValueError) for options, heads or a text that do not fit, LoadError
    for a model that cannot be read, UnsupportedError if it does not show its queries and keys.
    """
    given = locals()
    from attnviz.learn.scaling import scaling as question
    from attnviz.learn.scaling.request import ScalingRequest

    request = ScalingRequest.of(given)
    if model is None and text is not None:
        raise UsageError("a text is for a model to read: give one, or leave the text out")
    read = texts_of(_text(text)) or question.BUILT_IN
    opening = _for_one_pass(read.texts[0])
    opened = None if model is None else _opened(model, tokenizer, opening)
    return question.scaling(opened, read, request)


@_in_own_modes
def verify(
    model: AnyModel | None = None,
    text: str | None = None,
    *,
    tokenizer: Any = None,
    target: str | None = None,
    truncate: bool = False,
    d_model: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    causal: bool | None = None,
    steps: bool = False,
    seq: int | None = None,
    keras: bool | None = None,
    dtype: Literal["auto", "float32", "float64"] = "auto",
    seed: int = 0,
) -> VerifyReport:
    """Check attention against other implementations: the library's own, or that of a model.

    model: None for the library's own attention, of the shape that ``d_model``, ``heads`` and the
        arguments after them describe. tokenizer: see ``capture``. text: a sentence by default.
    dtype: of the library's own attention. The options are those of ``attnviz verify``; see
        ``VerifyRequest``. The report's ``failed`` has the checks that failed.

    Raises UsageError (also a ValueError) for options or a text that do not fit, LoadError for a
    model that cannot be read, UnsupportedError if it does not read text.
    """
    given = locals()
    from attnviz.learn.verify import verify as question
    from attnviz.learn.verify.request import VerifyRequest

    request = VerifyRequest.of(given)
    read = _text(text)
    if model is None:
        if read is not None:
            raise UsageError("a text is for a model to read: give one, or leave the text out")
        return question.verify_own(request, dtype)
    if dtype != "auto":
        raise UsageError("dtype is that of the library's own attention: load the model in it")
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    return question.verify_model(_opened(model, tokenizer), read, request, name=name)


@threads_kept()
def sweep(
    *,
    heads: str = "1,2,4,8",
    task: str | None = None,
    text: str | os.PathLike[str] | None = None,
    steps: int = 500,
    seeds: int = 3,
    seed: int = 0,
    layers: int = 2,
    d_model: int = 32,
    device: str = "cpu",
) -> SweepReport:
    """Train the same small decoder with several numbers of heads, and compare what they learn.

    text: a file whose next characters are learned, in place of a task.
    The options are those of ``attnviz sweep``; see ``SweepRequest``. Ctrl-C ends the training
    between two steps; the report then holds the models that are trained.

    Raises UsageError (also a ValueError) for options that do not go together, LoadError for a text
    that cannot be read.
    """
    given = locals()
    from attnviz.learn.sweep import sweep as question
    from attnviz.learn.sweep.request import SweepRequest

    return question.sweep(SweepRequest.of(given), device=device)


@threads_kept()
def train(
    files: AnyFiles,
    *,
    out: str | os.PathLike[str],
    valid: AnyFiles = (),
    config: str | os.PathLike[str] | None = None,
    vocabulary: int | None = None,
    seed: int | None = None,
    minutes: float | None = None,
    tokens: int | None = None,
    resume: bool = False,
    device: str = "cpu",
) -> TrainReport:
    """Train a small language model with the library's own attention on text files.

    files, valid: the texts to train on and to validate on. out: the model's new directory, which
        ``attnviz.load`` takes afterwards.
    The options are those of ``attnviz train``; see ``TrainRequest``. Ctrl-C ends the training
    between two steps and saves it; ``resume=True`` continues it.

    Raises UsageError (also a ValueError) for options or texts that do not fit, LoadError for what
    cannot be read or written.
    """
    given = locals()
    from attnviz.learn.train import train as question
    from attnviz.learn.train.request import TrainRequest

    return question.train(TrainRequest.of(given), device=device)


@_in_own_modes
def generate(
    model: AnyModel,
    prompt: str,
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
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
    on_step: Callable[[Step], None] = lambda step: None,
) -> GenerateReport:
    """Let a model continue a prompt, and show where its heads look at each step.

    Iterating over the report gives the steps. Each step has ``text``, ``id``, ``probability``,
    ``likely``, ``entropy`` and ``rows``: by layer the weights (head, key) of the newest token.

    model, tokenizer: see ``capture``. on_step: is called with each step as it is written. Ctrl-C
        ends the text between two steps.
    The options are those of ``attnviz generate``; see ``GenerateRequest``.

    Raises UsageError (also a ValueError) for options, heads or a prompt that do not fit, LoadError
    for a model that cannot be read, UnsupportedError if it does not predict the next token.
    """
    given = locals()
    from attnviz.inspect.generate.generate import WritingJob
    from attnviz.inspect.generate.request import GenerateRequest
    from attnviz.interrupts import between_steps

    request = GenerateRequest.of(given)
    if (text := _text(prompt)) is None:
        raise UsageError('expected a prompt: attnviz.generate("tiny", "The cat sat on the")')

    def told(step: Step) -> Step:
        on_step(step)
        return step

    with between_steps() as asked:
        loaded = _opened(model, tokenizer, _for_one_pass(text, tokens))
        job = WritingJob.prepare(loaded, text, request, asked)
        report, early = replace(job, steps=map(told, job.steps)).write(asked)
    if early is not None and (report is None or not isinstance(early, KeyboardInterrupt)):
        raise early
    assert report is not None
    return report


def _text(text: str | None) -> str | None:
    """Return a text or None; UsageError for an empty text or ``-``, which means standard input."""
    if text is None:
        return None
    if not isinstance(text, str) or not text.strip() or text == "-":
        raise UsageError(f"expected one text of at least one word, got {text!r:.40}")
    return text


def _opened(
    model: AnyModel,
    tokenizer: Any,
    opening: Callable[[str], Model] | None = None,
    reads: bool = True,
) -> Model:
    """Return a model given by name, by the result of ``load`` or as a transformers model.

    opening: loads a named model; by default for torch. reads: whether it is to read a text.
    Raises UsageError for a tokenizer next to a name, and for a loaded model without one.
    """
    if isinstance(tokenizer, str):
        raise UsageError(f"expected a tokenizer, got a text: {tokenizer!r}")
    if isinstance(model, str | os.PathLike):
        from attnviz.models.resolve import load

        if tokenizer is not None:
            raise UsageError("tokenizer is for a loaded model: a name brings its own")
        return (opening or load)(os.fspath(model))
    from attnviz.models.model import Model

    if not isinstance(model, Model):
        from attnviz.models.prepare import handed_over  # imports transformers

        model = handed_over(model, tokenizer, reads=reads)
    suit(model)
    return model


def _for_one_pass(text: str, tokens: int = 0) -> Callable[[str], Model]:
    """Return a function that loads a named model for a pass over a text and ``tokens`` more."""
    from attnviz.models.resolve import LoadOptions, load, reckoned_tokens

    return lambda name: load(name, LoadOptions(tokens=reckoned_tokens(text) + tokens))
