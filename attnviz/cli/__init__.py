"""The command line: a module for each command, and the code that they share."""
