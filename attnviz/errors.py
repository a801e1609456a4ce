"""The exceptions a user can meet, each with the exit code that the command line gives it.

    AttnvizError                 1  unexpected
    ├── UsageError               2  the request cannot be carried out with these inputs; also
    │                               a ValueError, as Python code expects of a wrong argument
    ├── LoadError                3  a model or a file cannot be read or written
    │   └── OfflineError         4  not cached, and the network not allowed or not answering
    ├── UnsupportedError         5  the architecture's attention cannot be observed
    └── CheckError               6  a rule of ``attnviz check`` does not hold

A message is one sentence or two: what was expected, what came, what to do next.
"""


class AttnvizError(Exception):
    """Base of every error that attnviz raises on purpose."""

    exit_code = 1


class UsageError(AttnvizError, ValueError):
    """Raised if the request does not fit the model or the text (exit code 2)."""

    exit_code = 2


class LoadError(AttnvizError):
    """Raised if a model or a file cannot be read or written (exit code 3)."""

    exit_code = 3


class OfflineError(LoadError):
    """Raised if a model is not cached and the network is not allowed or silent (exit code 4)."""

    exit_code = 4


class UnsupportedError(AttnvizError):
    """Raised if the attention of this architecture cannot be observed (exit code 5)."""

    exit_code = 5


class CheckError(AttnvizError):
    """Raised if a rule of ``attnviz check`` does not hold, after all was shown (exit code 6)."""

    exit_code = 6
