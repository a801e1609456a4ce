"""The functions that count costs and teach the mechanism; each has the name of its command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from attnviz.api.opening import in_own_modes, open_given, text_or_none
from attnviz.errors import UsageError
from attnviz.models.threads import threads_kept
from attnviz.options import keywords_checked
from attnviz.texts import texts_of

__all__ = ["params", "scaling", "sweep", "train", "verify"]

if TYPE_CHECKING:
    from attnviz.api.opening import AnyFiles, AnyHeads, AnyModel
    from attnviz.count.params.report import ParamsReport
    from attnviz.count.params.request import Dtype as CountedDtype
    from attnviz.learn.scaling.report import ScalingReport
    from attnviz.learn.sweep.report import SweepReport
    from attnviz.learn.train.report import TrainReport
    from attnviz.learn.verify.report import VerifyReport


@keywords_checked
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
    gpu: str | Sequence[str] = (),
    chunk: int = 2048,
    overhead: str = "1GiB",
    compare: str | Sequence[str] = (),
    formula: bool = False,
    per_layer: bool = False,
    revision: str | None = None,
    offline: bool = False,
) -> ParamsReport:
    """Count parameters, KV cache, FLOPs and memory of a model or of given sizes, exactly.

    model: a name, several to compare, or a loaded model; None for an architecture that ``d_model``,
        ``heads`` and the arguments after them describe.
    The options are those of ``attnviz params``; see ``ParamsRequest``.
    Raises UsageError (also a ValueError) for numbers that do not go together, LoadError or
    OfflineError for a name whose model cannot be read.
    """
    from attnviz.count.params import params as question
    from attnviz.count.params.request import NamedModel, ParamsRequest

    request = ParamsRequest.of(locals())
    if isinstance(model, str | os.PathLike):
        models = [NamedModel(os.fspath(model), shapes_first=True)]
    elif isinstance(model, Sequence):
        models = [NamedModel(os.fspath(name), shapes_first=True) for name in model]
    elif model is not None:
        loaded = open_given(model, None, reads=False)
        models = [NamedModel(loaded.info.name, loaded=loaded)]
    else:
        models = []
    return question.params(models, request)


@in_own_modes
def scaling(
    model: AnyModel | None = None,
    text: str | None = None,
    *,
    tokenizer: Any = None,
    d_k: str | None = None,
    seq: int | None = None,
    samples: int | None = None,
    activation: bool = False,
    layer: str | int | None = None,
    head: AnyHeads = None,
    truncate: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> ScalingReport:
    """Compare the softmax of the attention scores with and without the scale 1/√d_k.

    model: the one whose queries and keys are measured; None for random queries and keys of the
        sizes ``d_k``, such as ``"8,64,512"``. tokenizer: see ``capture``. text: built-in by
        default. activation: True returns ReLU, GELU, SiLU and gates as curves instead.
    The options are those of ``attnviz scaling``; see ``ScalingRequest``.
    Raises what ``capture`` raises, UnsupportedError if a model hides its queries and keys.
    """
    from attnviz.learn.scaling import scaling as question
    from attnviz.learn.scaling.request import ScalingRequest

    request = ScalingRequest.of(locals())
    if model is None and text is not None:
        raise UsageError("a text is for a model to read: give one, or leave the text out")
    read = texts_of(text_or_none(text)) or question.BUILT_IN
    work = question.work(read, request)
    opened = None if model is None else open_given(model, tokenizer, work)
    return question.scaling(opened, read, request)


@in_own_modes
def verify(
    model: AnyModel | None = None,
    text: str | None = None,
    *,
    tokenizer: Any = None,
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

    model: None for the library's own attention, of the sizes that ``d_model``, ``heads`` and the
        arguments after them describe. tokenizer: see ``capture``. text: a sentence by default.
    dtype: of the library's own attention. The options are those of ``attnviz verify``; see
        ``VerifyRequest``. The report's ``failed`` has the checks that failed.
    Raises what ``capture`` raises, UnsupportedError if the model does not take text.
    """
    from attnviz.learn.verify.request import VerifyRequest

    request = VerifyRequest.of(locals())
    read = text_or_none(text)
    if model is None:
        from attnviz.learn.verify.verify import verify_own

        if read is not None:
            raise UsageError("a text is for a model to read: give one, or leave the text out")
        return verify_own(request, dtype)
    from attnviz.learn.verify.loaded import verify_model

    if dtype != "auto":
        raise UsageError("dtype is that of the library's own attention: load the model in it")
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    return verify_model(open_given(model, tokenizer), read, request, name=name)


@keywords_checked
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

    heads: the numbers, separated by commas. task: ``induction`` (the default), ``copy`` or
        ``majority``. text: a file whose next characters are learned, in place of a task.
    steps: of each training. seeds: how many models for each number of heads, from the random seed
        ``seed`` on. layers, d_model: of every model.
    The options are those of ``attnviz sweep``; see ``SweepRequest``. Ctrl-C ends the training
    between two steps; the report then holds the models that are trained.
    Raises UsageError (also a ValueError) for options that do not go together, LoadError for a text
    that cannot be read.
    """
    from attnviz.learn.sweep import sweep as question
    from attnviz.learn.sweep.request import SweepRequest

    return question.sweep(SweepRequest.of(locals()), device=device)


@keywords_checked
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
    from attnviz.learn.train import train as question
    from attnviz.learn.train.request import TrainRequest

    return question.train(TrainRequest.of(locals()), device=device)
