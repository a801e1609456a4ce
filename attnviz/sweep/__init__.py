"""What one decoder trained with several numbers of heads looks like in a terminal."""
