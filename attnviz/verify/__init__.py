"""``attnviz verify``: checks of the own attention and of models, each beside its tolerance."""

from attnviz import _callable

_callable(__name__)
