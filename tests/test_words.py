"""Words of our own that a researcher would not say: none is on a screen, in a file or in a page."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import attnviz

from .test_imports import PATHS, nodes

ROOT = Path(attnviz.__file__).parent
REPLACED = {
    "even spread": "uniform",
    "evenly spread": "uniform",
    "even attention": "uniform attention",
    "is even": "is uniform",
    "an even guess": "uniform baseline",
    "most telling": "most distinctive",
    "a place to rest": "attention sink (often a no-op)",
    "what is lost when": "loss increase when one head is ablated",
    "do harm": "loss decreases without",
    "same range both ways": "symmetric scale",
    "√size": "colour ∝ √|Δ|",
    "where it is missed": "per-token Δ loss",
    "hurts most": "largest increase",
    "helps most": "largest decrease",
    "set to zero": "zero ablation",
    "tell chance from rule": "separate signal from noise",
    "first-order hint": "first-order estimate",
    "which is kinder": "stays in distribution",
    "decides here which heads": "ranked on 1 text",
    "as many as can go": "all prunable heads",
    "looks most at the other": "verb ↔ subject (highest attention)",
    "from the later word back": "scored from the later word to the earlier",
    "looks at what followed": "attends to the token after an earlier occurrence",
    "soften": "softmax",
    "softmax's jacobian": "softmax gradient norm",
    "than chance brings": "no significant difference",
    "prove that": "check against reference implementations",
    "computed plainly": "match an unhooked run",
    "off one by": "max row-sum error",
    "finer ruler": "higher precision",
    "nobody looks": "when weights are not returned",
    "multiply-add is two": "1 MAC = 2 FLOPs",
    "maps, if kept": "attention weights if materialised",
    "squeezed": "query latent dim",
    "token table": "embeddings; vocabulary size",
    "of random weights.": "Random seed.",
    "whatever the heads": "same parameters for all",
    "can be known": "predictable positions",
    "nobody can say": "needs ≥ 2 seeds",
    "stand there twice": "repeated twice",
    "takes all heads for equal": "weights all heads equally",
    "no finding": "not significant",
    "knows the letters": "a model that knows only the letter set",
    "reads it for you": "--explain: how to read this",
    "seen:": "Result:",
    "solved:": "Reached 99%:",
    "shows the mechanism": "untrained random weights: patterns are arbitrary",
    "as some papers do": "Index base for layers and heads (0 or 1)",
    "rests on": "attention sink",
    "rest on the": "attention sink",
    "flips 5": "prediction changed",
    "top-1 changed": "prediction changed",
    "small maps pooled": "downsampled 2× (max)",
    "1-cosine": "cosine distance",
    "random dir.": "control: a random direction of equal norm",
    "norms held,": "direct path",
    "× whole": "ratio to full model",
    "a head went": "removed at step",
    "no further apart": "no significant difference",
    "read 69 % uniform": "training data: 69% …",
    "right: the likeliest": "accuracy (top-1)",
    "no other condition": "the same weights",
    "did → does": "label in A → in B",
    "randomly reversed heads:": "chance does that in",
    "whatever the words around": "among random words",
    "its own token and place": "that token and its place",
    "multiplies the held-out": "the held-out loss rises by",
    "looks at its key": "attends to its key",
    "reaches the threshold of a label": "has a label: no score is clearly above chance",
    "the weight without": "the weight if removed",
    "nats from the end.": "ranks",
    "same top": "same prediction",
    "it writes at most": "its largest share is",
    "place of a token that repeats": "her (12)",
    "no seed used": "",
    "no text was given": "",
}
"""What was written, and what is said instead; the last ones were noise."""


@cache
def texts():
    """Every text that the package can show, in small letters, with the file that it stands in."""
    return tuple((place, " ".join(text.lower().split())) for place, text in _texts())


def _texts():
    """Its strings but the docstrings, and the manual."""
    for module, path in PATHS.items():
        said = {
            id(node.value)
            for node in nodes(module)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        said -= {id(node.body[0].value) for node in nodes(module) if _is_command(node)}
        for node in nodes(module):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and id(node) not in said:
                yield str(path.relative_to(ROOT)), text
    for path in sorted((ROOT / "docs").glob("*.md")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def _is_command(node):
    """Whether it is a function whose docstring is its help."""
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(each).startswith("command(") for each in node.decorator_list
    )


def test_nobody_reads_these_words():
    whole = "\n".join(text for _, text in texts())
    written = [words for words in REPLACED if words in whole]
    shown = [(place, words) for place, text in texts() for words in written if words in text]
    assert [(*each, f"say {REPLACED[each[1]]!r}") for each in shown] == []


@pytest.mark.parametrize("written", [r"[0-9}] %(?![a-z0-9(])", r"(?<!\w)−[0-9{]", r"[^\W_]#[0-9]"])
def test_numbers_are_written_by_one_rule(written):
    """``53%`` without a blank, the minus of the keyboard (see ``attnviz.draw.numbers``), and a
    token's number as in ``her (12)``.
    """
    found = {place for place, text in texts() if re.search(written, text)}
    assert not found
