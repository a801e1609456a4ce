"""What was counted of a design: the results that screens and files are made of."""
