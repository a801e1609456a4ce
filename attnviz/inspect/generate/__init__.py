"""``attnviz generate``: the model writes a text, and the report shows where its heads attend."""
