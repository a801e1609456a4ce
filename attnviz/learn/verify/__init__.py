"""``attnviz verify``: checks of the library's own attention and of models, with tolerances."""
