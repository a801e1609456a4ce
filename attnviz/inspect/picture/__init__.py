"""``attnviz heads --image FILE``: where on a picture each head of a vision model looks."""
