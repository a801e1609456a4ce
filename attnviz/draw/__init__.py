"""Records in, rich renderables and files out."""
