"""What the removal of heads for good looks like in a terminal."""

from attnviz import _callable

_callable(__name__)
