"""What changed between two models, or one model under two conditions, head by head."""
