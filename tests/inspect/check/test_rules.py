"""Whatever is wrong in a file of rules is one line: which rule, and the nearest known name."""

import os

import pytest

from attnviz.errors import LoadError
from attnviz.inspect.check import ci

from ...terminals import POSIX

GOOD = '[[check]]\nhead = "L1H2"\nscore = "induction"\nat_least = 0.6\n'
AGAINST = '[[check]]\nagainst = "{}"\njs_divergence = {{ at_most = 0.1 }}\n'
COUNTED = '[[check]]\nparams = "total"\nat_most = {}\n'
LONG = "a" * 300


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no rules"),
        ("check = 3", "expected rules as tables [[check]], got 3"),
        ("[[check]", "is no TOML"),
        ("x = " + "[" * 100_000, "is no TOML"),
        ("[[check]]\nat_least = 1", "rule 1: expected what to check"),
        (GOOD.replace("score =", "scor ="), "did you mean 'score'?"),
        (GOOD.replace("0.6", "nan"), "expected a finite bound"),
        (GOOD.replace("0.6", "9" * 400), "expected a finite at_least"),
        (GOOD.replace("at_least = 0.6", ""), "expected at_least or at_most"),
        (GOOD + "at_most = 0.5", "at_least 0.6 is above at_most 0.5"),
        (GOOD + 'span = "it"', "score and span are two rules"),
        (GOOD.replace('"L1H2"', "3"), "expected head as a text, got 3"),
        (GOOD + GOOD, "2 rules are called 'L1H2 induction'"),
        (GOOD + 'name = "mine"\n' + GOOD.replace("0.6", "nan"), "rule 2: expected a finite"),
        (GOOD.replace("L1H2", "L9H2"), "rule 'L9H2 induction': no layer 9"),
        (GOOD.replace("induction", "next"), "no score 'next' here: causal attention"),
        ('[[check]]\nspan = "cat"\nat_most = 1', "a span belongs to a text"),
        ('[[check]]\nspan = "dog"\ntext = "The dot."\nat_most = 1', "did you mean 'dot'?"),
        ('[[check]]\nagainst = "b.json"\nat_most = 1', "unknown key 'at_most'"),
        ('[[check]]\nagainst = "\\u0000"\nscore_change = { at_most = 1 }', "against as a file"),
        ('[[check]]\nagainst = "b.json"', "expected one of js_divergence or score_change"),
        (
            '[[check]]\nagainst = "b.json"\njs_divergence = { at_most = 1, heads = "0%" }',
            "expected heads as a share",
        ),
        ("[[check]]\nrows_sum_to_one = false", "expected rows_sum_to_one = true"),
        (GOOD * 1001, "expected at most 1,000"),
    ],
)
def test_a_mistake_is_one_line(refused, tmp_path, content, said):
    (tmp_path / "checks.toml").write_text(content, encoding="utf-8")
    assert said in refused(2, "check", "checks.toml")


@pytest.mark.parametrize(
    "options", [("--junit", "c.toml"), ("--save", "b.json"), ("--save", "texts.txt")]
)
def test_nothing_is_written_over_what_is_read(refused, tmp_path, options):
    (tmp_path / "texts.txt").write_text("A cat.", encoding="utf-8")
    rules = AGAINST.format("b.json") + '[[check]]\nloss_on_file = "texts.txt"\nat_most = 9\n'
    (tmp_path / "c.toml").write_text(rules, encoding="utf-8")
    assert "name another" in refused(2, "check", "c.toml", *options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.toml", "texts.txt"]
    assert (tmp_path / "texts.txt").read_text(encoding="utf-8") == "A cat."


@pytest.mark.parametrize(
    ("content", "option", "code", "said"),
    [
        (AGAINST.format("notes.txt"), "--update", 2, "is not a baseline"),
        (AGAINST.format("none/b.json"), "--update", 3, "there is no directory"),
        (AGAINST.format("b.json") + GOOD.replace("L1H2", "L9H2"), "--update", 2, "no layer 9"),
        (GOOD, "--update", 2, "there is nothing to update"),
        (GOOD, "--init --update", 2, "give one of the two"),
    ],
)
def test_update_renews_baselines_and_nothing_else(refused, tmp_path, content, option, code, said):
    for name, text in (("c.toml", content), ("notes.txt", "mine")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert said in refused(code, "check", "c.toml", *option.split())
    found = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert found == {"c.toml": content, "notes.txt": "mine"}


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--update", "../b.json"),
        ("--update", "{outside}/b.json"),
        ("--update", "~/b.json"),
        ("--update", "c.attnviz.json"),
        ("--init", ""),
    ],
)
def test_no_baseline_is_written_elsewhere(refused, monkeypatch, tmp_path, option, name):
    """Neither by its name nor through a link."""
    rules, outside = tmp_path / "rules", tmp_path / "outside"
    for folder in (rules, outside):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(outside))
    monkeypatch.chdir(rules)
    (rules / "c.attnviz.json").symlink_to(outside / "b.json")
    path = rules / "c.toml"
    if name:
        path.write_text(AGAINST.format(name.format(outside=outside)), encoding="utf-8")
    said = refused(2, "check", "c.toml", option)
    assert "does not lie in the directory of 'c.toml' or below it" in said
    assert not list(outside.iterdir())


def test_a_baseline_may_lie_below_the_rules(run, checkpoint, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    (tmp_path / "c.toml").write_text(AGAINST.format("linked/b.json"), encoding="utf-8")
    model = ("--model", str(checkpoint("gpt2")))
    assert run("check", "c.toml", *model, "--update").code == 0
    assert run("check", "c.toml", *model).code == 0
    assert (tmp_path / "real" / "b.json").is_file()


UNREADABLE = {
    "~nosuchuser/x": 3,
    LONG: 3,
    f"{LONG}/x": 3,
    "loop": 3,
    "loop/x": 3,
    "c.toml/x": 3,
    ".": 3,
    "fifo": 2,
    "/dev/zero": 2,
    "\\u0000": 2,
}
"""Paths, and the exit code of each."""


@POSIX
@pytest.mark.parametrize("rule", [AGAINST, '[[check]]\nloss_on_file = "{}"\nat_most = 9\n'])
def test_a_path_that_cannot_be_read_is_one_line(refused, checkpoint, tmp_path, rule):
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    for path, code in UNREADABLE.items():
        (tmp_path / "c.toml").write_text(rule.format(path), encoding="utf-8")
        refused(code, "check", "c.toml", "--model", str(checkpoint("gpt2")))


@POSIX
@pytest.mark.parametrize(
    "name", ["fifo", "loop", LONG, ".", "/dev/zero", "/dev/full", "none/x", "~nosuchuser/x"]
)
def test_what_the_environment_of_ci_names_decides_nothing(run, tmp_path, name):
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "c.toml").write_text(COUNTED.format(1), encoding="utf-8")
    for read in (False, True):  # a pipe with a reader opens
        reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK) if read else None
        environment = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": name}
        result = run("check", "c.toml", env={**environment, "GITHUB_WORKSPACE": name})
        lines = result.err.splitlines()
        assert (result.code, len(lines)) == (6, 2)
        assert lines[0].startswith("::error file=")
        assert lines[1].startswith("no step summary: ")
        if reader is not None:
            assert not os.read(reader, 1)
            os.close(reader)


@pytest.mark.parametrize(("most", "code"), [(1, 6), (7e9, 3)])
def test_a_report_that_cannot_be_written_loses_nothing(run, tmp_path, monkeypatch, most, code):
    def full(path, named):
        raise LoadError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(ci, "whole_file", full)
    (tmp_path / "c.toml").write_text(COUNTED.format(most), encoding="utf-8")
    result = run("check", "c.toml", "--junit", "out.xml")
    assert (result.code, "params total" in result.out) == (code, True)
    assert "cannot write out.xml: No space left" in result.err
