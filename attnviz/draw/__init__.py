"""A document of parts, and how each outlet draws them: terminal, text, pages, pictures."""
