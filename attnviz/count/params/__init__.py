"""``attnviz params``: the costs of an architecture, counted from options or from a config."""
