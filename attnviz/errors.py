"""The exceptions a user can meet, each with the exit code that the command line gives it.

    AttnvizError                 1  unexpected
    ├── UsageError               2  what was asked for cannot be done with these inputs; also
    │                               a ValueError, as Python code expects of a wrong argument
    ├── LoadError                3  a model or a file cannot be read or written
    │   └── OfflineError         4  not cached, and the network was not to be used or silent
    ├── UnsupportedError         5  the architecture's attention cannot be observed
    └── CheckError               6  a rule of ``attnviz check`` does not hold

A message is one sentence or two: what was expected, what came, what to do next.
"""


class AttnvizError(Exception):
    """Base of every error that attnviz raises on purpose."""

    exit_code = 1

    analysis: object = None
    """The ``attnviz.Analysis`` of a Python call whose report was complete when the error came."""


class UsageError(AttnvizError, ValueError):
    """The request does not fit the model or the text (exit 2)."""

    exit_code = 2


class LoadError(AttnvizError):
    """A model or a file cannot be read or written (exit 3)."""

    exit_code = 3


class OfflineError(LoadError):
    """Not in the local cache, and the network was not allowed or did not answer (exit 4)."""

    exit_code = 4


class UnsupportedError(AttnvizError):
    """The attention of this architecture cannot be observed (exit 5)."""

    exit_code = 5


class CheckError(AttnvizError):
    """A rule of ``attnviz check`` does not hold; everything was measured and shown (exit 6)."""

    exit_code = 6
