"""A loaded model as an examinee, and its checks against other ways to compute or count it.

NumPy must give the same tokens and attention weights as torch, ``attnviz params`` the same number
of parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from attnviz.attention.family import NotUnderstoodError
from attnviz.count.params.counting.parameters import count_parameters
from attnviz.count.params.find_spec import find_spec
from attnviz.count.params.shapes import spec_from_options
from attnviz.engine.capture import capture
from attnviz.errors import AttnvizError, UnsupportedError
from attnviz.learn.verify.examinee import Examinee, differences, furthest, score_spread
from attnviz.learn.verify.native import BundledExaminee, OwnExaminee
from attnviz.learn.verify.properties import Rounding, exact
from attnviz.learn.verify.records import Backends, Check, ComparedNumber
from attnviz.learn.verify.transformers import TransformersExaminee
from attnviz.models.bundled import Bundled
from attnviz.models.model import Model, NumpyModel
from attnviz.models.own import OwnAttention
from attnviz.models.resolve import LoadOptions, in_numpy, not_by_numpy, reckoned_tokens, resolve
from attnviz.models.threads import suit
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Input, Tokens
from attnviz.texts import built_in_texts


def open_examinee(model: Model, tokens: Tokens, target: Tokens | None = None) -> Examinee:
    """Return an object to verify a loaded model on the given tokens.

    target: the tokens of the decoder, if it has one next to an encoder.
    Raises UnsupportedError if the model does not take text.
    """
    passage = Input(tokens, target)
    suit(model)  # torch may have been imported only now
    if isinstance(model, TransformersModel):
        return TransformersExaminee(model, passage)
    if isinstance(model, Bundled):
        return BundledExaminee(model, passage)
    if isinstance(model, OwnAttention):
        return OwnExaminee(model, passage)
    raise UnsupportedError(f"no way to verify a {type(model).__name__}")


_COUNT = Check(
    "",
    "parameter count",
    claim="the model has as many parameters as attnviz params counts",
    skipped="",
)


def count_check(examinee: Examinee, model: Model, name: str | None, options: LoadOptions) -> Check:
    """Check that the model has as many parameters as ``attnviz params`` counts.

    examinee: the model to verify. name, options: how it was loaded, name None if unknown.
    The check is skipped if the config does not allow a count.
    """
    loaded = examinee.parameters
    try:
        expected, command = _expected(model, name, options)
    except AttnvizError as error:
        return replace(_COUNT, skipped=str(error))
    measure = exact("difference", abs(loaded - expected), reason="whole numbers")
    notes = (f"{loaded:,} in the loaded model, {expected:,} by {command}",)
    return replace(_COUNT, skipped=None, measures=(measure,), notes=notes)


def _expected(model: Model, name: str | None, options: LoadOptions) -> tuple[int, str]:
    """Return the parameter count, and the command that shows it."""
    if isinstance(model, OwnAttention):
        shape = model.attention.shape
        sizes = {"d_model": shape.d_model, "heads": shape.heads, "kv_heads": shape.kv_heads}
        words = " ".join(f"--{key.replace('_', '-')} {size}" for key, size in sizes.items())
        spec = spec_from_options(
            d_model=shape.d_model, heads=shape.heads, kv_heads=shape.kv_heads, bias=True
        )
        return count_parameters(spec).total, f"attnviz params {words} --bias"
    if name is None:
        raise UnsupportedError("the model is loaded already, and params counts files")
    found = find_spec(name, revision=options.revision, offline=options.offline)
    command = f"attnviz params --model {name}"
    if found.spec is not None:
        return count_parameters(found.spec).total, command
    from attnviz.count.params.meta_count import count_on_meta  # takes seconds

    made = count_on_meta(found.config, name=name, architecture=found.architecture)
    return made.total, command


# NumPy and torch ----------------------------------------------------------------------------

_BACKEND = Check(
    "", "NumPy backend", claim="NumPy gives the tokens and weights that torch gives", skipped=""
)

_MOST = 1e-5
"""Largest allowed difference of weights in float32, even if large scores would allow more."""

_HARD = (
    "Naïve CAFÉ in İstanbul: don't pay 1,234.50 €!",
    "고양이가 매트 위에 앉았다. 漢字 مرحبا",
    "👩‍👩‍👧🏽 and e\u0301, <s>[CLS]<|endoftext|> \t\n end",
)
"""Texts that are hard to tokenize: accents, scripts, emoji, special tokens, white space."""


def backend_check(
    examinee: Examinee, model: TransformersModel, name: str | None, options: LoadOptions
) -> tuple[Check, Backends | None]:
    """Check that NumPy and torch give the same tokens and attention weights for a model.

    examinee: the model and its text; the built-in texts are used too. name, options: how the model
        was loaded, name None if unknown.
    Returns the check, and the differences or None. The check is skipped if NumPy cannot run the
    model, but an error is raised if NumPy was requested.
    """
    texts = (*built_in_texts().texts, *_HARD)
    try:
        ours = _in_numpy(name, options, texts, len(examinee.passage.text))
    except (NotUnderstoodError, AttnvizError) as error:
        if options.backend == "numpy":
            raise not_by_numpy(name or model.info.name, str(error)) from error
        return replace(_BACKEND, skipped=str(error)), None
    read = [(model.encode(text, model.context), ours.encode(text, ours.context)) for text in texts]
    other = sum(theirs != mine for theirs, mine in read)
    passages = [examinee.passage.text, *(theirs for theirs, _ in read if len(theirs))]
    found, weights = _run_both(examinee, ours, passages)
    measures = (exact("texts with other tokens", other, reason="ids and tokens agree"), weights)
    notes = [
        f"NumPy in {found.dtypes['numpy']}, torch in {found.dtypes['torch']}; {found.texts} texts, "
        f"{found.tokens:,} tokens",
        *([f"--dtype float32 allows {_MOST:g}"] if weights.tolerance.most > _MOST else []),
    ]
    return replace(_BACKEND, skipped=None, measures=measures, notes=tuple(notes)), found


def _run_both(
    examinee: Examinee, ours: NumpyModel, passages: Sequence[Tokens]
) -> tuple[Backends, ComparedNumber]:
    """Return how far the attention weights of torch and NumPy differ: per head, and the largest.

    examinee: runs in torch. ours: runs in NumPy. passages: the texts.
    """
    info = examinee.info
    apart = np.zeros((info.layers, info.heads))
    spread = 1.0
    for tokens in passages:
        theirs = examinee.capture(Input(tokens))
        spread = max(spread, score_spread(theirs))
        for layer in capture(ours, tokens, kind="self").layers:
            found = differences(theirs["self", layer.layer], layer.weights).max((1, 2))
            apart[layer.layer] = np.maximum(apart[layer.layer], found)
    dtypes = {"numpy": ours.info.dtype, "torch": info.dtype}
    compared = Backends(dtypes, len(passages), sum(map(len, passages)), apart)
    worst, where = furthest((("self", layer), numbers) for layer, numbers in enumerate(apart))
    rounding = Rounding(info, max(map(len, passages)), examinee.rounds_in)
    if rounding.dtype in ("float16", "bfloat16"):
        tolerance, words = rounding.of_model(1.0)
    else:
        tolerance, words = rounding.of_model(spread)
        tolerance = replace(tolerance, most=_MOST)
    return compared, ComparedNumber(
        "weights", worst, tolerance, f"{words} in {rounding.dtype}", where
    )


def _in_numpy(
    name: str | None, options: LoadOptions, texts: Iterable[str], tokens: int
) -> NumpyModel:
    """Return the model run by NumPy; with backend ``auto`` only if that would choose NumPy.

    name, options: how the model is loaded. texts: those that it will run on, in addition to
        ``tokens`` tokens.
    """
    if options.backend == "torch":
        raise NotUnderstoodError("left out by --backend torch")
    if name is None:
        raise NotUnderstoodError("the model is loaded already, and NumPy reads files")
    tokens += sum(map(reckoned_tokens, texts))
    return in_numpy(resolve(name), replace(options, dtype="auto", device="cpu", tokens=tokens))
