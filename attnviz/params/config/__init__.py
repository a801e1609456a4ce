"""Reads a Hugging Face config into a design, a module per family, without transformers."""
