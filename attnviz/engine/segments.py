"""Let a model read the second of two texts as such: BERT has an embedding for each of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from attnviz.models.model import Model
from attnviz.models.stack_model import StackModel
from attnviz.records import Tokens


@contextmanager
def reading_segments(model: Model, tokens: Tokens) -> Iterator[None]:
    """Let BERT tell the two texts of ``tokens`` apart inside this context, or their beginning."""
    if not tokens.segments:
        yield
    elif isinstance(model, StackModel):
        stack, before = model.stack, model.stack.segments
        stack.segments = np.asarray(tokens.ids), np.asarray(tokens.segments)
        try:
            yield
        finally:
            stack.segments = before
    else:
        with _in_torch(model, tokens):
            yield


@contextmanager
def _in_torch(model: Any, tokens: Tokens) -> Iterator[None]:
    import torch

    from attnviz.engine.hook_points import hooked

    trunk = model.model.base_model
    ids, segments = (torch.tensor(each) for each in (tokens.ids, tokens.segments))

    def told(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        read = options.get("input_ids", args[0] if args else None)
        if (
            read is None
            or read.shape[-1] > len(ids)
            or not (read.cpu() == ids[: read.shape[-1]]).all()
        ):
            return None
        types = segments[: read.shape[-1]].to(read.device).expand_as(read)
        return args, options | {"token_type_ids": types}

    if "token_type_ids" not in inspect.signature(trunk.forward).parameters:
        yield
        return
    with hooked(trunk.register_forward_pre_hook(told, with_kwargs=True)):
        yield
