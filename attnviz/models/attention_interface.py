"""Replaces the attention function of transformers models while they are observed.

A modeling file calls ``ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)`` with
the name in its config. While a run is observed, this call is answered here, in its thread alone:
the name in the config stays, so that whatever a file or a mask decides by that name stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig
from transformers.modeling_utils import AttentionInterface
from transformers.modeling_utils import PreTrainedModel as PreTrainedModel  # here it gets its type

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]
"""``(module, query, key, value, mask, **options)`` to output (batch, query, heads, dims) and
weights (batch, heads, query, key), or None if they are not computed."""

_CHOICES = {
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
    *("experts_implementation", "_experts_implementation", "_experts_implementation_internal"),
    *("use_kernels", "kernel_config", "transformers_weights"),
}
"""Config fields that could name code for the library to download, or another file of weights."""


@dataclass(frozen=True)
class FoundAttention:
    """The two attention functions between which a modeling file chooses.

    own: the function that its config names.
    eager: the function of its own file that computes attention weights. These functions differ
        between files (softcap, sinks, position bias), so it must be that file's.
    """

    own: AttentionFunction
    eager: AttentionFunction

    @property
    def is_fused(self) -> bool:
        """Return whether the function that the config names computes no attention weights."""
        return self.own is not self.eager


Answer = Callable[[FoundAttention], AttentionFunction]

_answer: ContextVar[Answer | None] = ContextVar("attnviz attention", default=None)
_interface: Any = AttentionInterface
_open: list[Any] = []  # the library's own look-up, once for each observed run in any thread
_guard = Lock()


@contextmanager
def answering(answer: Answer) -> Iterator[None]:
    """Let ``answer`` choose the attention functions of this thread's modules in this context."""
    token = _answer.set(answer)
    with _guard:
        plain = _open[0] if _open else _interface.get_interface
        _open.append(plain)

        def get_interface(
            functions: AttentionInterface, attn_implementation: str, default: Any
        ) -> Any:
            own, chosen = plain(functions, attn_implementation, default), _answer.get()
            return own if chosen is None else chosen(FoundAttention(own, default))

        _interface.get_interface = get_interface
    try:
        yield
    finally:
        with _guard:
            _open.pop()
            if not _open:
                _interface.get_interface = plain
        _answer.reset(token)


@contextmanager
def unobserved() -> Iterator[None]:
    """Let this thread's modules use their own attention functions in this context."""
    token = _answer.set(None)
    try:
        yield
    finally:
        _answer.reset(token)


def is_observed() -> bool:
    """Return whether the attention functions of this thread's modules are chosen by another."""
    return _answer.get() is not None


def uses_interface(model: PreTrainedModel) -> bool:
    """Return whether a model's code looks up its attention function by the name in its config."""
    return bool(model._can_set_attn_implementation())


def without_choices(config: Any) -> Any:
    """Return the config without fields, at any depth, that choose code to run.

    A hub name in ``attn_implementation`` would be downloaded and imported by the package
    ``kernels``, even with ``local_files_only`` and without ``trust_remote_code``.
    """
    if isinstance(config, PreTrainedConfig):
        config._attn_implementation = None  # the setter changes its parts as well
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
