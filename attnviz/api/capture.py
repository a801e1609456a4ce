"""``attnviz.capture``: where the heads of a model look while it reads a text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from attnviz.api.head_choice import HeadChoice, in_python_words, spelled
from attnviz.api.head_maps import HeadMaps
from attnviz.engine.capture import Choice, capture_text
from attnviz.engine.known_labels import known_labels
from attnviz.errors import UsageError
from attnviz.inspect.heads.report import heads_report
from attnviz.models.model import Model, NumpyModel
from attnviz.models.resolve import Loaded, LoadOptions, load, reckoned_tokens, refuse_ignored
from attnviz.records import Kind

if TYPE_CHECKING:
    from attnviz.models.attention_interface import PreTrainedModel

_SHAPE = ("d_model", "heads", "kv_heads", "causal", "score")


def capture(
    model: str | os.PathLike[str] | PreTrainedModel | NumpyModel,
    text: str,
    *,
    tokenizer: Any = None,
    layer: str | int | None = None,
    head: HeadChoice | Sequence[HeadChoice] | None = None,
    kind: Kind | None = None,
    target: str | None = None,
    truncate: bool = False,
    device: str | None = None,
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] | None = None,
    backend: Literal["auto", "numpy", "torch"] | None = None,
    revision: str | None = None,
    offline: bool | None = None,
    trust_remote_code: bool | None = None,
    allow_pickle: bool | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
    seed: int | None = None,
    d_model: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    causal: bool | None = None,
    score: Literal["scaled-dot", "dot", "additive"] | None = None,
) -> HeadMaps:
    """The attention of every head of ``model`` over ``text``, or of the chosen heads alone.

    model: a name that ``--model`` takes (``tiny``, which is bundled; ``mha``, the library's own
        attention with random weights over the words of the text; a directory, a Hugging Face id,
        a named shape), or a loaded transformers model, which is left exactly as it is. What
        ``attnviz.models.resolve.load`` returns for the built-in names will do as well.
    tokenizer: of a loaded model; names bring their own.
    layer, head: the heads to keep, as ``--layer`` and ``--head`` take them (``"L2H5"``, ``"2.*"``,
        ``3``: of every layer, ``(2, 5)``); several in a list. All by default.
    kind, target: of an encoder–decoder, ``encoder`` (its default), ``decoder`` or ``cross``, and
        the decoder's text, by default what the model writes itself; ``mha`` takes ``cross`` with
        the text that looks at the other.
    truncate: cut a text that is longer than the model's context.
    device, dtype, backend, revision, offline, trust_remote_code, allow_pickle: of a model that is
        loaded by its name, as on the command line; ``progress(file, done, total)`` is called with
        bytes.
    seed: of random weights. d_model, heads, kv_heads, causal, score: the shape of ``mha``.

    The result's weights are those of the model's own eager attention, rows sum to one.

    Raises:
        UsageError (also a ValueError): a choice, text or option that does not fit the model.
        LoadError, OfflineError: the model cannot be loaded.
        UnsupportedError: its attention cannot be observed.
    """
    options = {
        "device": device,
        "dtype": dtype,
        "backend": backend,
        "revision": revision,
        "offline": offline,
        "trust_remote_code": trust_remote_code,
        "allow_pickle": allow_pickle,
        "progress": progress,
        "seed": seed,
        "d_model": d_model,
        "heads": heads,
        "kv_heads": kv_heads,
        "causal": causal,
        "score": score,
    }
    with in_python_words():
        if not isinstance(text, str):
            raise UsageError(f"expected a text, got a {type(text).__name__}")
        choice = Choice(
            None if layer is None else str(layer), choices(head), 0, kind, target, truncate
        )
        given = {name: value for name, value in options.items() if value is not None}
        opened = model_of(model, tokenizer, given, reckoned_tokens(text))
        record, selected = capture_text(opened, text, choice)
        known = known_labels(opened, record.kind)
        return HeadMaps(heads_report(record, selected, text=text, target=target, known=known))


def choices(head: HeadChoice | Sequence[HeadChoice] | None) -> tuple[str, ...]:
    """Every choice as the command line writes it."""
    if head is None:
        return ()
    if isinstance(head, list):
        return tuple(map(spelled, head))
    return (spelled(head),)


def model_of(model: Any, tokenizer: Any, given: dict[str, Any], tokens: int) -> Model:
    """The model behind a name, or the one that was handed over.

    given: the options that were given, which must be such that this model heeds them.
    tokens: about how many it is to run.
    """
    name = named(model, tokenizer, given)
    options = LoadOptions(**given, tokens=tokens)
    if not isinstance(name, Loaded):
        refuse_ignored(name, options, [option for option in _SHAPE if option in given])
    return load(name, options)


def named(model: Any, tokenizer: Any, given: Iterable[str], reads: bool = True) -> str:
    """The model's name; that of a loaded one brings it along.

    given: the options of loading that were given, which a loaded model does not heed.
    """
    if isinstance(tokenizer, str):
        raise UsageError(f"expected a tokenizer, got a text: write text={tokenizer!r}")
    if isinstance(model, str | os.PathLike):
        if tokenizer is not None:
            raise UsageError("--tokenizer is for a loaded model: a name brings its own")
        return os.fspath(model)
    for option in given:
        raise UsageError(
            f"--{option.replace('_', '-')} is for a model that is loaded by its name: this one is "
            "loaded"
        )
    return Loaded(opened(model, tokenizer, reads))


def opened(model: Any, tokenizer: Any, reads: bool = True) -> Model:
    """A model that Python code holds, as it stands; see ``models.prepare.handed_over``."""
    if isinstance(model, NumpyModel):
        return model
    from attnviz.models.prepare import handed_over  # imports transformers

    return handed_over(model, tokenizer, reads=reads)


def opened_model(model: Any, tokenizer: Any) -> Model:
    """Return the model that a name stands for, or the loaded one as it stands.

    Raises UsageError for a tokenizer next to a name, and for a loaded model without one.
    """
    if isinstance(model, str | os.PathLike):
        if tokenizer is not None:
            raise UsageError("tokenizer is for a loaded model: a name brings its own")
        return load(os.fspath(model))
    return opened(model, tokenizer)
