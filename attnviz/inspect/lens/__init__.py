"""What a model would predict after each block, and what each head writes there: the logit lens."""
