"""``attnviz heads`` and ``rollout``: where each head attends, and what a cut edge changes."""
