"""Whatever is wrong in a file of rules is one line: which rule, and the nearest known name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

GOOD = '[[check]]\nhead = "L1H2"\nscore = "induction"\nat_least = 0.6\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no rules"),
        ("check = []", "no rules"),
        ("check = 3", "expected rules as tables [[check]], got 3"),
        ("[[rules]]\n", "unknown key 'rules'"),
        ("[[chek]]\n", "did you mean 'check'?"),
        ("[[check]", "is no TOML"),
        ("x = " + "[" * 100_000, "is no TOML"),
        ("[[check]]\nat_least = 1", "rule 1: expected what to check"),
        (GOOD.replace("score =", "scor ="), "did you mean 'score'?"),
        (GOOD.replace("induction", "inductoin"), "did you mean 'induction'?"),
        (GOOD.replace("at_least", "atleast"), "did you mean 'at_least'?"),
        ('[[check]]\nheads_labelled = "indction"\nat_least = 1', "did you mean 'induction'?"),
        (GOOD.replace("0.6", "nan"), "expected a finite bound"),
        (GOOD.replace("0.6", "inf"), "expected a finite bound"),
        (GOOD.replace("0.6", "true"), "expected at_least as a number, got True"),
        (GOOD.replace("0.6", '"0.6"'), "expected at_least as a number"),
        (GOOD.replace("0.6", "9" * 400), "expected a finite at_least"),
        (GOOD.replace("at_least = 0.6", ""), "expected at_least or at_most"),
        (GOOD + "at_most = 0.5", "at_least 0.6 is above at_most 0.5"),
        (GOOD + 'span = "it"', "score and span are two rules"),
        (GOOD.replace('"L1H2"', "3"), "expected head as a text, got 3"),
        (GOOD + "warning = 1", "expected warning = true or false"),
        (GOOD + 'name = ""', "expected name as a text"),
        (GOOD + GOOD, "2 rules are called 'L1H2 induction'"),
        (GOOD + 'name = "mine"\n' + GOOD.replace("0.6", "nan"), "rule 2: expected a finite"),
        (GOOD.replace("L1H2", "L9H2"), "rule 'L9H2 induction': no layer 9"),
        (GOOD.replace("L1H2", "L1H*"), "expected one head such as L1H2"),
        (GOOD.replace("induction", "next"), "no score 'next' here: causal attention"),
        ('[[check]]\nparams = "totl"\nat_most = 1', "did you mean 'total'?"),
        ('[[check]]\nspan = "cat"\nat_most = 1', "a span stands in a text"),
        ('[[check]]\nspan = "dog"\ntext = "The dot."\nat_most = 1', "did you mean 'dot'?"),
        ('[[check]]\nagainst = "b.json"\nat_most = 1', "unknown key 'at_most'"),
        ('[[check]]\nagainst = "b.json"', "expected one of js_divergence or score_change"),
        (
            '[[check]]\nagainst = "b.json"\njs_divergence = { at_most = 1, heads = "0%" }',
            "expected heads as a share",
        ),
        ("[[check]]\nrows_sum_to_one = false", "expected rows_sum_to_one = true"),
        ('model = ""\n' + GOOD, "expected model as a text"),
        (GOOD * 1001, "expected at most 1,000"),
    ],
)
def test_a_mistake_is_one_line(refused: Any, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "checks.toml").write_text(content, encoding="utf-8")
    assert said in refused(2, "check", "checks.toml")


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("missing.toml", 3, "No such file"),
        (".", 3, "Is a directory"),
        ("/dev/zero", 2, "a device"),
        ("huge.toml", 3, "more than"),
        ("latin.toml", 2, "is no TOML"),
    ],
)
def test_what_is_no_file_of_rules(
    refused: Any, tmp_path: Path, path: str, code: int, said: str
) -> None:
    with (tmp_path / "huge.toml").open("wb") as stream:
        os.truncate(stream.fileno(), 2**26 + 1)
    (tmp_path / "latin.toml").write_bytes(b'model = "\xe9"')
    assert said in refused(code, "check", path)


@pytest.mark.parametrize("options", [("--init", "--update"), ("--force",), ("--update",)])
def test_options_that_do_not_go_together(
    refused: Any, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "checks.toml").write_text(GOOD, encoding="utf-8")
    refused(2, "check", "checks.toml", *options)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_and_a_byte_order_mark(run: Any, tmp_path: Path, mark: str, end: str) -> None:
    (tmp_path / "checks.toml").write_bytes((mark + GOOD.replace("\n", end)).encode())
    (rule,) = run("check", "checks.toml", "--json").document["rules"]
    assert (rule["name"], rule["passed"], rule["line"]) == ("L1H2 induction", True, 1)
