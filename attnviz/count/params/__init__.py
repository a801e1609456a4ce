"""``attnviz params``: what an architecture costs, from its options or its config."""

from attnviz import _callable

_callable(__name__)
