"""``attnviz scaling``: what dividing the scores by √d_k does to the attention weights."""
