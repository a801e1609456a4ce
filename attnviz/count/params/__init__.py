"""``attnviz params``: what an architecture costs, from its options or its config."""
