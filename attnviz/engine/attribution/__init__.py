"""Follow what heads and blocks write towards a logit, and to each other, through one pass."""
