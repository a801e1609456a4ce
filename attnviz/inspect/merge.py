"""``attnviz merge``: adds up the records of shards, and reports what one process would have."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from attnviz.draw.labels import visible
from attnviz.draw.report import Report
from attnviz.errors import LoadError
from attnviz.mergeable import CorpusRecord, merged, read_record
from attnviz.reading import damaged

_MODULES: Mapping[str, str] = {
    "ablate": "attnviz.inspect.interventions.ablate.corpus",
    "atlas": "attnviz.inspect.atlas.atlas",
    "patterns": "attnviz.inspect.patterns.patterns",
    "retrieve": "attnviz.inspect.retrieve.corpus",
}
"""For each command that measures a corpus, the module with the ``FORM`` of its records and with
``report_of``, which reports one."""


def merge(parts: Iterable[CorpusRecord | str | os.PathLike[str]]) -> Report:
    """Return the report of a whole corpus from the records of all its shards, or from their files.

    Raises UsageError, in words, if a shard is missing, not finished or of another run, LoadError
    for a file that cannot be read or is damaged.
    """
    whole = merged(
        [part if isinstance(part, CorpusRecord) else _read(Path(part)) for part in parts]
    )
    with damaged(str(whole), "measure it again"):
        report: Report = _module(whole).report_of(whole)
    return report


def _read(path: Path) -> CorpusRecord:
    record = read_record(path)
    record.check(_module(record).FORM, visible(str(path)))
    return record


def _module(record: CorpusRecord) -> Any:
    if record.command not in _MODULES:
        raise LoadError(f"a record of {visible(record.command)!r}: this version cannot report it")
    return import_module(_MODULES[record.command])
