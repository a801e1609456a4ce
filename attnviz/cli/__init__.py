"""The command line: parse, load, compute, show."""
