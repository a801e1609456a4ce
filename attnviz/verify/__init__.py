"""Checks of the own attention and of loaded models, each number beside its tolerance."""
