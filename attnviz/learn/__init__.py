"""The commands that demonstrate, train and test the attention mechanism."""
