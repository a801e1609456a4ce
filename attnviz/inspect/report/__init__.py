"""``attnviz report``: what a model is, what its heads do, and which of them matter."""
