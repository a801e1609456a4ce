"""``attnviz heads``: where each head attends, and what a cut edge changes."""
