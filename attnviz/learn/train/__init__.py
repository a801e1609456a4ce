"""``attnviz train``: trains a small language model, scores its heads and saves it."""
