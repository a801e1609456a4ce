"""``attnviz verify``: checks of the own attention and of models, each beside its tolerance."""
