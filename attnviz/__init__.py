"""attnviz: see where each attention head of a transformer looks, in the terminal.

From Python: every command that makes a report is a function of its name, and ``load`` loads a
model once for all of them; ``capture(model, text)`` and ``heatmap(weights, tokens)`` give maps to
look at; ``scaled_dot_product_attention`` and ``MultiHeadAttention`` are the mechanism itself. Each
is imported when it is first asked for, so that ``import attnviz`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from attnviz import errors as errors
    from attnviz.api.changing import ablate as ablate
    from attnviz.api.changing import check as check
    from attnviz.api.changing import diff as diff
    from attnviz.api.changing import patch as patch
    from attnviz.api.changing import path as path
    from attnviz.api.changing import prune as prune
    from attnviz.api.counting import params as params
    from attnviz.api.counting import scaling as scaling
    from attnviz.api.counting import sweep as sweep
    from attnviz.api.counting import train as train
    from attnviz.api.counting import verify as verify
    from attnviz.api.looking import capture as capture
    from attnviz.api.looking import cut as cut
    from attnviz.api.looking import generate as generate
    from attnviz.api.looking import head as head
    from attnviz.api.looking import heads as heads
    from attnviz.api.looking import patterns as patterns
    from attnviz.api.looking import report as report
    from attnviz.api.looking import rollout as rollout
    from attnviz.api.looking import why as why
    from attnviz.api.opening import load as load
    from attnviz.attention.module import MultiHeadAttention as MultiHeadAttention
    from attnviz.draw.report import Report as Report
    from attnviz.inspect.heads.head_maps import HeadMaps as HeadMaps
    from attnviz.inspect.heads.heatmap import heatmap as heatmap
    from attnviz.learn.mechanism import AttentionResult as AttentionResult
    from attnviz.learn.mechanism import scaled_dot_product_attention as scaled_dot_product_attention

_MODULES = {
    "attnviz.api.changing": ("ablate", "check", "diff", "patch", "path", "prune"),
    "attnviz.api.counting": ("params", "scaling", "sweep", "train", "verify"),
    "attnviz.api.looking": (
        *("capture", "cut", "generate", "head", "heads", "patterns", "report", "rollout", "why"),
    ),
    "attnviz.api.opening": ("load",),
    "attnviz.attention.module": ("MultiHeadAttention",),
    "attnviz.draw.report": ("Report",),
    "attnviz.inspect.heads.head_maps": ("HeadMaps",),
    "attnviz.inspect.heads.heatmap": ("heatmap",),
    "attnviz.learn.mechanism": ("AttentionResult", "scaled_dot_product_attention"),
}
"""The public names by the module that has them; editors and type checkers read them above."""

__all__ = sorted(
    ["__version__", "errors", *(name for names in _MODULES.values() for name in names)]
)


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
