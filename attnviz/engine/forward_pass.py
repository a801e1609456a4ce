"""What of a transformers model must run so that the wanted attention is computed, and no more."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from attnviz.engine.observer import Observer
from attnviz.errors import UnsupportedError, UsageError
from attnviz.models.foreign import running
from attnviz.records import Kind

if TYPE_CHECKING:
    from attnviz.models.attention_interface import PreTrainedModel

__all__ = ["ForwardPass", "plan_pass", "wants_any"]


_uncached: WeakSet[nn.Module] = WeakSet()


@dataclass(frozen=True)
class ForwardPass:
    """One run over one batch.

    model: the whole model, whose state is borrowed.
    module: the part of it that runs.
    inputs: what it is called with.
    kinds: the kinds of attention that it computes.
    queries, keys: the number of tokens on each axis of each kind.
    compare: whether what is observed may be held against a plain pass first.
    """

    model: PreTrainedModel
    module: nn.Module
    inputs: dict[str, Tensor]
    kinds: tuple[Kind, ...]
    queries: dict[Kind, int]
    keys: dict[Kind, int]
    compare: bool = True

    @property
    def batch(self) -> int:
        return self.inputs["input_ids"].shape[0]

    def run(self, **options: Any) -> Any:
        """Call the module for its attention alone; the vocabulary projection sees one token.

        Its key/value cache stays on: without it the same numbers are laid out differently in
        memory, and matrix products of another layout round differently.
        """
        if self.module in _uncached:
            options |= {"use_cache": False}
        with _short_vocabulary(self.module):
            return self.call(**options)

    def leave_cache_out(self) -> None:
        """From now on ``run`` the module without a cache."""
        _uncached.add(self.module)

    def call(self, **options: Any) -> Any:
        """Call the module as its user would; options that its signature lacks are left out."""
        options = {"return_dict": True} | options
        known = {name: value for name, value in options.items() if self.takes(name)}
        with running(self.model, torch.OutOfMemoryError):
            return self.module(**self.inputs, **known)

    def takes(self, option: str) -> bool:
        """Whether the module can be called with this keyword."""
        parameters = _parameters(self.module)
        return option in parameters or any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        )

    def check(self, kind: Kind, weights: Any) -> None:
        """Refuse weights that are not one matrix over the tokens per text and head."""
        expected = (self.batch, "heads", self.queries[kind], self.keys[kind])
        shape = tuple(getattr(weights, "shape", ()))
        if len(shape) != 4 or (shape[0], "heads", *shape[2:]) != expected:
            raise UnsupportedError(
                f"{type(self.model).__name__} does not weigh every token against every token: "
                f"expected weights (batch, heads, query, key) = "
                f"({', '.join(map(str, expected))}), got {shape}."
            )


def plan_pass(
    model: PreTrainedModel,
    observer: Observer,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    decoder_input_ids: Tensor | None,
) -> ForwardPass:
    """Choose the part to run: the trunk without its head, or the encoder alone where it suffices.

    Raises UnsupportedError for a model that does not read token ids, UsageError where decoder or
    cross attention is wanted and there is no decoder text.
    """
    if model.main_input_name != "input_ids":
        raise UnsupportedError(
            f"{type(model).__name__} reads {model.main_input_name}, not text: "
            "choose a model that reads token ids."
        )
    inputs = {"input_ids": input_ids.to(model.device)}
    if attention_mask is not None:
        inputs["attention_mask"] = attention_mask.to(model.device)
    source = input_ids.shape[1]
    # The encoder of an encoder–decoder may be opened alone, with the config of the whole.
    both = model.config.is_encoder_decoder and "decoder_input_ids" in _parameters(model)
    if not both:
        lengths: dict[Kind, int] = {"self": source}
        return ForwardPass(model, model.base_model, inputs, ("self",), lengths, lengths)
    if not (wants_any(observer, "decoder", model) or wants_any(observer, "cross", model)):
        lengths = {"encoder": source}
        return ForwardPass(model, model.get_encoder(), inputs, ("encoder",), lengths, lengths)
    if decoder_input_ids is None:
        raise UsageError(
            f"{type(model).__name__} has decoder and cross attention only over a decoder text: "
            "give one, or ask for the encoder alone."
        )
    target = decoder_input_ids.shape[1]
    return ForwardPass(
        model,
        model.base_model,
        inputs | {"decoder_input_ids": decoder_input_ids.to(model.device)},
        ("encoder", "decoder", "cross"),
        {"encoder": source, "decoder": target, "cross": target},
        {"encoder": source, "decoder": target, "cross": source},
    )


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(module.forward).parameters


@contextmanager
def _short_vocabulary(module: Any) -> Iterator[None]:
    """Let the vocabulary projection see one token where the trunk cannot be run without it.

    The weights do not depend on the logits, and the projection takes a third of a small model's
    time. Other threads that use the module meanwhile get all of their logits.
    """
    find = getattr(module, "get_output_embeddings", None)  # a bare stack may have none
    head = find() if find else None
    if not isinstance(head, nn.Linear):
        yield
        return
    thread = get_ident()

    def last_token(head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if get_ident() != thread or len(args) != 1 or args[0].ndim != 3:
            return None
        return (args[0][:, -1:],)

    hook = head.register_forward_pre_hook(last_token)
    try:
        yield
    finally:
        hook.remove()


def wants_any(observer: Observer, kind: Kind, module: nn.Module) -> bool:
    """Whether the observer wants some layer of this kind of ``module``."""
    # No stack has more layers than modules, whatever its config calls their number; where layers
    # share one module, the config's own count is the larger.
    config: Any = getattr(module, "config", None)
    layers = max(sum(1 for _ in module.modules()), getattr(config, "num_hidden_layers", None) or 0)
    return any(observer.wants(kind, layer) for layer in range(layers))
