"""What changed between two models, or one model under two conditions, head by head."""

from attnviz import _callable

_callable(__name__)
