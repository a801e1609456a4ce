"""What Python code calls by ``attnviz.NAME``: the library's functions and what they return."""
