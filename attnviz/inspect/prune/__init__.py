"""``attnviz prune``: heads removed for good, ranked on half of the texts, judged on the rest."""
