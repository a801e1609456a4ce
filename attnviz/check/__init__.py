"""``attnviz check``: rules about a model in a file, as a gate for CI."""

from attnviz import _callable

_callable(__name__)
