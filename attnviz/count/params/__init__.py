"""``attnviz params``: what an architecture costs, computed from options or from a config."""
