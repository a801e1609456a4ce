"""What each head writes towards a prediction: direct logit attribution, and how it is shown."""
