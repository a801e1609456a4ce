"""Five checks of a loaded model under observation, as rows of the table of ``attnviz verify``.

Four are made on the model as transformers runs it; the last holds NumPy against that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnviz.attention.families import NotUnderstoodError
from attnviz.draw.numbers import counted
from attnviz.engine.attention_calls import borrowed
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import Choice, encoded, require_maps, target_tokens
from attnviz.engine.head_run import HeadRun
from attnviz.engine.hook_points import hooked
from attnviz.engine.observer import on_host, to_numpy
from attnviz.engine.projections import find_output_projections
from attnviz.errors import AttnvizError, UnsupportedError, UsageError
from attnviz.learn.verify.report import Checked, VerifyReport, worst
from attnviz.learn.verify.request import VerifyRequest
from attnviz.models.bundled import Bundled
from attnviz.models.huggingface import load_transformers
from attnviz.models.model import Model, NumpyModel
from attnviz.models.own import OwnAttention
from attnviz.models.resolve import LoadOptions, in_numpy, not_by_numpy, resolve
from attnviz.models.split import require_numbers, whole_weight
from attnviz.models.threads import suit
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.work import Work
from attnviz.records import Floats, Input, Kind

SENTENCE = "The cat sat on the mat because it was tired."
"""The text that a model reads if none is given."""

EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The machine epsilon of each dtype: the gap from 1 to the next number."""

_STORED = 12  # results that a layer stores one after another: norms, scores, sums …
_MOST = 1e-5  # largest allowed difference in float32, relative to the largest number
_Layers: TypeAlias = Mapping[tuple[Kind, int], Any]
"""Numbers (head, query, key) by kind of attention and layer."""


def verify_model(
    model: Model,
    text: str | None,
    request: VerifyRequest,
    *,
    name: str | None = None,
    options: LoadOptions | None = None,
) -> VerifyReport:
    """Check a model's attention and its observation over a text; return the report.

    text: the text of the runs, also of a decoder; None for a built-in sentence.
    name, options: how it was loaded, if known; NumPy opens it again and is left out otherwise.
    Raises UsageError if a text or options do not fit or the model is the library's own attention,
    UnsupportedError if its attention cannot be observed.
    """
    info = model.info
    request.refuse_own_options(name or info.name)
    if isinstance(model, OwnAttention):
        raise UsageError(
            f"{info.name!r} is attnviz's own attention, which is compared with others if no "
            "model is given: leave it out"
        )
    read, cut = (SENTENCE, True) if text is None else (text, request.truncate)
    tokens = encoded(model, read, cut)
    advice = "shorten the text, or add --truncate"
    require_maps(info.layers * info.heads, len(tokens), len(tokens), advice)
    theirs, ours = _by_both(model, name, options or LoadOptions(), len(tokens))
    suit(model)  # torch may have been imported only now
    require_numbers(theirs.model)
    target = None
    if "decoder" in theirs.kinds:
        target = target_tokens(theirs, tokens, Choice(target=read, truncate=cut))
    run = ObservedRun(theirs, Input(tokens, target))
    return VerifyReport(
        dtype=info.dtype,
        rounds_in=run.dtype,
        epsilon=EPSILON[run.dtype],
        numbers=(*run.checks(), *run.against_numpy(ours, read)),
        model=info,
        text=read,
        tokens=tuple(len(part) for part in (tokens, target) if part is not None),
    )


def _by_both(
    model: Model, name: str | None, options: LoadOptions, tokens: int
) -> tuple[TransformersModel, NumpyModel | str]:
    """Return a model as transformers runs it and as NumPy does, or why NumPy does not run it.

    name, options: how it was loaded, name None if unknown. tokens: how many will be run.
    Raises UnsupportedError if transformers does not run it, or if NumPy was asked to and cannot.
    """
    if isinstance(model, Bundled):
        directory = str(model.checkpoint.directory)
        return load_transformers(
            directory, LoadOptions(dtype=model.info.dtype, offline=True)
        ), model
    if not isinstance(model, TransformersModel):
        raise UnsupportedError(f"no way to verify a {type(model).__name__}")
    if options.backend == "torch":
        return model, "left out by --backend torch"
    if name is None:
        return model, "the model is loaded already, and NumPy reads files"
    loading = replace(options, dtype="auto", device="cpu", work=Work(tokens))
    try:
        return model, in_numpy(resolve(name), loading)
    except (NotUnderstoodError, AttnvizError) as error:
        if options.backend == "numpy":
            raise not_by_numpy(name, str(error)) from error
        return model, str(error)


class ObservedRun:
    """A transformers model that was run over a text while it was observed.

    dtype: that of its least exact steps, from which tolerances are derived. Half-precision types
    sum in float32, so only stored results are rounded to them; else every term of a sum counts.
    Raises UnsupportedError if its attention cannot be observed.
    """

    def __init__(self, model: TransformersModel, given: Input) -> None:
        self._model, self._given, self._info = model, given, model.info
        # Many transformers models compute the softmax or positions in float32 in any dtype.
        self.dtype = "float32" if self._info.dtype == "float64" else self._info.dtype
        self._half = self.dtype != "float32"
        self._joined: dict[int, tuple[Tensor, ...]] = {}
        runs = {kind: self._observed(kind) for kind in reversed(model.kinds)}
        self._first = runs[model.kinds[0]]  # whose output projections are known, and ran last
        self._maps = {(kind, at): seen for kind in runs for at, seen in runs[kind].weights.items()}
        masks = {(kind, at): mask for kind in runs for at, mask in runs[kind].masks.items()}
        self._hidden = {at: ~on_host(mask) for at, mask in masks.items() if mask is not None}
        self._keys = max(weights.shape[-1] for weights in self._maps.values())

    @torch.inference_mode()
    def _observed(self, kind: Kind) -> HeadRun:
        """Run the model, and keep what enters and leaves the output projection of each layer."""

        def leave(layer: int, axis: int, module: Any, args: Any, left: Tensor) -> None:
            bias = torch.zeros(1) if module.bias is None else module.bias
            matrix = whole_weight(module).movedim(axis, 0)
            self._joined[layer] = args[0], matrix, bias[None], left

        run, _ = backend_of(self._model).open_heads(kind, self._given, causal=True)
        with ExitStack() as hooks:
            with suppress(UnsupportedError):
                for layer, projection in find_output_projections(self._model).items():
                    if projection.plain:
                        module = self._model.model.get_submodule(projection.module)
                        watch = module.register_forward_hook(partial(leave, layer, projection.axis))
                        hooks.enter_context(hooked(watch))
            return run(self._given)

    def checks(self) -> Iterator[Checked]:
        """Yield the checks of the observed attention, such as that rows sum to one."""
        named = partial(Checked, "", "rows sum to one", claim="of each query's weights")
        off = {at: weights.sum(-1, dtype=np.float64) - 1 for at, weights in self._maps.items()}
        if any(name.endswith("sinks") for name, _ in self._model.model.named_parameters()):
            named = partial(named, claim="or less: a learned sink")
            off = {at: np.maximum(total, 0) for at, total in off.items()}
        yield named(number="row sums", **_furthest(off), **self._within(1.0, terms=self._keys))
        named = partial(Checked, "", "hidden keys", claim="get no weight at all")
        weights = {at: np.where(hidden, self._maps[at], 0) for at, hidden in self._hidden.items()}
        if any(hidden.any() for hidden in self._hidden.values()):
            none = "masked means none at all"
            yield named(number="weights", reason=none, **_furthest(weights))
        else:
            yield named(skipped="no mask hides a key of this text")
        yield self._head_sums()
        named = partial(Checked, "", "plain pass", claim="has the same logits")
        if (logits := self._first.logits) is None:
            yield named(skipped="this model has no logits of words")
            return
        opened = backend_of(self._model).open_patchable(self._model.kinds[0], self._given)
        with borrowed(self._model.model), torch.inference_mode():
            plain = to_numpy(opened.run(self._given))[0]
        apart = _apart(logits, plain)
        yield named(number="logits", difference=apart, **self._within(_largest(plain)))

    def _head_sums(self) -> Checked:
        """Return the check that each module's output is the sum of its heads."""
        named = partial(Checked, "", "heads sum to the output", claim="Σ_h z_h W_O^h + b_O")
        sums, outputs = [], self._first.outputs
        for layer, heads in outputs.items() if self._joined.keys() >= outputs.keys() else ():
            entered, matrix, bias, left = (
                tensor.detach().flatten(0, -2).double().cpu().numpy()
                for tensor in self._joined[layer]
            )
            merged = heads.transpose(1, 0, 2).reshape(heads.shape[1], -1)
            if not np.array_equal(entered, merged, equal_nan=True):
                return named(skipped="a gate or a norm stands between the heads and their sum")
            by_head = matrix.reshape(*heads.shape[::2], -1)
            parts = np.einsum("htd,hdw->htw", heads, by_head, dtype=np.float64)
            largest = _largest(np.abs(parts).sum(0) + np.abs(bias))
            within = self._within(largest, terms=len(matrix) + 1)
            apart = _apart(parts.sum(0) + bias, left)
            sums.append(named(number="outputs", difference=apart, where=f"L{layer}", **within))
        # Modules differ in size: the worst is the one with the largest share of its tolerance.
        return worst(sums) if sums else named(skipped="what joins its heads is not known")

    def against_numpy(self, ours: NumpyModel | str, text: str) -> Iterator[Checked]:
        """Yield the check that NumPy gives the tokens, weights and logits that torch gives.

        ours: the model as NumPy runs it, or why it does not. text: that was run.
        """
        named = partial(Checked, "", "NumPy backend", claim="gives what torch gives")
        if isinstance(ours, str):
            yield named(skipped=ours)
            return
        length = len(self._given.ids)
        read = {model.encode(text, length).ids for model in (self._model, ours)}
        yield named(number="other tokens", difference=len(read) - 1, reason="ids agree")
        own = backend_of(ours).open_heads("self", self._given, causal=True)[0](self._given)
        theirs = self._first
        apart: _Layers = {
            ("self", at): seen - theirs.weights[at] for at, seen in own.weights.items()
        }
        # An error of a score becomes a relative error of its weight, and larger scores round more.
        positive = np.concatenate([seen[seen > 0] for seen in own.weights.values()])
        spread = 1.0 if self._half else max(1.0, -math.log(positive.min(initial=1.0)))
        yield named(number="weights", **_furthest(apart), **self._within(spread, limit=_MOST))
        if own.logits is not None and theirs.logits is not None:
            largest = _largest(own.logits)
            within = self._within(largest, limit=_MOST * largest)
            off = _apart(own.logits, theirs.logits)
            yield named(number="logits", difference=off, **within)

    def _within(self, largest: float, *, terms: int = 0, limit: float = math.inf) -> dict[str, Any]:
        """Return what rounding allows of a number that went through all layers, or of one sum.

        largest: the largest absolute number that is rounded. terms: how many are summed; 0 for all
        layers. limit: the most in float32.
        """
        info, stacks = self._info, 1 if self._given.target is None else 2
        # Projections in and out and a feed-forward part four times as wide.
        roundings = terms or _STORED + (6 * info.heads + 1) * info.head_dim + self._keys
        roundings = (2 if terms else _STORED) if self._half else roundings
        layers = 1 if terms else info.layers * stacks
        sums = "one sum" if terms else counted(layers, "layer")
        return {
            "epsilon": EPSILON[self.dtype],
            "roundings": layers * roundings,
            "largest": largest,
            "reason": f"{sums} × {roundings:,} roundings",
            "limit": math.inf if self._half else limit,
        }


def _largest(numbers: Floats) -> float:
    return max(1.0, float(np.abs(np.nan_to_num(numbers)).max()))


def _apart(first: Floats, second: Floats) -> float:
    return float(np.abs(first.astype(np.float64) - second).max())


def _furthest(numbers: _Layers) -> dict[str, Any]:
    """Return the largest absolute number of all heads and its head; NaN counts as the largest."""
    peaks = {
        (kind, layer, head): float(np.abs(values).max())
        for (kind, layer), heads in numbers.items()
        for head, values in enumerate(heads)
    }
    kind, layer, head = at = max(peaks, key=lambda at: (math.isnan(peaks[at]), peaks[at]))
    where = f"L{layer}H{head}" + ("" if kind == "self" else f" {kind}")
    return {"difference": peaks[at], "where": where if peaks[at] else ""}
