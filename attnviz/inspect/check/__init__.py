"""``attnviz check``: rules about a model in a file, as a gate for CI."""
