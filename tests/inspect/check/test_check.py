"""``attnviz check``: values of independent ways, baselines, CI, screens; no rule by absence."""

import json
import math
import re
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme
from attnviz.errors import LoadError, UsageError
from attnviz.inspect.check.check import baseline_path, initial_rules
from attnviz.inspect.check.measure import (
    DISTANCES,
    Baseline,
    CheckedModel,
    by_distance,
    read_baseline,
    write_baseline,
)
from attnviz.inspect.check.report import Bounds, CheckReport, Outcome, Rule
from attnviz.inspect.check.rules import Given, outcome, read_rules, score_rule
from attnviz.inspect.check.screen import value_text
from attnviz.models.bundled import Bundled
from attnviz.models.work import LoadOptions
from attnviz.texts import built_in_texts

from ...first_screens import SIZES, fitting
from ..forms import loaded, stored

WEIGHTS = "model.safetensors"
TEXT = "The cat sat on the mat because it was tired."
RULES = Path(__file__).with_name("rules.toml").read_text(encoding="utf-8")


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "checks.toml"
    path.write_text(RULES, encoding="utf-8")
    return path


def mean_loss(texts):
    """Nats per token by probabilities, in float64."""
    model = Bundled("float64")
    found = []
    for text in texts:
        ids = model.encode(text).ids
        logits = model.stack.logits(ids)
        shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        found += [-math.log(shares[place, word]) for place, word in enumerate(ids[1:])]
    return sum(found) / len(found)


def test_values_are_those_of_other_ways(run, rules):
    result = run("check", "checks.toml", "--json")
    assert result.code == 6
    found = json.loads(result.out)
    values = [rule["value"] for rule in found["rules"]]
    heads = run("patterns", "--json").document["heads"]
    (induction,) = (
        head["scores"]["induction"] for head in heads if (head["layer"], head["head"]) == (1, 2)
    )
    shown = run("heads", TEXT, "--json").document
    tokens = [token.strip() for token in shown["tokens"]]
    weights = {(head["layer"], head["head"]): np.array(head["weights"]) for head in shown["heads"]}
    cat, it, mat = (tokens.index(word) for word in ("cat", "it", "the"))
    last = [matrix[-1, mat : mat + 3].sum() for matrix in weights.values()]
    assert "".join(tokens[mat : mat + 3]) == "themat"
    expected = [
        induction,
        sum(head["label"] == "induction" for head in heads),
        mean_loss(built_in_texts().texts),
        mean_loss((TEXT,)),
        weights[2, 1][it, cat],
        np.mean(last),
        run("params", "tiny", "--json").document["total"],
    ]
    assert values[:7] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert values[7] < 1e-5
    assert [rule["passed"] for rule in found["rules"]] == [
        *(True, False, True, True, True, False, True, True, False)
    ]
    assert (found["passed"], found["failed"], found["warnings"]) == (False, 2, 1)
    assert found["rules"][1]["bound"] == {"at_least": 9, "at_most": None}


def test_a_warning_changes_neither_words_nor_code(run, tmp_path):
    rule = '[[check]]\nparams = "total"\nat_most = 1\nwarning = {}\n'
    for warning, code, finding in (
        ("true", 0, "No rule fails. 1 warning: params total 5,008,640 (rule: ≤ 1)."),
        ("false", 6, "The rule fails: params total 5,008,640 (rule: ≤ 1)."),
    ):
        (tmp_path / "checks.toml").write_text(rule.format(warning), encoding="utf-8")
        result = run("check", "checks.toml", "--no-full")
        assert (result.code, result.lines[1]) == (code, finding)
        assert run("check", "checks.toml", "--json").code == code


@pytest.mark.long
def test_ci_reads_it(run, rules, tmp_path):
    here = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    (tmp_path / "summary.md").write_text("before\n", encoding="utf-8")
    result = run("check", "checks.toml", "--json", "--junit", "out.xml", env=here)
    told = [line for line in result.err.splitlines() if line.startswith("::")]
    lines = RULES.splitlines()
    assert len(told) == 3
    for line, level in zip(told, ("error", "error", "warning"), strict=True):
        match = re.fullmatch(r"::(\w+) file=checks\.toml,title=([^:,]*),line=(\d+)::(.*)", line)
        assert match[1] == level
        assert lines[int(match[3]) - 1] == "[[check]]"
    assert "%250A%3A%3Aerror" in told[1]
    assert not set("\x07\x1b\u202e") & set(result.err)
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("9", "2")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed[0] == "heads labelled induction"
    assert len(failed) == 2
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("before\n## Rules about tiny\n\n**2 of 9 rules fail")
    assert "| ✗ | heads labelled induction | 3 | ≥ 9 | probes |" in summary
    assert "heads labelled induction: L1H2" in summary
    here["GITHUB_STEP_SUMMARY"] = str(tmp_path)
    result = run("check", "checks.toml", env=here)
    assert (result.code, "no step summary" in result.err) == (6, True)


def test_attention_by_distance_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    edges = (*DISTANCES, math.inf)
    for causal in (True, False):
        weights = rng.random((2, 23, 23))
        weights = np.tril(weights) if causal else weights
        sink = np.zeros(23, bool)
        sink[[0, 22]] = True
        expected = np.zeros((2, 8 if causal else 14))
        for query in range(1 if causal else 0, 23):
            for key in range(23):
                apart = query - key
                step = 1 + next(n for n, edge in enumerate(edges) if abs(apart) <= edge)
                step = 0 if sink[key] else step + (6 if apart < 0 and not causal else 0)
                expected[:, step] += weights[:, query, key]
        np.testing.assert_allclose(by_distance(weights, sink, causal), expected)


def baseline(score=0.5):
    shares = {(0, head): np.full(8, 1 / 8) for head in range(2)}
    scores = {head: {"previous": score, "first": 0.5} for head in shares}
    return Baseline(Bundled().info, "self", "tokens", shares, scores)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"architecture"', '"other"'),
        ('"name": "tiny"', '"name": 3'),
        ('"revision": "', '"revision": 5, "more": "'),
        ('"layer": 0', '"layer": 1e999'),
        ('"head": 1', '"head": 0'),
        ('"by_distance": [0.125', '"by_distance": [NaN'),
        ('"by_distance": [0.125, 0.125', '"by_distance": [-0.125, 0.375'),
        ('"by_distance": [0.125', '"by_distance": [1' + "0" * 400),
        ('"by_distance": [0.125', '"by_distance": [0.5'),
        ('"first": 0.5', '"first": NaN'),
        ('"first": 0.5', '"first": 1.5'),
    ],
)
def test_a_damaged_baseline_is_refused(tmp_path, old, new):
    path = tmp_path / "b.json"
    write_baseline(path, baseline())
    assert read_baseline(path, baseline()).scores == baseline().scores
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(LoadError, match="is damaged"):
        read_baseline(path, baseline())


def test_what_is_no_number_holds_no_rule(tmp_path):
    for scores in ({"previous": math.nan, "first": 0.5}, {"first": 0.5, "previous": math.nan}):
        broken = replace(baseline(), scores=dict.fromkeys(baseline().scores, scores))
        assert all(map(math.isnan, baseline().score_change(broken).values()))
    shares = {**baseline().shares, (0, 1): np.full(8, math.nan)}
    with pytest.raises(UsageError, match=r"1 of 2 heads \(L0H1 first\) is not a number"):
        write_baseline(tmp_path / "b.json", replace(baseline(), shares=shares))
    assert not list(tmp_path.iterdir())
    measured = SimpleNamespace(
        scores={(0, 0): {"previous": None}, (0, 1): {"previous": 0.5}},
        head=lambda typed: (0, int(typed)),
        probed="texts",
    )
    tables = ({"head": head, "score": "previous", "at_least": 0.5} for head in "01")
    rules = [score_rule(Given(table, {}, tmp_path, None)) for table in tables]
    found = [outcome(measured, rule) for rule in rules]
    assert [each.passed for each in found] == [False, True]


def test_a_name_is_no_workflow_command(run, tmp_path):
    """Not at the beginning of a line either, wherever a screen breaks."""
    for name in ("::stop-commands::x", f"{'a' * 79} ::stop-commands::x ##[group]y"):
        rule = f'[[check]]\nname = "{name}"\nparams = "total"\nat_most = 1\n'
        (tmp_path / "::add-mask::c.toml").write_text(rule, encoding="utf-8")
        for full in ("--full", "--no-full"):
            here = {"GITHUB_ACTIONS": "true"}
            result = run("check", "::add-mask::c.toml", full, "--explain", env=here)
            lines = [line.strip() for line in (result.out + result.err).splitlines()]
            commands = [line for line in lines if line.startswith("::") or "##[" in line]
            assert len(commands) == 1
            assert commands[0].startswith("::error ")


def test_init_check_and_update(run, refused, checkpoint, tmp_path):
    """Of a small model; that the rules of the bundled one hold is the manual's workflow."""
    here = ("--init", "--model", str(checkpoint("gpt2")))
    made = run("check", "c.toml", *here, "--no-full")
    assert (made.code, "wrote" in made.err) == (0, False)
    assert made.lines[-1].startswith("wrote c.toml, c.attnviz.json · ")
    files = tmp_path / "c.toml", tmp_path / "c.attnviz.json"
    assert "--force overwrites it" in refused(2, "check", "c.toml", *here)
    before = [path.read_bytes() for path in files]
    assert run("check", "c.toml", "--json").document["passed"]
    assert run("check", "c.toml", *here, "--force", "--quiet").code == 0
    assert [path.read_bytes() for path in files] == before
    for change, said in (
        (("baseline/1", "baseline/0"), "expected 'attnviz.baseline/1'"),
        (('"architecture": "GPT2', '"architecture": "Other'), "baseline of another model"),
        (('"tokenizer": "', '"tokenizer": "0'), "its tokenizer is"),
    ):
        files[1].write_bytes(before[1].replace(change[0].encode(), change[1].encode()))
        assert said in refused(2, "check", "c.toml")
    files[1].write_bytes(before[1].replace(b'"by_distance": [', b'"by_distance": [[1], '))
    assert "is damaged" in refused(3, "check", "c.toml")
    files[1].unlink()
    assert "there is no baseline" in refused(3, "check", "c.toml")
    assert run("check", "c.toml", "--update").code == 0
    assert [path.read_bytes() for path in files] == before


def test_a_planted_change_is_found(run, checkpoint, tmp_path):
    """One head's query projection turned round: it alone is beyond the bound, and named."""
    source = checkpoint("gpt2")
    weights = {name: tensor * 8 for name, tensor in load_file(source / WEIGHTS).items()}
    heads = json.loads((source / "config.json").read_text())["n_head"]
    name = next(name for name in weights if name.endswith("h.1.attn.c_attn.weight"))
    size = weights[name].shape[0] // heads
    turned = weights[name].copy()
    turned[:, size : 2 * size] = turned[:, size : 2 * size][:, ::-1]
    for folder, changed in (("sharp", weights), ("changed", {**weights, name: turned})):
        shutil.copytree(source, tmp_path / folder)
        save_file(changed, tmp_path / folder / WEIGHTS, {"format": "pt"})
    made = run("check", "c.toml", "--init", "--model", "./sharp")
    assert made.code == 0, made.err
    rule = (
        '[[check]]\nagainst = "c.attnviz.json"\njs_divergence = {{ at_most = 1e-4, heads = "{}" }}'
    )
    others = 100 - 100 / (2 * heads) - 0.01
    for share, code in (("100%", 6), (f"{others:.2f}%", 0)):
        (tmp_path / "d.toml").write_text(rule.format(share), encoding="utf-8")
        result = run("check", "d.toml", "--model", "./changed", "--json")
        assert result.code == code, result
        (found,) = json.loads(result.out)["rules"]
        assert re.search(r"1 of \d+ heads beyond: L1H1 ", found["detail"])


def report(rules, failing):
    long = "나는 오늘 학교에 갔다 👩‍👩‍👧 " * 6
    outcomes = [
        Outcome(
            Rule(f"{number} {long if number % 5 == 4 else 'short'}", Bounds(at_least=0.5)),
            0.4999999 if number < failing else 0.75,
            "92 probe texts",
            "baseline, 23 of 24, " * (1 + number % 3) + "probes",
            "nats/token",
            detail="a sentence of detail " * 5,
        )
        for number in range(rules)
    ]
    sources = {"baseline": "tiny b7babb1", "probes": "92 texts " * 20, "unused": "nothing"}
    info, path = Bundled().info, Path("checks.toml")
    return CheckReport("tiny", info, path, tuple(outcomes), sources=sources)


@pytest.mark.parametrize(("columns", "lines"), SIZES)
@pytest.mark.parametrize(("rules", "failing"), [(1, 1), (20, 2), (40, 40)])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_first_screen_fits(columns, lines, rules, failing, ascii_only):
    theme = Theme(colour=False, ascii=ascii_only, lines=lines)
    document = report(rules, failing).document()
    shown = fitting(document, theme, columns, lines)
    assert any(line.startswith("baseline: tiny b7babb1") for line in shown)
    assert not any("unused" in line for line in shown)
    assert any(line.startswith(("✗", "✓", "FAIL", "ok")) for line in shown)
    every = terminal_block(document, theme, columns).plain.splitlines()
    start = next(at for at, line in enumerate(every) if "measured on" in line)
    marks = [line.split()[0] for line in every[start + 1 : start + 1 + rules]]
    assert marks == ["FAIL" if ascii_only else "✗"] * failing + ["ok" if ascii_only else "✓"] * (
        rules - failing
    )


@pytest.mark.parametrize("value", [0.5999999, 0.6, 0.60000001, 0.1, math.nan, 3.0])
def test_a_value_is_written_on_its_side_of_the_bound(value):
    outcome = Outcome(Rule("r", Bounds(at_least=0.6)), value, "", "")
    text = value_text(outcome).replace("–", "nan")
    assert (float(text) >= 0.6) == outcome.passed


FORMS = [
    ("float32", "torch", "float32"),
    ("float32", "torch", "float16"),
    ("bfloat16", "torch", "bfloat16"),
    ("float32", "numpy", "auto"),
]


@pytest.mark.long
@pytest.mark.parametrize(("family", "scale", "seed"), [("gpt2", 4.0, 0), ("opt", 8.0, 27)])
def test_rules_of_one_form_hold_on_every_other(family, scale, seed, tmp_path):
    """Both backends, and numbers of 32 and 16 bits, as they are stored and as they are computed."""
    every = stored(tmp_path, family, scale, seed)
    forms = {form: every[form] for form in FORMS if form in every}
    assert len(forms) >= 3
    found, written = {}, {}
    for number, (form, directory) in enumerate(forms.items()):
        model = loaded(directory, form)
        found[form] = CheckedModel("a", 0, LoadOptions(), given=model)
        written[form] = tmp_path / f"{number}.toml"
        text = initial_rules(found[form], written[form], directory)
        written[form].write_text(text, encoding="utf-8")
        write_baseline(baseline_path(written[form]), found[form].baseline)
    kinds, failing = set(), []
    for one, other in product(forms, repeat=2):
        for rule in read_rules(written[one]).rules:
            judged = outcome(found[other], rule)
            kinds.add(rule.kind)
            if not judged.passed:
                failing.append((one, other, rule.name, judged.value, rule.bounds))
    assert "BaselineRule" in kinds
    assert not failing
