"""What a person asks of a model: where its heads attend, what they write, whether they matter."""
