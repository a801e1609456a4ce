"""Borrow a transformers model for one run: evaluation mode and another attention, then put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

if TYPE_CHECKING:
    from attnviz.models.attention_interface import PreTrainedModel

__all__ = ["borrowed", "implementations"]

# Threads that share a model, or models that share a config, take turns; all others run at once.
_locks: WeakValueDictionary[int, Any] = WeakValueDictionary()
_locks_guard = Lock()


_PLAIN = ("eager", "sdpa", None)
"""Implementations whose masks can be told; what others make can be had from eager as well."""


@contextmanager
def borrowed(model: PreTrainedModel, implementation: str | None = None) -> Iterator[None]:
    """Set every module of ``model`` to evaluation, and every config to ``implementation``.

    Experts in float64 run one by one, which alone has that type.
    None leaves each config its own where that is eager or sdpa, and makes it eager elsewhere.
    At exit, also after an exception, configs and modules are as they were.
    """
    modules, configs = list(model.modules()), _configs(model)
    with ExitStack() as held:
        for lock in _locks_of(sorted(configs)):
            held.enter_context(lock)
        found = {key: _implementations(config) for key, config in configs.items()}
        training = [module for module in modules if module.training]
        try:
            for module in training:
                module.training = False
            for key, config in configs.items():
                attention, experts = found[key]
                own = attention if attention in _PLAIN else "eager"
                wide = model.dtype == torch.float64  # grouped matrix products do not have it
                _set(config, implementation or own, "eager" if wide and experts else experts)
            yield
        finally:
            for key, config in configs.items():
                _set(config, *found[key])
            for module in training:
                module.training = True


def implementations(model: PreTrainedModel) -> set[str | None]:
    """What the configs of the model and of its parts name."""
    return {config._attn_implementation for config in _configs(model).values()}


def _implementations(config: Any) -> tuple[str | None, str | None]:
    """Of attention and of experts."""
    return config._attn_implementation, getattr(config, "_experts_implementation", None)


def _set(config: Any, attention: str | None, experts: str | None) -> None:
    # The public setters would pass the names on to sub-configs, here and when restoring.
    config._attn_implementation_internal = attention
    if experts is not None:
        config._experts_implementation_internal = experts


def _configs(model: PreTrainedModel) -> dict[int, Any]:
    """By ``id`` every config that some module of the model has."""
    found = [getattr(module, "config", None) for module in model.modules()]
    named = [config for config in found if hasattr(config, "_attn_implementation_internal")]
    return {id(config): config for config in named}


def _locks_of(keys: list[int]) -> list[Any]:
    """One lock per key, always in the same order so that two threads cannot wait for each other."""
    with _locks_guard:
        return [_locks.setdefault(key, RLock()) for key in keys]
