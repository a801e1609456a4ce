"""What the scale of attention does to scores and weights."""
