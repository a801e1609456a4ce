"""The library's own attention: functional core, module with hook points, small decoder."""
