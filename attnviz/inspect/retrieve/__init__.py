"""``attnviz retrieve``: which heads fetch a fact from a long text."""
