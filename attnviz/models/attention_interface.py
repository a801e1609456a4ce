"""The little of transformers that observing attention needs, kept apart from loading models.

A modeling file calls ``ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)`` with
the name in its config, so a function registered under a new name is called in place of its own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask
from transformers.modeling_utils import (
    ALL_ATTENTION_FUNCTIONS,
    AttentionInterface,
    PreTrainedModel,
)

__all__ = [
    "AttentionFunction",
    "PreTrainedModel",
    "eager_attention",
    "register_attention",
    "sdpa_attention",
    "uses_interface",
    "without_choices",
]

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]
"""``(module, query, key, value, mask, **options)`` to output (batch, query, heads, dims) and
weights (batch, heads, query, key), or None where they are not computed."""

_CHOICES = {
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
    *("experts_implementation", "_experts_implementation", "_experts_implementation_internal"),
    *("use_kernels", "kernel_config", "transformers_weights"),
}
"""Fields by which a config could name code for the library to fetch, or another file of weights."""

_EAGER = "eager_attention_forward"
_FUNCTIONS = "ALL_ATTENTION_FUNCTIONS"


def register_attention(name: str, function: AttentionFunction, *, fused_mask: bool = False) -> None:
    """Make ``function`` the attention of every config that names the implementation ``name``.

    fused_mask: give it the masks of fused attention: boolean, or none at all where the module's
        own ``is_causal`` says enough, so that a long text needs no matrix for it.
    """
    AttentionInterface.register(name, function)
    # A name without a mask function of its own gets no mask at all, not even a causal one. The
    # eager mask is additive (batch, 1, query, key), which sdpa takes as well.
    AttentionMaskInterface.register(name, sdpa_mask if fused_mask else eager_mask)


def uses_interface(model: PreTrainedModel) -> bool:
    """Whether the model's file looks up its attention function by the name in its config."""
    return bool(model._can_set_attn_implementation())


def without_choices(config: Any) -> Any:
    """The config, in which nothing at any depth chooses code: the library's own defaults hold.

    A hub name in ``attn_implementation`` would be fetched and imported by the package ``kernels``,
    whatever ``local_files_only`` and ``trust_remote_code`` say.
    """
    if isinstance(config, PreTrainedConfig):
        config._attn_implementation = None  # of its parts too
        config._experts_implementation = None
        without_choices(vars(config))
    elif isinstance(config, dict):
        for name in _CHOICES & config.keys():
            if name.endswith("_internal"):
                config[name] = None
            else:
                del config[name]
        for part in config.values():
            without_choices(part)
    elif isinstance(config, list | tuple):
        for part in config:
            without_choices(part)
    return config


def eager_attention(module: nn.Module) -> AttentionFunction | None:
    """The function that computes this attention module's weights in its own file, or None.

    Their bodies differ (softcap, sinks, position bias), so it must be that file's and no other.
    """
    for cls in type(module).__mro__:
        forward = inspect.unwrap(cls.__dict__.get("forward", object()))
        if inspect.isfunction(forward):
            # A file with several such functions gives the others a prefix.
            for name in forward.__code__.co_names:
                if name.endswith(_EAGER) and callable(forward.__globals__.get(name)):
                    return _as_attention(forward.__globals__[name])
    for cls in type(module).__mro__:
        function = getattr(sys.modules.get(cls.__module__), _EAGER, None)
        if callable(function):
            return _as_attention(function)
    return None


def sdpa_attention(module: nn.Module) -> AttentionFunction:
    """The fused function of this module; its file may replace the common one by its own."""
    for cls in type(module).__mro__:
        functions = getattr(sys.modules.get(cls.__module__), _FUNCTIONS, None)
        if functions is not None:
            return _as_attention(functions["sdpa"])
    return _as_attention(ALL_ATTENTION_FUNCTIONS["sdpa"])


def _as_attention(function: Any) -> AttentionFunction:
    typed: AttentionFunction = function
    return typed
