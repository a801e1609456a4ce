"""The views of what is lost when heads are removed."""

from attnviz import _callable

_callable(__name__)
