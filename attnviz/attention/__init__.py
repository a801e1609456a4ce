"""The library's own attention: the functional core, the module with hook points, the small decoder."""
