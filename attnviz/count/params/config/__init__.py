"""Reads a Hugging Face config into a ``ModelSpec`` without transformers."""
