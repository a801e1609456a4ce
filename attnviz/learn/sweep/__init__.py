"""``attnviz sweep``: trains one small decoder with several numbers of heads and compares them."""
