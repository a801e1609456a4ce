"""``attnviz patterns``: every head scored, compared with a base rate, labelled."""
