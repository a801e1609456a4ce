"""Activation patching: what carries the difference between two prompts, and how much of it."""
