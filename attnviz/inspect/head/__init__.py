"""``attnviz head``: everything that attnviz knows of one head, on one screen."""
