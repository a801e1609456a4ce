"""Rules that ``--init`` writes of one form of a model pass on every other form of it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from attnviz.inspect.check.baseline import write_baseline
from attnviz.inspect.check.initial import baseline_path, initial_rules
from attnviz.inspect.check.judge import outcome
from attnviz.inspect.check.measure import CheckedModel
from attnviz.inspect.check.records import BaselineRule
from attnviz.inspect.check.rules import read_rules

from ..forms import loaded, stored


@pytest.mark.parametrize(
    ("family", "scale", "seed"),
    [
        ("gpt2", 4.0, 0),
        pytest.param("opt", 8.0, 27, marks=pytest.mark.long),
        pytest.param("llama", 8.0, 1, marks=pytest.mark.long),
        pytest.param("tiny", 1.0, 5, marks=pytest.mark.long),
    ],
)
def test_rules_of_one_form_hold_on_every_other(
    family: str, scale: float, seed: int, tmp_path: Path
) -> None:
    """Both backends, stored and computed in float32, float16 and bfloat16.

    What is stored in fewer bits is computed in no others: its weights are those numbers already.
    """
    forms = {
        (stored_as, backend, dtype): directory
        for (stored_as, backend, dtype), directory in stored(tmp_path, family, scale, seed).items()
        if stored_as in ("float32", dtype) or backend == "numpy"
    }
    assert {(backend, dtype) for _, backend, dtype in forms} >= {
        ("torch", "float32"),
        ("torch", "float16"),
        ("torch", "bfloat16"),
    }
    found, written = {}, {}
    for number, (form, directory) in enumerate(forms.items()):
        model = loaded(directory, form)
        found[form] = CheckedModel("a", lambda model=model: model, lambda: {"total": 1}, seed=0)
        written[form] = tmp_path / f"{number}.toml"
        text = initial_rules(found[form], written[form], directory)
        written[form].write_text(text, encoding="utf-8")
        write_baseline(baseline_path(written[form]), found[form].baseline)
    kinds, failing = set(), []
    for one, other in product(forms, repeat=2):
        for rule in read_rules(written[one]).rules:
            judged = outcome(found[other], rule)
            kinds.add(type(rule))
            if not judged.passed:
                failing.append((one, other, rule.name, judged.value, rule.bounds))
    assert BaselineRule in kinds
    assert not failing
