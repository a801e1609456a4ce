"""Training of small language models made of the library's own attention."""
