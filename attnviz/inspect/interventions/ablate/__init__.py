"""``attnviz ablate``: what is lost without a head, with its interval, by head and by token."""
