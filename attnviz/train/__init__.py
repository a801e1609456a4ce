"""``attnviz train``: a small language model of the own attention, trained, scored and saved."""

from attnviz import _callable

_callable(__name__)
