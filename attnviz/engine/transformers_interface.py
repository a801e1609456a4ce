"""Observe the attention of any transformers model that reads text, without knowing its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnviz.engine.eager_fallback import observe_reported
from attnviz.engine.forward_pass import plan_pass
from attnviz.engine.observer import Observer
from attnviz.engine.registered_attention import observe_registered
from attnviz.models.attention_interface import PreTrainedModel, uses_interface
from attnviz.records import Kind

__all__ = ["observe_transformers"]


@torch.inference_mode()
def observe_transformers(
    model: PreTrainedModel,
    observer: Observer,
    input_ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    decoder_input_ids: Tensor | None = None,
    compare: bool = True,
) -> None:
    """Run ``model`` once in evaluation mode and hand ``observer`` each wanted layer's weights.

    input_ids, attention_mask: (batch, tokens); decoder_input_ids: (batch, target tokens), needed
    where an encoder–decoder's ``decoder`` or ``cross`` attention is wanted. The weights
    (batch, heads, query, key) equal eager ``output_attentions`` bit for bit; only past 512 × 512
    cells, with layers left out, may they differ by the rounding of fused attention. Rows and
    columns of padding mean nothing. Layers are numbered as the model numbers them.

    The vocabulary projection does not run, nor does a decoder of which nothing is wanted. The
    model is left exactly as it was, also after an exception. The first text of a length class runs
    a second time, plainly, and both must end alike; not so without ``compare``.

    Raises UnsupportedError where the weights cannot be had or are not the model's own, UsageError
    where the decoder text is missing.
    """
    planned = plan_pass(model, observer, input_ids, attention_mask, decoder_input_ids)
    forward = replace(planned, compare=compare)
    once = _Once(observer)
    if not (uses_interface(model) and observe_registered(forward, once)):
        observe_reported(forward, once)


class _Once:
    """Passes each layer on once, even if a second way of observing starts from the beginning."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._seen: set[tuple[Kind, int]] = set()

    def wants(self, kind: Kind, layer: int) -> bool:
        return (kind, layer) not in self._seen and self._observer.wants(kind, layer)

    def observe(self, kind: Kind, layer: int, weights: Any) -> None:
        self._seen.add((kind, layer))
        self._observer.observe(kind, layer, weights)
