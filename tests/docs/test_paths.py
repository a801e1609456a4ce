"""Every file of the repository that a page, a comment of a table or a workflow names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("attnviz", "configs", "tests", ".github", ".ci")
PATH = re.compile(r"(?<![\w/.-])(?:attnviz|tests|\.github|\.ci)/[\w./-]*\w")
EXAMPLES = ("entropy",)
"""Words of the files that the worked examples of the page on the design make up."""


def written():
    found = [*ROOT.glob("*.md"), *ROOT.glob(".*.toml")]
    for folder in FOLDERS:
        for ending in ("md", "toml", "txt", "yml"):
            found += (ROOT / folder).rglob(f"*.{ending}")
    return sorted(found)


def named(text):
    return {path for path in PATH.findall(text) if not any(word in path for word in EXAMPLES)}


def test_a_path_that_is_named_is_there():
    text = "As `tests/oracle/lines.txt` says (attnviz/draw), x/tests/y and https://h/attnviz/z not."
    assert named(text) == {"tests/oracle/lines.txt", "attnviz/draw"}
    missing = {
        (str(page.relative_to(ROOT)), path)
        for page in written()
        for path in named(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    }
    assert missing == set()
