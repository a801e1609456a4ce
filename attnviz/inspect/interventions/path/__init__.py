"""``attnviz path``: which later heads read straight from one head."""
