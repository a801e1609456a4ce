"""No rule holds by absence: whatever has no number fails its rule and is named."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnviz

TINY = Path(attnviz.__file__).parent / "data" / "tiny"
TEXT = "The cat sat on the mat because it was tired."
BASELINE = 'against = "b.attnviz.json"\n{} = {{ at_most = 1, heads = "{}" }}'
RULES = {
    "score": 'head = "L5H1"\nscore = "delimiter"\nat_most = 1',
    "statistic": 'head = "L5H1"\nscore = "entropy"\nat_most = 100',
    "labels": 'heads_labelled = "delimiter"\nat_most = 24',
    "labels elsewhere": 'heads_labelled = "induction"\nat_least = 0',
    "rows": "rows_sum_to_one = true\nat_most = 1e6",
    **{
        f"{of} of {share}": BASELINE.format(of, share)
        for of in ("js_divergence", "score_change")
        for share in ("100%", "95%", "4%")
    },
    "loss": 'loss_on = "built-in texts"\nat_most = 1e6',
    "loss at least": f'loss_on = "{TEXT}"\nat_least = -1e6',
    "loss of a file": 'loss_on_file = "texts.txt"\nat_most = 1e6',
    "span": f'span = "cat"\ntext = "{TEXT}"\nat_most = 1',
    "span of a head": f'span = "cat"\ntext = "{TEXT}"\nhead = "L5H1"\nat_least = -1',
    "score of another head": 'head = "L0H0"\nscore = "previous"\nat_most = 1',
    "span of another head": f'span = "cat"\ntext = "{TEXT}"\nhead = "L0H0"\nat_most = 1',
    "params": 'params = "total"\nat_least = 1',
}
"""Rules that every model passes, by their names."""

ELSEWHERE = ("score of another head", "span of another head", "params")
"""What a head without a number in the last layer leaves as it is."""


@pytest.fixture
def broken(run: Any, tmp_path: Path) -> Any:
    """Write the rules, their baseline and, with a NaN at some places of a tensor, ``./broken``."""
    from safetensors.numpy import load_file, save_file

    rules = [f'[[check]]\nname = "{name}"\n{rule}\n' for name, rule in RULES.items()]
    (tmp_path / "c.toml").write_text("\n".join(rules), encoding="utf-8")
    (tmp_path / "texts.txt").write_text(f"Dogs bark.\n{TEXT}\n", encoding="utf-8")
    first = '[[check]]\nagainst = "b.attnviz.json"\nscore_change = { at_most = 1 }\n'
    (tmp_path / "b.toml").write_text(first, encoding="utf-8")
    assert run("check", "b.toml", "--update").code == 0
    assert run("check", "c.toml").code == 0

    def make(tensor: str, *place: Any, number: float = math.nan) -> None:
        shutil.copytree(TINY, "broken")
        weights = {name: np.array(each) for name, each in load_file(TINY / WEIGHTS).items()}
        weights[tensor][place] = number
        save_file(weights, Path("broken", WEIGHTS), {"format": "pt"})

    return make


WEIGHTS = "model.safetensors"


def judged(run: Any, *options: str) -> dict[str, Any]:
    """Return the rules by name after checking that any that fails has no value and says why."""
    result = run("check", "c.toml", "--model", "./broken", "--json", *options)
    assert result.code == 6, result.err
    rules = {rule["name"]: rule for rule in json.loads(result.out)["rules"]}
    for rule in rules.values():
        assert rule["passed"] == (rule["value"] is not None)
        assert rule["passed"] or "no number" in rule["detail"]
    return rules


def passing(rules: dict[str, Any]) -> Sequence[str]:
    return tuple(name for name, rule in rules.items() if rule["passed"])


@pytest.mark.parametrize("backend", ["numpy", pytest.param("torch", marks=pytest.mark.long)])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_head_without_a_number(run: Any, broken: Any, backend: str, number: float) -> None:
    """Its queries are NaN or infinite, in one place of one head of the last layer."""
    broken("model.layers.5.self_attn.q_proj.weight", 32, 0, number=number)
    rules = judged(run, "--backend", backend)
    assert passing(rules) == ELSEWHERE
    for name in ("score", "statistic", "labels", "labels elsewhere", "js_divergence of 95%"):
        assert rules[name]["detail"].startswith("no number of L5H1")
    screen = run("check", "c.toml", "--model", "./broken", "--full", "--backend", backend)
    assert "no number of L5H1" in screen.out


def test_a_token_without_a_number(run: Any, broken: Any) -> None:
    """The embedding of one word is NaN: a pattern over a text without it stays as it is."""
    from attnviz.models.bundled import Bundled
    from attnviz.texts import built_in_texts

    read = (set(Bundled().encode(text).ids) for text in (built_in_texts().texts[-1], TEXT))
    broken("model.embed_tokens.weight", min(set.difference(*read)))
    held = set(passing(judged(run)))
    assert held >= {"span", "span of a head", "span of another head", "params"}
    assert not [name for name in held if name.startswith(("js_divergence", "loss", "rows"))]


def test_only_values_without_a_number(run: Any, broken: Any) -> None:
    """Patterns of the last layer do not read its values; losses do."""
    broken("model.layers.5.self_attn.v_proj.weight", 32, 0)
    rules = judged(run)
    assert {name for name in RULES if name not in passing(rules)} == {
        "loss",
        "loss at least",
        "loss of a file",
    }
