"""``attnviz explore``: a model and a text, live in the terminal."""
