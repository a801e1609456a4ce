"""``attnviz sweep``: one small decoder trained with several numbers of heads, side by side."""
