"""``attnviz heads`` on a text with pictures: what a word's heads look at, of picture and text."""
