"""The page of the schemas names each one, and every key that its command prints."""

import gzip
import json
import re
from pathlib import Path

import pytest

import attnviz

ROOT = Path(attnviz.__file__).parent
PAGE = (Path(attnviz.__file__).parent / "docs" / "json.md").read_text(encoding="utf-8")
COMMON = "In every object"
SENTENCE = "The cat sat on the mat because it was tired."
SCHEMA = re.compile(r'"(attnviz\.[a-z-]+/\d+)"')
ELSEWHERE = {"attnviz.labels/1", "attnviz.page/1"}
"""Of the tool's own cache and of its page: nobody else is to read them."""

RECORDED = Path(__file__).parents[1] / "oracle" / "outputs"

OBJECTS = {
    "brief": ["heads", SENTENCE, "--brief"],
    "regions": ["heads", SENTENCE, "--head", "L1H0", "--span", "who=1:3"],
    "inputs": ["why", SENTENCE, "--inputs", "--draws", "2"],
    "steps": ["generate", SENTENCE, "--tokens", "3", "--span", "who=1:3"],
    "together": ["ablate", SENTENCE, "--layer", "0", "--together"],
    "patch": ["patch", "the cat sat", "the dog sat", "--layer", "0", "--metric", "log_prob"],
    "memory": ["params", "llama-3-8b", "--memory", "24GB"],
}
"""What no recorded output of ``tests/oracle`` has."""


def named(heading):
    """The keys before the colon of each line of a section, or all where there is none."""
    if f"\n- **{heading}**\n" in PAGE:
        section = PAGE.split(f"\n- **{heading}**\n")[1].split("\n- ")[0]
    else:
        section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"^ *- ((?:`\w+`(?:, )?)+)", section, re.MULTILINE)
    return {key for line in lines for key in re.findall(r"`(\w+)`", line)}


def test_every_schema_is_on_the_page():
    sources = [path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")]
    schemas = {name for source in sources for name in SCHEMA.findall(source)} - ELSEWHERE
    assert schemas == set(re.findall(r"attnviz\.[a-z-]+/\d+", PAGE))


def test_every_recorded_key_is_on_the_page():
    shelves = [json.loads(gzip.decompress(path.read_bytes())) for path in RECORDED.iterdir()]
    outputs = {
        name: output["out"]
        for shelf in shelves
        for name, output in shelf.items()
        if "--json" in name and output["exit"] == "0"
    }
    assert len(outputs) > 40
    missing = {
        (key, line) for line, output in outputs.items() for key in _unknown(json.loads(output))
    }
    assert missing == set()


@pytest.mark.parametrize("asked", OBJECTS)
def test_every_key_is_on_the_page(redrawn, asked):
    result = redrawn(*OBJECTS[asked], *["--json"] * (asked != "brief"))
    assert result.code == 0, result.err
    assert _unknown(json.loads(result.out)) == set()


def _unknown(printed):
    """The keys of an object that are not on the page."""
    return printed.keys() - (named(COMMON) | named(printed["schema"]))


def test_no_key_is_made_up():
    sources = "".join(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py"))
    words = set(re.findall(r"\w+", sources))
    for heading in re.findall(r"^(?:## |- \*\*)([\w./ -]*)", PAGE, re.MULTILINE):
        assert named(heading) <= words, heading
