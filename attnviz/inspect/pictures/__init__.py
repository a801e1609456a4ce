"""``attnviz patterns --images DIR``: what each head of a vision model does, over many pictures."""
