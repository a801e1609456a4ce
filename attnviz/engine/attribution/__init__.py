"""What heads and blocks write towards a logit, and to each other, followed through one pass."""
