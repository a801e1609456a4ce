"""attnviz: see where each attention head of a transformer looks, in the terminal."""

__version__ = "0.1.0"

__all__ = ["__version__"]
