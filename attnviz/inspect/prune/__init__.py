"""``attnviz prune``: heads removed for good, ranked on half of the texts, judged on the rest."""

from attnviz import _callable

_callable(__name__)
