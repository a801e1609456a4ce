"""Whatever is wrong with a shape or a name: one line on standard error, nothing printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[..., str]
SHAPE = ("--d-model", "64", "--heads", "8")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "expected a shape or a model: attnviz params --d-model 4096 --heads 32"),
        (("--d-model", "9" * 17, "--heads", "8"), "--d-model is more than 1,000,000,000,000,000"),
        ((*SHAPE, "--memory", "lots"), "cannot read --memory 'lots': expected a size with"),
        (("gpt2", "--gpu", "L4", "--memory", "24GB"), "--gpu and --memory both say where"),
        (("gpt2", "--gpu", "L4", "--overhead", "2"), "cannot read --overhead '2'"),
        (("gpt2", "--chunk", "512"), "--chunk and --overhead say how --gpu counts"),
        (("gpt2", "--revision", "main"), "--revision is for models of the hub: 'gpt2' has none"),
        (("gpt2", "--d-model", "64"), "--d-model describes a shape, and 'gpt2' has its own"),
        ((*SHAPE, "--compare", "head=1,2"), "no such option; did you mean 'heads'?"),
        ((*SHAPE, "--compare", "heads=4"), "has one value: expected at least two"),
        ((*SHAPE, "--compare", "heads=1,2", "--compare", "heads=4,8"), "names an option twice"),
        (
            (*SHAPE, *(f"--compare={name}={','.join(map(str, range(1, 40)))}" for name in
                       ("tokens", "batch"))),
            "more than 500 rows",
        ),
        (("gpt2", "--compare", "heads=1,2"), "changes a shape, and 'gpt2' has its own: compare"),
        (("gpt2", "t5-base", "--compare", "tokens=1,2"), "--compare takes one design"),
        ((*SHAPE, "--save", "x.npz"), "end it in one of .json, .csv, .md, .txt, .html, .svg"),
    ],
)  # fmt: skip
def test_usage_ends_with_2(refused: Refused, arguments: tuple[str, ...], line: str) -> None:
    assert line in refused(2, "params", *arguments)


def test_missing_things_end_with_3(refused: Refused, tmp_path: Path) -> None:
    assert "no directory './none' here" in refused(3, "params", "./none")
    assert "no shape 'gpt3'" in refused(3, "params", "configs/gpt3")
    assert "there is no directory" in refused(3, "params", *SHAPE, "--save", "none/x.md")
    (tmp_path / "a.toml").write_text('name = "a"\nsorce = "b"\n')
    assert "unknown key 'sorce'; did you mean 'source'?" in refused(3, "params", "./a.toml")
    (tmp_path / "b.toml").write_text("[shape]\nd_model = 64\nheads = 8\nkvheads = 2\n")
    assert "unknown key 'kvheads'; did you mean 'kv_heads'?" in refused(3, "params", "./b.toml")


def test_an_unknown_name_offers_the_nearest(refused: Refused) -> None:
    line = refused(4, "params", "llama2-70b", "--offline")
    assert "did you mean 'llama-2-70b'?" in line
