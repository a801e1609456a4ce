"""attnviz: see where each attention head of a transformer looks, in the terminal.

From Python: ``capture(model, text)`` and ``heatmap(weights, tokens)`` give maps to look at;
``patterns``, ``ablate``, ``patch``, ``diff``, ``rollout``, ``params`` and ``prune`` are the
commands of these names, ``attribute`` is ``attnviz why``; ``generate`` writes on, step by step;
``scaled_dot_product_attention`` and ``MultiHeadAttention`` are the mechanism itself. Each is
imported when it is first asked for, so that ``import attnviz`` costs nothing.
"""

from importlib import import_module

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "AttentionResult",
    "HeadMaps",
    "MultiHeadAttention",
    "__version__",
    "ablate",
    "attribute",
    "capture",
    "diff",
    "errors",
    "generate",
    "heatmap",
    "params",
    "patch",
    "patterns",
    "prune",
    "rollout",
    "scaled_dot_product_attention",
]

_ANALYSES = "attnviz.api.analyses"

_PLACES = {
    "Analysis": "attnviz.api.analysis",
    "AttentionResult": "attnviz.api.attention",
    "HeadMaps": "attnviz.api.head_maps",
    "MultiHeadAttention": "attnviz.attention.module",
    "ablate": _ANALYSES,
    "attribute": _ANALYSES,
    "capture": "attnviz.api.capture",
    "diff": _ANALYSES,
    "generate": _ANALYSES,
    "heatmap": "attnviz.api.heatmap",
    "params": _ANALYSES,
    "patch": _ANALYSES,
    "patterns": _ANALYSES,
    "prune": _ANALYSES,
    "rollout": _ANALYSES,
    "scaled_dot_product_attention": "attnviz.api.attention",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("attnviz.errors")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
