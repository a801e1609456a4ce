"""``attnviz generate``: the model writes on, and what its heads look at meanwhile."""

from attnviz import _callable

_callable(__name__)
