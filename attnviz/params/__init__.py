"""The screens of ``attnviz params``: an account of a design in, blocks of text out."""
