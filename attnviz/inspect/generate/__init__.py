"""``attnviz generate``: the model writes on, and what its heads look at meanwhile."""
