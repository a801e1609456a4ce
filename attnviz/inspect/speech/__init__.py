"""``attnviz heads --audio FILE``: where in a sound each head of a speech model looks."""
