"""The screens of ``attnviz verify``: records in, blocks of styled text out."""
