"""``attnviz sweep``: one small decoder trained with several numbers of heads, side by side."""

from attnviz import _callable

_callable(__name__)
