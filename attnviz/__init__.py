"""attnviz: see where each attention head of a transformer looks, in the terminal.

From Python: every command that makes a report is a function of its name, and ``load`` loads a
model once for all of them; ``capture(model, text)`` and ``heatmap(weights, tokens)`` give maps to
look at; ``scaled_dot_product_attention`` and ``MultiHeadAttention`` are the mechanism itself. Each
is imported when it is first asked for, so that ``import attnviz`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from attnviz import errors as errors
    from attnviz.api.changing import *  # noqa: F403
    from attnviz.api.counting import *  # noqa: F403
    from attnviz.api.looking import *  # noqa: F403
    from attnviz.api.measuring import *  # noqa: F403
    from attnviz.api.opening import *  # noqa: F403
    from attnviz.attention.module import MultiHeadAttention as MultiHeadAttention
    from attnviz.draw.report import Report as Report
    from attnviz.inspect.heads.head_maps import HeadMaps as HeadMaps
    from attnviz.inspect.heads.head_maps import heatmap as heatmap
    from attnviz.learn.mechanism import AttentionResult as AttentionResult
    from attnviz.learn.mechanism import scaled_dot_product_attention as scaled_dot_product_attention

_QUESTIONS = ("changing", "counting", "looking", "measuring", "opening")
"""The modules of ``attnviz.api``: what stands in the ``__all__`` of each is public here."""

_MODULES = {
    "AttentionResult": "attnviz.learn.mechanism",
    "HeadMaps": "attnviz.inspect.heads.head_maps",
    "MultiHeadAttention": "attnviz.attention.module",
    "Report": "attnviz.draw.report",
    "heatmap": "attnviz.inspect.heads.head_maps",
    "scaled_dot_product_attention": "attnviz.learn.mechanism",
}
"""The module of each other public name."""


def _modules() -> dict[str, str]:
    """Return the module of each public name; type checkers use the imports above instead."""
    pages = [import_module(f"attnviz.api.{page}") for page in _QUESTIONS]
    return _MODULES | {name: page.__name__ for page in pages for name in page.__all__}


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("attnviz.errors")
    if name == "__all__":
        return sorted(["__version__", "errors", *_modules()])
    # Names that are asked of any module, such as ``__path__``, import nothing.
    module = _MODULES.get(name) or (None if name.startswith("_") else _modules().get(name))
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = getattr(import_module(module), name)
    globals()[name] = public
    return public


def __dir__() -> list[str]:
    return sorted({*globals(), "errors", *_modules()})
