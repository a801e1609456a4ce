"""attnviz: see where each attention head of a transformer looks, in the terminal.

From Python: ``capture(model, text)`` and ``heatmap(weights, tokens)`` give maps to look at;
``why``, ``patterns``, ``ablate``, ``patch``, ``path``, ``rollout``, ``diff``, ``check``, ``params``,
``prune``, ``scaling``, ``verify``, ``sweep`` and ``train`` are the commands of these names;
``generate`` writes on, step by step;
``scaled_dot_product_attention`` and ``MultiHeadAttention`` are the mechanism itself. Each is
imported when it is first asked for, so that ``import attnviz`` costs nothing.
"""

import sys
from importlib import import_module
from types import ModuleType

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "AttentionResult",
    "HeadMaps",
    "MultiHeadAttention",
    "__version__",
    "ablate",
    "capture",
    "check",
    "diff",
    "errors",
    "generate",
    "heatmap",
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

_ANALYSES = "attnviz.api.analyses"

_PLACES = {
    "Analysis": "attnviz.api.analysis",
    "AttentionResult": "attnviz.api.attention",
    "HeadMaps": "attnviz.api.head_maps",
    "MultiHeadAttention": "attnviz.attention.module",
    "capture": "attnviz.api.capture",
    "heatmap": "attnviz.api.heatmap",
    "path": _ANALYSES,
    "rollout": _ANALYSES,
    "scaled_dot_product_attention": "attnviz.api.attention",
}

_MODULES = (
    *("ablate", "check", "diff", "errors", "generate", "params", "patch", "patterns", "prune"),
    *("scaling", "sweep", "train", "verify", "why"),
)


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"attnviz.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _CallablePackage(ModuleType):
    """A package whose name is that of an analysis as well: calling it runs that.

    The import system sets ``attnviz.patterns`` to the package once any of its modules is imported,
    so that the package itself must be what is called.
    """

    @property
    def _analysis(self) -> object:
        return getattr(import_module(_ANALYSES), self.__name__.rpartition(".")[2])

    @property
    def __wrapped__(self) -> object:
        """What help and signatures are taken from."""
        return self._analysis

    def __call__(self, *args: object, **options: object) -> object:
        return self._analysis(*args, **options)

    def __reduce__(self) -> tuple[object, ...]:
        """As a function goes to another process: by its name."""
        return import_module, (self.__name__,)


def _callable(package: str) -> None:
    """Let a package of this name be called; it asks for that itself, when it is imported."""
    sys.modules[package].__class__ = _CallablePackage
