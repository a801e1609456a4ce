"""The screens of ``attnviz patterns``: records in, blocks of styled text out."""
