"""The commands of attnviz as functions: each has the name and the options of its command."""
