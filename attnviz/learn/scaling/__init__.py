"""``attnviz scaling``: what dividing scores by √d_k does to the weights of attention."""
