"""Draws documents, which are made of parts, for each outlet: terminal, text, pages, pictures."""
