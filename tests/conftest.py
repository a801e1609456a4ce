"""One thread a process, also in the processes that tests start: on a busy machine two threads of
small models wait for each other far longer than they compute. Set before torch is imported."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
