"""attnviz: see where each attention head of a transformer looks, in the terminal.

From Python: ``capture(model, text)`` and ``heatmap(weights, tokens)`` give maps to look at;
``why``, ``patterns``, ``ablate``, ``patch``, ``path``, ``rollout``, ``diff``, ``check``,
``params``, ``prune``, ``scaling``, ``verify``, ``sweep`` and ``train`` are the commands of these
names; ``load`` loads a model once for all of them; ``generate`` writes on, step by step;
``scaled_dot_product_attention`` and ``MultiHeadAttention`` are the mechanism itself. Each is
imported when it is first asked for, so that ``import attnviz`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AttentionResult",
    "HeadMaps",
    "MultiHeadAttention",
    "Report",
    "__version__",
    "ablate",
    "capture",
    "check",
    "cut",
    "diff",
    "errors",
    "generate",
    "heads",
    "heatmap",
    "load",
    "params",
    "patch",
    "path",
    "patterns",
    "prune",
    "rollout",
    "scaled_dot_product_attention",
    "scaling",
    "sweep",
    "train",
    "verify",
    "why",
]

if TYPE_CHECKING:
    from attnviz import errors
    from attnviz.api.changing import ablate, check, diff, patch, path, prune
    from attnviz.api.counting import params, scaling, sweep, train, verify
    from attnviz.api.looking import capture, cut, generate, heads, patterns, rollout, why
    from attnviz.api.opening import load
    from attnviz.attention.module import MultiHeadAttention
    from attnviz.draw.report import Report
    from attnviz.inspect.heads.head_maps import HeadMaps
    from attnviz.inspect.heads.heatmap import heatmap
    from attnviz.learn.mechanism import AttentionResult, scaled_dot_product_attention

_MODULES = {
    "attnviz.api.changing": ("ablate", "check", "diff", "patch", "path", "prune"),
    "attnviz.api.counting": ("params", "scaling", "sweep", "train", "verify"),
    "attnviz.api.looking": ("capture", "cut", "generate", "heads", "patterns", "rollout", "why"),
    "attnviz.api.opening": ("load",),
    "attnviz.attention.module": ("MultiHeadAttention",),
    "attnviz.draw.report": ("Report",),
    "attnviz.inspect.heads.head_maps": ("HeadMaps",),
    "attnviz.inspect.heads.heatmap": ("heatmap",),
    "attnviz.learn.mechanism": ("AttentionResult", "scaled_dot_product_attention"),
}
"""The public names by the module that has them."""


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("attnviz.errors")
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
