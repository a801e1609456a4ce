"""What programs read from every command, as it was: JSON, CSV and arrays.

``lines.txt`` has the command lines, ``outputs/`` what they print and write, compressed. Numbers may
differ in their last digits (another processor adds in another order), words and layout may not.
Renewed, once a change has been looked at, by

    ATTNVIZ_RENEW_ORACLE=1 python -m pytest tests/oracle -n 0
"""

import difflib
import gzip
import itertools
import json
import os
import re
import shlex
import shutil
import struct
from collections import defaultdict
from pathlib import Path
from string import Template

import numpy as np
import pytest
from safetensors.numpy import load_file

from attnviz.cli.app import COMMANDS

_HERE = Path(__file__).parent
_OUTPUTS = _HERE / "outputs"
_RENEW = bool(os.environ.get("ATTNVIZ_RENEW_ORACLE"))
_TEXTS = {
    "CAT": "The cat sat on the mat because it was tired.",
    "MARY": "When Mary and John went to the shop, John gave a drink to Mary.",
    "FOUR": "four words of query",
    "WORDS": "the cat sat on the mat",
    "KOREAN": "나는 오늘 학교에 갔다 .",
    "EMOJI": "a 👩‍👩‍👧 sat \u202e on [red]the[/] mat",
}
_STORY = (
    "Once there was a small fox who lived in a small house. The fox had a friend, and the friend "
    "had a hat. One day the fox lost the key of the small house. Where is the key? said the friend."
)
_RECIPE = Path(__file__).parents[1] / "recipe.toml"
_DIGEST = re.compile(r"(?<![\w.])[0-9a-f]{12,64}\b")  # no digits behind a point
_PROGRESS = re.compile(r"\d+%|\btook\b")
_TIME = re.compile(r'"(?:tokens_per_)?seconds?": [\d.e+-]+|[\d,.]+ (?:s|min|tokens/s)\b')
_LENGTH = re.compile(r"(?<=<U)\d+")  # of a text with decimals, of which there may be more
_APART = re.compile(r'"apart": [\d.]+e-(?:0[5-9]|[1-9]\d)')  # by how much rounding parts two ways
_CHANCE = re.compile(r'(?<="adjusted_p": )[0-9.e-]+')
_LAST = re.compile(_CHANCE.pattern + r"|(?<=,)[0-9.e-]+(?=\r?$)", re.MULTILINE)
"""The same where a table of CSV has it in its last column, as that of ``report`` does."""

_TIES = 2 / 2000
"""A p counts draws of 2,000; rounding decides those that lie as far out as the texts."""

_LARGEST_ERROR = re.compile(
    r'"largest": [\d.e+-]+(?=, "reason": "[^"]*", "where": "L)|"where": (?:null|"L\d+(?:H\d+)?")'
    r"|(?<=\d),[\d.e+-]+,(?:L\d+(?:H\d+)?)?,"
)
"""Where an error is largest, and what it is an error of, as ``verify`` writes them in JSON and CSV:
rounding alone decides that."""

_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def _lines():
    """The command lines of ``lines.txt``, with ``{a|b}`` spread out."""
    for line in (_HERE / "lines.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            parts = re.split(r"\{([^{}]*)\}", line)
            choices = [part.split("|") if n % 2 else [part] for n, part in enumerate(parts)]
            yield from map("".join, itertools.product(*choices))


@pytest.fixture(scope="session")
def recorded():
    """What each line gave; renewed, where that was asked for, when all have run."""
    if not _RENEW:
        shelves = [json.loads(gzip.decompress(path.read_bytes())) for path in _OUTPUTS.iterdir()]
        yield {line: output for shelf in shelves for line, output in shelf.items()}
        return
    assert "PYTEST_XDIST_WORKER" not in os.environ, "the oracle is renewed in one process: -n 0"
    found = {}
    yield found
    shelves_now = defaultdict(dict)
    for line, output in found.items():
        shelves_now[_OUTPUTS / f"{line.split()[0].strip('-')}.json.gz"][line] = output
    _OUTPUTS.mkdir(exist_ok=True)
    for path, shelf in shelves_now.items():
        text = json.dumps(shelf, ensure_ascii=False, indent=0)
        path.write_bytes(gzip.compress(text.encode(), mtime=0))


@pytest.fixture
def folder(run, checkpoint, tmp_path):
    """The folder of a run: texts, a recipe, checkpoints under plain names."""
    (tmp_path / "story.txt").write_text(f"{_STORY} " * 6, encoding="utf-8")
    texts = [text for name, text in _TEXTS.items() if name in ("CAT", "MARY")]
    lines = [*texts, *_STORY.split(". "), *(f"{text} {texts[0]}" for text in texts)]
    (tmp_path / "texts.txt").write_text("\n".join(lines), encoding="utf-8")
    shutil.copy(_RECIPE, tmp_path)
    for kind in ("gpt2", "llama", "bert", "t5"):
        (tmp_path / kind).symlink_to(checkpoint(kind))
    return tmp_path


def test_every_command_has_a_line():
    """But for those whose numbers rounding decides, that need sounds, or print none."""
    without = {"align", "diff", "check", "docs", "explore", "merge", "use"}
    assert {line.split()[0] for line in _lines()} >= set(COMMANDS) - without


@pytest.mark.parametrize("line", list(_lines()))
def test_the_outputs_are_as_they_were(line, run, redrawn, folder, recorded):
    before = set(folder.rglob("*"))
    arguments = [Template(part).safe_substitute(_TEXTS) for part in shlex.split(line)]
    result = (run if _RENEW or arguments[0] == "ablate" else redrawn)(
        *arguments, env={"COLUMNS": "80", "LINES": "24"}
    )
    notices = [line for line in result.err.splitlines(True) if not _PROGRESS.search(line)]
    found = {"exit": str(result.code), "out": result.out, "err": "".join(notices)}
    for path in sorted(set(folder.rglob("*")) - before):
        if path.is_file():
            found[str(path.relative_to(folder))] = _content(path)
    if _RENEW:
        recorded[line] = found
        return
    expected = recorded[line]
    assert list(found) == list(expected)
    for name, text in found.items():
        if not _alike(text, expected[name], line.split()[0]):
            pytest.fail(f"{name} of `attnviz {line}`:\n{_difference(expected[name], text)}")


def _content(path):
    """A written file as text: a picture's size, the shape and mean of each array."""
    data = path.read_bytes()
    if path.suffix == ".png":
        assert data.startswith(b"\x89PNG")
        return "PNG {} × {}".format(*struct.unpack(">II", data[16:24]))
    if path.suffix == ".pdf":
        assert data.startswith(b"%PDF")
        return "PDF"
    if path.suffix in (".npz", ".safetensors"):
        arrays = np.load(path) if path.suffix == ".npz" else load_file(path)
        return "\n".join(_array(name, arrays[name]) for name in sorted(arrays))
    return data.decode("utf-8")


def _array(name, values):
    told = f"{np.abs(values).mean():.6f}" if values.dtype.kind == "f" else values.ravel()[:9]
    return f"{name} {values.dtype} {values.shape} {told}"


def _alike(one, other, command):
    """Return whether words are the same, and numbers differ by rounding at most.

    Digests, times and what rounding alone decides are left aside. Much of what ``sweep`` and
    ``train`` write is seconds, so that only its words are compared, wherever they stand.
    """
    chance = _LAST if command == "report" else _CHANCE
    chances = zip(chance.findall(one), chance.findall(other), strict=False)
    if any(abs(float(a) - float(b)) > _TIES for a, b in chances):
        return False
    aside = [_DIGEST, _TIME, _APART, chance, _LENGTH, *[_LARGEST_ERROR] * (command == "verify")]
    for pattern in aside:
        one, other = (pattern.sub("aside", text) for text in (one, other))
    if one == other:
        return True
    if command in ("sweep", "train"):
        one, other = (" ".join(_NUMBER.sub("number", text).split()) for text in (one, other))
        return one == other
    if _NUMBER.split(one) != _NUMBER.split(other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= 1e-5 + 1e-3 * abs(float(b)) for a, b in pairs)


def _difference(expected, found):
    lines = difflib.unified_diff(
        expected.splitlines(), found.splitlines(), "was", "is", lineterm="", n=1
    )
    return "\n".join(itertools.islice((repr(line)[1:-1][:300] for line in lines), 60))
