"""What the removal of heads for good looks like in a terminal."""
