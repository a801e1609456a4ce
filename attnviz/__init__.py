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
    from attnviz.api import (
        ablate,
        capture,
        check,
        cut,
        diff,
        generate,
        heads,
        load,
        params,
        patch,
        path,
        patterns,
        prune,
        rollout,
        scaling,
        sweep,
        train,
        verify,
        why,
    )
    from attnviz.attention.module import MultiHeadAttention
    from attnviz.draw.report import Report
    from attnviz.inspect.heads.head_maps import HeadMaps
    from attnviz.inspect.heads.heatmap import heatmap
    from attnviz.learn.mechanism import AttentionResult, scaled_dot_product_attention

_ELSEWHERE = {
    "AttentionResult": "attnviz.learn.mechanism",
    "HeadMaps": "attnviz.inspect.heads.head_maps",
    "MultiHeadAttention": "attnviz.attention.module",
    "Report": "attnviz.draw.report",
    "heatmap": "attnviz.inspect.heads.heatmap",
    "scaled_dot_product_attention": "attnviz.learn.mechanism",
}
"""The modules of the names that are not in ``attnviz.api``."""


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("attnviz.errors")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_ELSEWHERE.get(name, "attnviz.api")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
