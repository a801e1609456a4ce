"""``attnviz patterns``: every head scored, held against a base rate, labelled."""
