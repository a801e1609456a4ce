"""What a training run looks like in a terminal."""
