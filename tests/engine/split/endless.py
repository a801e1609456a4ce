"""One of two processes that ablate over so many texts that only the test ends them.

Its arguments are those of ``attnviz ablate``, then a directory, in which it leaves a file when it
begins to measure.
"""

import os
import sys
from pathlib import Path

from attnviz.cli.main import main
from attnviz.inspect.interventions.ablate import ablate as question

_DIRECTORY = Path(sys.argv.pop())
_measured = question.ablate


def _begun(*given, **named):
    (_DIRECTORY / f"begun-{os.environ['RANK']}").touch()
    return _measured(*given, **named)


question.ablate = _begun
main()
