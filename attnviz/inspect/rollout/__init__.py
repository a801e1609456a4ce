"""``attnviz rollout``: attention followed through all layers, back to the input."""
