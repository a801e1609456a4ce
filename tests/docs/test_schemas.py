"""The page of the schemas names each one, and every key that its command prints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import attnviz

ROOT = Path(attnviz.__file__).parent
PAGE = (Path(attnviz.__file__).parent / "docs" / "json.md").read_text(encoding="utf-8")
COMMON = "In every object"
SENTENCE = "The cat sat on the mat because it was tired."
SCHEMA = re.compile(r'"(attnviz\.[a-z-]+/\d+)"')
ELSEWHERE = {"attnviz.labels/1"}
"""Of the tool's own cache: nobody else is to read it."""

OBJECTS = {
    "heads": ["heads", SENTENCE, "--head", "L1H0"],
    "word": ["heads", SENTENCE, "--head", "L1H0", "--token", "it"],
    "pair": ["heads", SENTENCE, "--layer", "5", "--pair", "it", "cat"],
    "regions": ["heads", SENTENCE, "--head", "L1H0", "--span", "who=1:3"],
    "kinds": ["heads", SENTENCE, "--model", "mha", "--compare-mask"],
    "rollout": ["rollout", SENTENCE],
    "why": ["why", SENTENCE, "--head", "L1H0"],
    "inputs": ["why", SENTENCE, "--inputs", "--draws", "2"],
    "lens": ["lens", SENTENCE],
    "link": ["link", SENTENCE, "--controls", "2"],
    "generate": ["generate", SENTENCE, "--tokens", "3"],
    "patterns": ["patterns", SENTENCE],
    "steps": ["generate", SENTENCE, "--tokens", "3", "--span", "who=1:3"],
    "spans": ["patterns", SENTENCE, "--span", "who=1:3"],
    "diff": ["diff", "tiny", "--dtype-b", "float64", "--text", SENTENCE, "--noise-floor", "0"],
    "ablate": ["ablate", SENTENCE, "--layer", "0", "--together"],
    "patch": ["patch", "the cat sat", "the dog sat", "--layer", "0", "--metric", "log_prob"],
    "head": ["head", "L1H2"],
    "report": ["report", "--cards", "2"],
    "atlas": ["atlas"],
    "retrieve": ["retrieve", "--lengths", "128", "--haystacks", "2"],
    "path": ["path", "L0H0", "the cat sat", "the dog sat"],
    "params": ["params", "llama-3-8b", "--memory", "24GB"],
    "several": ["params", "gpt2", "bert-base"],
    "compare": ["params", "--d-model", "64", "--heads", "8", "--compare", "kv-heads=8,1"],
    "scaling": ["scaling", "--samples", "10"],
    "verify": ["verify", "--no-keras"],
}


def named(heading: str) -> set[str]:
    """The keys before the colon of each line of a section, or all where there is none."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"^- ((?:`\w+`(?:, )?)+)", section, re.MULTILINE)
    return {key for line in lines for key in re.findall(r"`(\w+)`", line)}


def test_every_schema_is_on_the_page() -> None:
    sources = [path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")]
    schemas = {name for source in sources for name in SCHEMA.findall(source)} - ELSEWHERE
    assert schemas == set(re.findall(r"attnviz\.[a-z-]+/\d+", PAGE))


@pytest.mark.parametrize("asked", OBJECTS)
def test_every_key_is_on_the_page(redrawn: Any, asked: str) -> None:
    result = redrawn(*OBJECTS[asked], "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found.keys() <= named(COMMON) | named(found["schema"])


def test_no_key_is_made_up() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py"))
    words = set(re.findall(r"\w+", sources))
    for heading in re.findall(r"^## (.*)$", PAGE, re.MULTILINE):
        assert named(heading) <= words, heading
