"""Makes the report of ``attnviz verify``, for the library's own attention or a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

import numpy as np

from attnviz.count.params.find_spec import find_spec
from attnviz.count.params.request import spec_from_options
from attnviz.engine.capture import Choice, encoded, require_maps, target_tokens
from attnviz.errors import AttnvizError, UnsupportedError, UsageError
from attnviz.learn.verify.backends import backend_check
from attnviz.learn.verify.examinee import Examinee
from attnviz.learn.verify.own import own_checks
from attnviz.learn.verify.properties import EPSILON, model_checks
from attnviz.learn.verify.report import Check, ComputationStep, Sizes, VerifyReport, exact
from attnviz.learn.verify.request import VerifyRequest
from attnviz.learn.verify.steps import attention_steps, steps_check
from attnviz.learn.verify.transformers import TransformersExaminee
from attnviz.learn.verify.twins import BundledExaminee, OwnExaminee
from attnviz.models.bundled import Bundled
from attnviz.models.memory import require_room
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.own import OwnAttention, check_sizes
from attnviz.models.resolve import LoadOptions
from attnviz.models.threads import suit, use_threads
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Input, Tokens

SENTENCE = "The cat sat on the mat because it was tired."
"""The text that a model reads if none is given."""

_BATCH = 2
_MORE_KEYS = 4
"""Number of keys of cross-attention beyond the queries."""

_COPIES = 12
"""Number of weight arrays in memory while one case is compared."""

_COUNTED = "the model has as many parameters as attnviz params counts"

Tell = Callable[[str], None]
"""Called with words for the current activity."""


def verify_own(
    request: VerifyRequest, dtype: str = "float32", *, tell: Tell = lambda words: None
) -> VerifyReport:
    """Compare the library's own attention with other implementations; return the report.

    dtype: ``float32`` or ``float64``; ``auto`` is float32. tell: is called with a string on the
        current activity. Raises UsageError if options do not fit or the memory is too small.
    """
    request.refuse_model_options()
    sizes = _sizes(request)
    if dtype not in ("auto", "float32", "float64"):
        raise UsageError(
            f"the library's own attention is verified in float32 or float64, got --dtype {dtype}"
        )
    dtype = "float32" if dtype == "auto" else dtype
    use_threads(1)
    cases: dict[str, str] = {}

    def on_case(name: str, words: str) -> None:
        cases[name] = words
        tell(f"comparing: {name}")

    checks = own_checks(sizes, dtype, request.keras, lambda case: on_case(case.name, case.words))
    steps: tuple[ComputationStep, ...] = ()
    causal = request.causal is not False
    if request.steps:
        plain = replace(sizes, kv_heads=request.kv_heads)
        steps = attention_steps(plain, dtype, causal)
        checks = (steps_check(plain, dtype, causal, steps), *checks)
        cases = {"steps": "the steps against NumPy in one call"} | cases
    libraries = ["numpy", "torch"]
    if any(check.against.startswith("keras.") and check.measures for check in checks):
        libraries.append("keras")
    return VerifyReport(
        dtype=dtype,
        rounds_in=dtype,
        epsilon=float(np.finfo(dtype).eps),
        checks=checks,
        sizes=sizes,
        cases=cases,
        steps=steps,
        causal=causal,
        versions={name: version(name) for name in libraries},
    )


def _sizes(request: VerifyRequest) -> Sizes:
    """Return the requested sizes with defaults, which are smaller for steps.

    Raises UsageError if the heads do not divide the width or the memory is too small.
    """
    usual = (4, 2, 3) if request.steps else (64, 8, 7)
    given = (request.d_model, request.heads, request.seq)
    d_model, heads, tokens = (
        default if one is None else one for one, default in zip(given, usual, strict=True)
    )
    check_sizes(d_model, heads, request.kv_heads, None)
    # The grouped case has the fewest key/value heads, above one if possible; one head has none.
    fewest = [part for part in range(1, heads) if heads % part == 0][:2]
    usual_kv = fewest[-1] if fewest else None
    kv_heads = usual_kv if request.kv_heads is None else request.kv_heads
    keys = tokens + _MORE_KEYS
    require_room(
        "these sizes take about",
        8 * (_COPIES * _BATCH * heads * tokens * keys + 12 * d_model * d_model),
        "choose a smaller --seq or --d-model",
    )
    return Sizes(
        d_model=d_model,
        heads=heads,
        kv_heads=kv_heads,
        tokens=tokens,
        keys=keys,
        batch=_BATCH,
        seed=request.seed,
    )


def verify_model(
    model: Model,
    text: str | None,
    request: VerifyRequest,
    *,
    name: str | None = None,
    options: LoadOptions | None = None,
    tell: Tell = lambda words: None,
) -> VerifyReport:
    """Check the properties of a model's attention, and compare its backends; return the report.

    text: the text of the runs; None for a built-in sentence.
    name, options: how it was loaded, if known; the comparison with NumPy and the parameter count
        open it again and are skipped otherwise.
    tell: is called with a string on the current activity.
    Raises UsageError if a text or options do not fit, UnsupportedError if the model takes no text.
    """
    options = options or LoadOptions()
    request.refuse_own_options(name or model.info.name)
    read = SENTENCE if text is None else text
    tokens, target = _read(model, read, request.target, request.truncate or text is None)
    examinee = open_examinee(model, tokens, target)
    checks = list(model_checks(examinee, lambda check: tell(f"checking: {check}")))
    backends = None
    if isinstance(model, TransformersModel):
        tell("running it in NumPy")
        check, backends = backend_check(examinee, model, name, options)
        checks.append(check)
    written = read if request.target is None else request.target
    return VerifyReport(
        dtype=model.info.dtype,
        rounds_in=examinee.rounds_in,
        epsilon=EPSILON[examinee.rounds_in],
        checks=(*checks, count_check(examinee, model, name, options)),
        model=model.info,
        text=read,
        target=None if target is None else written,
        tokens=tuple(len(ids) for ids in (tokens, target) if ids is not None),
        backends=backends,
    )


def _read(
    model: Model, text: str, target: str | None, truncate: bool
) -> tuple[Tokens, Tokens | None]:
    """Return the tokens of a text, and those of a decoder's target or else of the same text."""
    tokens = encoded(model, text, truncate)
    heads = model.info.layers * model.info.heads
    require_maps(heads, len(tokens), len(tokens), "shorten the text, or add --truncate")
    if not isinstance(model, TwoStackModel) or "decoder" not in model.kinds:
        if target is not None:
            raise UsageError(f"--target is a decoder's text: {model.info.name!r} has one stack")
        return tokens, None
    choice = Choice(target=text if target is None else target, truncate=truncate)
    return tokens, target_tokens(model, tokens, choice)


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


def count_check(examinee: Examinee, model: Model, name: str | None, options: LoadOptions) -> Check:
    """Check that the model has as many parameters as ``attnviz params`` counts.

    examinee: the model to verify. name, options: how it was loaded, name None if unknown.
    The check is skipped if the config does not allow a count.
    """
    counted = Check("", "parameter count", claim=_COUNTED, skipped="")
    try:
        expected, command = _expected(model, name, options)
    except AttnvizError as error:
        return replace(counted, skipped=str(error))
    loaded = examinee.parameters
    measure = exact("difference", abs(loaded - expected), reason="whole numbers")
    notes = (f"{loaded:,} in the loaded model, {expected:,} by {command}",)
    return replace(counted, skipped=None, measures=(measure,), notes=notes)


def _expected(model: Model, name: str | None, options: LoadOptions) -> tuple[int, str]:
    """Return the parameter count, and the command that shows it."""
    if isinstance(model, OwnAttention):
        shape = model.attention.shape
        sizes = {"d_model": shape.d_model, "heads": shape.heads, "kv_heads": shape.kv_heads}
        words = " ".join(f"--{key.replace('_', '-')} {size}" for key, size in sizes.items())
        spec = spec_from_options(
            d_model=shape.d_model, heads=shape.heads, kv_heads=shape.kv_heads, bias=True
        )
        return spec.total, f"attnviz params {words} --bias"
    if name is None:
        raise UnsupportedError("the model is loaded already, and params counts files")
    found = find_spec(name, revision=options.revision, offline=options.offline)
    command = f"attnviz params --model {name}"
    if found.spec is not None:
        return found.spec.total, command
    from attnviz.count.params.meta_count import count_on_meta  # takes seconds

    made = count_on_meta(found.config, name=name, architecture=found.architecture)
    return made.total, command
