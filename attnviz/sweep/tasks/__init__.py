"""What a small decoder can be made to learn: sequences with answers that can be checked."""
