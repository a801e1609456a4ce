"""The screen of ``attnviz scaling``."""
