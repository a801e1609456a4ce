"""Verify a loaded model: open it as an examinee, then prove one property after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from attnviz.attention.module import MultiHeadAttention
from attnviz.attention.torch_decoder import TorchDecoder
from attnviz.errors import UnsupportedError
from attnviz.models.bundled import Bundled
from attnviz.models.model import Model
from attnviz.models.own import OwnAttention
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Input, Tokens
from attnviz.verify import observing, properties
from attnviz.verify.examinee import Examinee, Outputs, Reference
from attnviz.verify.naive_loop import naive_attention
from attnviz.verify.native_examinee import NativeExaminee
from attnviz.verify.records import Check
from attnviz.verify.rounding import Rounding
from attnviz.verify.transformers_examinee import TransformersExaminee

__all__ = ["model_checks", "open_examinee", "parameter_count"]

_OTHER_WORDS = 32


def model_checks(
    examinee: Examinee, on_check: Callable[[str], None] = lambda name: None
) -> Iterator[Check]:
    """Every property of a model, in the order in which they are shown.

    on_check: called with the name of each before it is proven.
    Raises UnsupportedError where the architecture's attention cannot be observed.
    """
    on_check("a first run")
    before = examinee.state()
    maps, outputs = examinee.capture(examinee.passage), examinee.outputs(examinee.passage)
    keys = max(weights.shape[-1] for weights in maps.values())
    rounding = Rounding(
        examinee.info, keys, examinee.rounds_in, 2 if len(examinee.kinds) > 1 else 1
    )
    proofs: dict[str, Callable[[], Check]] = {
        "rows sum to one": partial(properties.rows_sum, examinee, maps, rounding),
        "causality": partial(properties.causality, examinee, maps, outputs, rounding),
        "heads sum to the output": partial(properties.heads_sum, examinee, rounding),
        "weights as computed plainly": partial(observing.eager_weights, examinee, maps, rounding),
        "outputs kept": partial(observing.outputs_kept, examinee, outputs, rounding),
        "dropout off": partial(observing.dropout_off, examinee, maps),
        "padding ignored": partial(observing.padding_ignored, examinee, maps, outputs, rounding),
    }
    for name, proof in proofs.items():
        on_check(name)
        yield proof()
    on_check("model left unchanged")
    yield observing.unchanged(before, examinee.state())


def parameter_count(model: Model) -> int:
    """The numbers in a loaded model's parameters, tied ones once."""
    if isinstance(model, TransformersModel):
        return sum(weight.numel() for weight in model.model.parameters())
    return sum(weight.numel() for weight in _twin(model).parameters())


def open_examinee(model: Model, tokens: Tokens, target: Tokens | None = None) -> Examinee:
    """A loaded model and the tokens that it reads, ready to be verified.

    Raises UnsupportedError for a model that does not read text.
    """
    passage = Input(tokens, target)
    if isinstance(model, TransformersModel):
        return TransformersExaminee(model, passage)
    twin = _twin(model)
    if isinstance(model, Bundled) and isinstance(twin, TorchDecoder):
        return _bundled(model, twin, passage)
    if isinstance(model, OwnAttention) and isinstance(twin, MultiHeadAttention):
        return _own(model, twin, passage)
    raise UnsupportedError(f"no way to verify a {type(model).__name__}")


def _twin(model: Model) -> TorchDecoder | MultiHeadAttention:
    """The same numbers as a torch module."""
    if isinstance(model, Bundled):
        checkpoint = model.checkpoint
        decoder = TorchDecoder.from_llama(checkpoint.config, checkpoint.tensors)
        return decoder.to(getattr(torch, model.info.dtype)).eval().requires_grad_(False)
    if isinstance(model, OwnAttention):
        ours, shape = model.attention, model.attention.shape
        twin = MultiHeadAttention(
            shape.d_model,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            causal=ours.causal,
            score=ours.score,
        )
        twin.load_state_dict(_state(model))
        return twin.eval().requires_grad_(False)
    raise UnsupportedError(f"no way to verify a {type(model).__name__}")


def _state(model: OwnAttention) -> dict[str, Tensor]:
    ours = model.attention
    named = {
        f"{name}_projection.{part}": getattr(ours, f"{name}_{part}")
        for name in ("query", "key", "value", "output")
        for part in ("weight", "bias")
    } | {"score_weight": ours.score_weight}
    return {name: torch.from_numpy(array) for name, array in named.items() if array is not None}


def _bundled(model: Bundled, twin: TorchDecoder, passage: Input) -> Examinee:
    def run(ids: tuple[int, ...], mask: Tensor | None) -> Tensor:
        logits: Tensor = twin(torch.tensor([ids]), mask)
        return logits

    def in_numpy(ids: tuple[int, ...]) -> Outputs:
        return model.decoder.logits(ids).astype("float64")

    def others() -> tuple[Reference, ...]:
        from attnviz.models.huggingface import load_transformers  # takes seconds

        directory = str(model.checkpoint.directory)
        llama = load_transformers(directory, dtype=model.info.dtype, offline=True)
        (eager,) = TransformersExaminee(llama, passage).references()
        return (Reference(f"{llama.info.architecture}, eager", False, eager.maps),)

    vocabulary = model.decoder.config.vocabulary
    return NativeExaminee(
        model, passage, twin, run, in_numpy, others, causal=True, vocabulary=vocabulary
    )


def _own(model: OwnAttention, twin: MultiHeadAttention, passage: Input) -> Examinee:
    def run(ids: tuple[int, ...], mask: Tensor | None) -> Tensor:
        output: Tensor = twin(torch.from_numpy(model.embed(ids))[None], mask=mask)
        return output

    def in_numpy(ids: tuple[int, ...]) -> Outputs:
        return model.attention(model.embed(ids))[0].astype("float64")

    def others() -> tuple[Reference, ...]:
        words = model.embed(passage.ids)[None]
        tokens = len(passage.ids)
        visible = torch.ones(1, tokens, tokens, dtype=torch.bool)
        _, weights = naive_attention(
            {name: tensor.numpy() for name, tensor in _state(model).items()},
            words,
            words,
            (visible.tril() if model.causal else visible).numpy(),
            heads=model.info.heads,
            kv_heads=model.info.kv_heads,
        )
        return (Reference("naive loop", False, {("self", 0): weights[0]}),)

    # Words are numbered as they come: any number of them has an embedding.
    vocabulary = max(passage.ids) + 1 + _OTHER_WORDS
    return NativeExaminee(
        model, passage, twin, run, in_numpy, others, causal=model.causal, vocabulary=vocabulary
    )
