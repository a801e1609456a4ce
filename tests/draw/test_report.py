"""Reports name functions of other modules as their methods: each of these exists."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import attnviz


def test_every_function_that_a_report_names_exists() -> None:
    named: list[str] = []
    for path in Path(attnviz.__file__).parent.rglob("*.py"):
        named += re.findall(r'= written_in\(\s*"([\w.:]+)"', path.read_text())
    assert len(named) > 30
    for place in named:
        module, _, function = place.partition(":")
        assert callable(getattr(import_module(module), function, None)), place
