"""``attnviz patterns``: every head scored, held against a base rate, labelled."""

from attnviz import _callable

_callable(__name__)
