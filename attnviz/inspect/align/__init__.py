"""``attnviz align``: which cross-attention heads of a speech model tell when a word is spoken."""
