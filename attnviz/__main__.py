"""``python -m attnviz``: the command line."""

from attnviz.cli.main import main

main()
