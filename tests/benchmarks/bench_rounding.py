"""How often rounding alone is taken for a change, and whether emulated rounding is of its size.

200 comparisons by ``diff`` of a model with itself in other numbers: float32, float16 and bfloat16
as they are stored and as they are computed in, in every order, by NumPy and by torch. Then the
ratio of what a run in bfloat16 on torch does to a model to what NumPy's emulation does, and 60
files of rules that ``check --init`` wrote for one form of a model and that another form must pass.
Run with ``python -m pytest tests/benchmarks/bench_rounding.py -s -n 0``: ten minutes.
"""

import json
import subprocess
import sys
from collections import Counter
from functools import partial
from itertools import permutations

import numpy as np
import pytest

import attnviz
from attnviz.engine.capture import open_probing
from attnviz.inspect.diff.compare import divergences, model_maps, pairs_by_index
from attnviz.texts import built_in_texts

from ..inspect.forms import FAMILIES, loaded, stored

pytestmark = pytest.mark.benchmark

SCALES = (1.0, 4.0, 8.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return the directories of a model by form."""
    return partial(stored, tmp_path_factory.mktemp("models"))


def cases():
    """Yield the bundled model five times, and a random one of each family at each scale."""
    yield from [("tiny", 1.0, 0)] * 5
    for seed, (family, scale) in enumerate((f, s) for s in SCALES for f in FAMILIES):
        yield family, scale, seed


def test_a_model_with_itself(model):
    generator = np.random.default_rng(0)
    every = list(cases())
    runs, reported, orders, closest = 0, 0, Counter(), 0.0
    while runs < 200:
        family, scale, seed = every[runs % len(every)]
        forms = model(family, scale, seed)
        pairs = list(permutations(forms, 2))
        a, b = pairs[generator.integers(len(pairs))]
        found = attnviz.diff(
            forms[a], forms[b], backend=a[1], dtype=a[2], backend_b=b[1], dtype_b=b[2]
        ).to_dict()
        runs += 1
        orders[f"{a[1]} and {b[1]}"] += 1
        closest = max(closest, _share(found))
        if found["changed"] + found["output_changed"]:
            reported += 1
            print(f"\n{family} x{scale:g} seed {seed}, {a} and {b}: {_summary(found)}")
    print(
        f"\n{runs} comparisons of a model with itself in other numbers: {reported} reported a head;"
        f" the closest head reached {closest:.2f} of its floor\n{dict(orders)}"
    )


def _share(found):
    """Return the largest divergence or change of an output as a share of its floor."""
    floors = (
        ("js_divergence", found["noise_floor"]),
        ("output_change", found["noise"]["output_change"]),
    )
    return max(head[name] / floor for name, floor in floors for head in found["heads"])


def _summary(found):
    return f"{found['changed']} and {found['output_changed']} heads, {_share(found):.2f} of a floor"


def test_rules_of_one_form_hold_on_another(model, tmp_path, monkeypatch):
    """Half of them are of the bundled model, its weights changed by up to 40 %: it has labels."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(1)
    every = list(dict.fromkeys(cases()))
    runs, kinds, broken = 60, Counter(), Counter()
    for run in range(runs):
        case = ("tiny", 1 + generator.uniform(0, 0.4), run) if run % 2 else every[run // 2]
        forms = model(*case)
        pairs = list(permutations(forms, 2))
        one, other = pairs[generator.integers(len(pairs))]
        assert _check(forms[one], one, "--init", "--force")[0] == 0
        code, report = _check(forms[other], other)
        assert code in (0, 6)
        kinds.update(_kind(rule) for rule in report["rules"])
        failing = [rule for rule in report["rules"] if not rule["passed"]]
        broken.update(map(_kind, failing))
        broken["files"] += bool(failing)
        for rule in failing:
            print(f"\n{case}, {one} and {other}: {rule['name']} {rule['value']} {rule['bound']}")
    print(f"\n{runs} files of {dict(kinds)} rules; those that rounding broke: {dict(broken)}")


def _check(directory, form, *more):
    """Return exit code and report of ``check`` on one form of a model, a process of its own."""
    line = ("check", "c.toml", "-m", directory, "--backend", form[1], "--dtype", form[2], *more)
    done = subprocess.run(
        (sys.executable, "-c", "from attnviz.cli.main import main; main()", *line, "--json"),
        capture_output=True,
        text=True,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def _kind(rule):
    known = ("heads labelled", "js_divergence", "loss", "rows", "params")
    return next((kind for kind in known if rule["name"].startswith(kind)), "score")


def test_emulated_rounding_is_of_the_size_of_real_rounding(model):
    ratios = {"rows": [], "outputs": []}
    for family, scale, seed in dict.fromkeys(cases()):
        forms = model(family, scale, seed)
        if ("float32", "numpy", "auto") not in forms:
            continue
        whole, exact, real = (
            loaded(forms["float32", "torch", "float32"], form)
            for form in (
                ("float32", "numpy", "auto"),
                ("float32", "torch", "float32"),
                ("float32", "torch", "bfloat16"),
            )
        )
        emulated = _apart(_maps(whole), _maps(whole.narrowed()))
        for name, one, other in zip(
            ratios, emulated, _apart(_maps(exact), _maps(real)), strict=True
        ):
            ratios[name].append(other / one)
    for name, each in ratios.items():
        print(
            f"\n{name}: the most that bfloat16 on torch does to a head is {min(each):.2f} to "
            f"{max(each):.2f} times what it does in NumPy, {np.median(each):.2f} in the median of "
            f"{len(each)} models"
        )


def _maps(model):
    probing = open_probing(model)
    return model_maps(probing, [probing.input_of(text) for text in built_in_texts().texts])


def _apart(one, other):
    """Return the most that any head's rows, and any head's outputs, are apart."""
    found = divergences(one, other, pairs_by_index(one.heads, other.heads))
    return float(found.js.mean(0).max()), float(found.output.mean(0).max())
