"""``attnviz heads``: where each head attends."""
