"""Reads a Hugging Face config into a spec, families as rows, without transformers."""
