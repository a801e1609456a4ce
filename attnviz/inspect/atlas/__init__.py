"""``attnviz atlas``: on what each head fires most, over many texts."""
