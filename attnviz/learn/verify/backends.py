"""A checkpoint in NumPy against torch: the same tokens, and the same attention weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from attnviz.attention.families import NotUnderstoodError
from attnviz.engine.capture import capture
from attnviz.errors import AttnvizError
from attnviz.learn.verify.examinee import Examinee, differences, furthest, score_spread
from attnviz.learn.verify.properties import Rounding
from attnviz.learn.verify.report import Backends, Check, ComparedNumber, exact
from attnviz.models.model import NumpyModel
from attnviz.models.resolve import LoadOptions, in_numpy, not_by_numpy, resolve
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.work import Work, about_tokens
from attnviz.records import Input, Tokens
from attnviz.texts import built_in_texts

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
    compared, weights = _run_both(examinee, ours, passages)
    measures = (exact("texts with other tokens", other, reason="ids and tokens agree"), weights)
    notes = [
        f"NumPy in {compared.dtypes['numpy']}, torch in {compared.dtypes['torch']}; "
        f"{compared.texts} texts, {compared.tokens:,} tokens",
        *([f"--dtype float32 allows {_MOST:g}"] if weights.tolerance.most > _MOST else []),
    ]
    return replace(_BACKEND, skipped=None, measures=measures, notes=tuple(notes)), compared


def _run_both(
    examinee: Examinee, ours: NumpyModel, passages: Sequence[Tokens]
) -> tuple[Backends, ComparedNumber]:
    """Return how far the attention weights of torch and NumPy differ: per head, and the largest."""
    info = examinee.info
    apart = np.zeros((info.layers, info.heads))
    spread = 1.0
    for tokens in passages:
        theirs, _ = examinee.observe(Input(tokens))
        spread = max(spread, score_spread(theirs))
        for layer in capture(ours, tokens, kind="self").layers:
            off = differences(theirs["self", layer.layer], layer.weights).max((1, 2))
            apart[layer.layer] = np.maximum(apart[layer.layer], off)
    worst, where = furthest((("self", layer), numbers) for layer, numbers in enumerate(apart))
    rounding = Rounding(info, max(map(len, passages)), examinee.rounds_in)
    tolerance = rounding.of_model(1.0 if rounding.half else spread, f" in {rounding.dtype}")
    if not rounding.half:
        tolerance = replace(tolerance, most=_MOST)
    dtypes = {"numpy": ours.info.dtype, "torch": info.dtype}
    compared = Backends(dtypes, len(passages), sum(map(len, passages)), apart)
    return compared, ComparedNumber("weights", worst, tolerance, where)


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
    work = Work(tokens + about_tokens(*texts))
    return in_numpy(resolve(name), replace(options, dtype="auto", device="cpu", work=work))
