"""``attnviz patterns``: screens, JSON and files of the bundled model and of small checkpoints."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from attnviz.cli.options import complete_label
from attnviz.cli.patterns import EXAMPLES
from attnviz.measures.registry import LABELS, find_label
from attnviz.models.bundled import Bundled

LAYERS, HEADS = Bundled().info.layers, Bundled().info.heads
TEXT = "When Mary and John went out, John gave a book to Mary."
PROBES = "text\tpairs\nThe dog saw the cat.\tsubject:1>2 mine:4>2\nA bird sang.\tsubject:1>2\n"


@pytest.fixture
def document(run: Any) -> Callable[..., Any]:
    """The JSON object of ``attnviz patterns ARGUMENTS --json``."""
    return lambda *arguments: run("patterns", *arguments, "--json").document


def test_the_first_answer(run: Any) -> None:
    result = run("patterns")
    assert result.code == 0  # a slow run is told on standard error
    assert result.lines[0].startswith("tiny · revision ")
    assert "What each head does" in result.out
    assert max(map(len, result.lines)) <= 80
    assert re.search(r"^previous token · \d heads?", result.out, re.MULTILINE)
    assert re.search(r"^induction · \d heads?", result.out, re.MULTILINE)
    assert "cannot be tested: " in result.out


def test_the_specialists_of_the_bundled_model(document: Any) -> None:
    """Those that its card names."""
    found = document()
    assert found["schema"] == "attnviz.patterns/1"
    heads = {(entry["layer"], entry["head"]): entry for entry in found["heads"]}
    assert len(heads) == LAYERS * HEADS
    assert heads[0, 0]["label"] == "previous"
    for place in ((1, 0), (1, 2), (1, 3)):
        assert heads[place]["label"] == "induction"
        assert heads[place]["scores"]["induction"] > 0.5
    for entry in found["heads"]:
        assert set(entry["base_rate"]) >= set(entry["strength"])
        if entry["label"] is not None:
            assert (
                entry["strength"][entry["label"]] >= (found["labels"][entry["label"]]["threshold"])
            )


def test_json_has_the_numbers_of_the_screen(run: Any, document: Any) -> None:
    screen = run("patterns", "--top", f"{LAYERS * HEADS}", "--width", "160").out
    labelled = [entry for entry in document()["heads"] if entry["label"]]
    for entry in labelled:
        name = f"L{entry['layer']}H{entry['head']}"
        row = re.search(rf"{name} +[━╸]* +([.\d]+) +([.\d]+) +([.\d]+)–([.\d]+) +(\d+) ", screen)
        assert row is not None
        score, chance, low, high, behind = map(float, row.groups())
        assert score == pytest.approx(entry["score"], abs=6e-4)
        assert chance == pytest.approx(entry["base_rate"][entry["label"]], abs=6e-4)
        assert [low, high] == pytest.approx(entry["intervals"][entry["label"]], abs=6e-3)
        assert behind == entry["measured"][entry["label"]]


def test_watching_a_label(run: Any, document: Any) -> None:
    result = run("patterns", "--watch", "inductio")
    assert result.code == 0
    assert f"Ranking: all {LAYERS * HEADS} heads" in result.out
    ranked = document("--watch", "induction")["heads"]
    names = re.findall(r"^(L\dH\d) +[━╸ ]* ", result.out, re.MULTILINE)
    assert names == [f"L{entry['layer']}H{entry['head']}" for entry in ranked]
    scores = [entry["scores"]["induction"] for entry in ranked]
    assert scores == sorted(scores, reverse=True)
    first = run("patterns", "--watch", "I", "--top", "3").out
    assert f"Ranking: the first 3 of {LAYERS * HEADS}" in first


def test_a_text_of_ones_own(run: Any, document: Any) -> None:
    found = document(TEXT)
    assert found["text"] == TEXT
    assert [probe["name"] for probe in found["probes"]] == ["text"]
    assert f"text    {TEXT}" in run("patterns", TEXT).out


def test_without_repeats_nothing_is_zero(run: Any, document: Any) -> None:
    text = "The cat sat on a mat."
    found = document(text)
    assert {"duplicate", "induction"} <= set(found["not_measured"])
    for entry in found["heads"]:
        assert entry["scores"]["induction"] is None
        assert entry["scores"]["duplicate"] is None
    assert "not measured: " in run("patterns", text).out
    watched = run("patterns", text, "--watch", "induction")
    assert watched.code == 0
    assert "not measured: " in watched.out


def test_the_next_step_looks_at_the_same_head(run: Any) -> None:
    shown = run("patterns", "--watch", "induction", "--index-base", "1", "--width", "200").out
    command = re.search(r"attnviz (ablate .*?): does it matter", shown)
    assert command is not None
    words = shlex.split(command[1])
    assert words[3:] == ["--index-base", "1"]
    again = run(*words, "--width", "200").out
    assert re.search(rf"{words[2]} .*pattern|{words[2]} .*induction", again)
    shown = run("patterns", TEXT, "--watch", "previous", "--width", "200").out
    assert f" {shlex.quote(TEXT)}: does it matter?" in shown
    for text in ("a\x1b[31m b a b", "the cat sat and " * 9 + "ran", "two\nlines"):
        shown = run("patterns", text, "--watch", "self", "--width", "200").out
        assert "\x1b" not in shown
        assert "attnviz ablate" not in shown or " TEXT: does it matter?" in shown
    assert " TEXT: does it matter?" in run("patterns", "a\x1b b a b a b", "--watch", "previous").out


def test_from_a_file_and_standard_input(run: Any, document: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    assert document("--file", "a.txt")["heads"] == document(TEXT)["heads"]
    assert run("patterns", "-", "--json", stdin=TEXT.encode()).document["text"] == TEXT


@pytest.mark.parametrize(
    ("option", "view", "words"),
    [
        ("--raw", "raw", "as they are"),
        ("--without-first", "without-first", "the weight on the first token is left out"),
        ("--norm-weighted", "norm-weighted", "times the norm of the value that it moves"),
    ],
)
def test_views(run: Any, document: Any, option: str, view: str, words: str) -> None:
    assert document(TEXT, option)["view"] == view
    assert words in " ".join(run("patterns", TEXT, option).out.split())


def test_the_control(run: Any, document: Any) -> None:
    found = document("--control", "random-weights", "--seed", "3", TEXT)
    assert found["control"]["seed"] == 3
    assert all(set(entry["control"]) == set(entry["scores"]) for entry in found["heads"])
    screen = run("patterns", "--control", "random-weights", TEXT).out
    assert "with random weights, seed 0" in " ".join(screen.split())
    assert " random " in screen


def test_probe_files(run: Any, document: Any, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(PROBES, encoding="utf-8")
    found = document("--probe", "pairs.tsv")
    pairs = next(probe["pairs"] for probe in found["probes"] if probe["pairs"])
    assert pairs == {"subject": 2, "mine": 1}
    assert all("mine" in entry["scores"] for entry in found["heads"])
    assert found["source"] == "pairs.tsv"
    watched = run("patterns", "--probe", "pairs.tsv", "--watch", "mine")
    assert watched.code == 0
    assert "mine: score of every head" in watched.out


def test_chosen_heads(run: Any, document: Any) -> None:
    found = document(TEXT, "--head", "L1H0,3")["heads"]
    assert [(entry["layer"], entry["head"]) for entry in found] == [(1, 0), (1, 3)]
    shown = run("patterns", TEXT, "--layer", "1", "--index-base", "1").out
    assert "\nL1 " in shown
    assert "\nL2 " not in shown


def test_statistics_and_explanations(run: Any) -> None:
    out = run("patterns", "--stats", "--explain").out
    assert "Statistics of every head" in out
    for layer in range(LAYERS):
        for head in range(HEADS):
            assert re.search(rf"^L{layer}H{head}  [━╸ ]+ \S", out, re.MULTILINE)
    assert "How to read this: " in out


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_checkpoints(run: Any, document: Any, checkpoint: Any, kind: str) -> None:
    text = "the cat sat on the mat because the cat sat"
    options = ["--model", str(checkpoint(kind))]
    found = document(text, *options)
    assert len(found["heads"]) == found["model"]["layers"] * found["model"]["heads"]
    assert found["kind"] == ("encoder" if kind == "t5" else "self")
    if kind == "t5":
        crossed = document(text, *options, "--kind", "cross", "--target", text)
        assert crossed["kind"] == "cross"
        assert crossed["target"] == text
        assert any("alignment" in entry["scores"] for entry in crossed["heads"])
        assert all(entry["scores"].get("previous") is None for entry in crossed["heads"])


def test_own_attention(run: Any) -> None:
    result = run("patterns", "나는 오늘 학교에 갔다 나는 오늘 .", "--model", "mha", "--causal")
    assert (result.code, result.err) == (0, "")
    assert "random weights" in result.out


def test_saving(run: Any, tmp_path: Path) -> None:
    endings = ("json", "csv", "svg", "html", "png", "txt")
    options = [word for ending in endings for word in ("--save", f"a.{ending}")]
    result = run("patterns", TEXT, *options)
    assert result.code == 0
    assert result.err.splitlines() == [f"saved a.{ending}" for ending in endings]
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == result.out
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as stream:
        assert len(list(csv.DictReader(stream))) == LAYERS * HEADS
    assert run("patterns", TEXT, *options, "--quiet").err == ""


def test_the_same_command_gives_the_same_numbers(document: Any) -> None:
    first, second = document(), document()
    assert first["heads"] == second["heads"]


def test_every_example_of_the_help_runs(run: Any) -> None:
    """Those that need a file or a checkpoint of the reader's own aside."""
    examples = [line for line in EXAMPLES.splitlines() if line.startswith("attnviz ")]
    assert len(examples) == 6
    for example in examples:
        arguments = shlex.split(example)[1:]
        if not {"--model", "--texts"} & set(arguments):
            assert run(*arguments, "--width", "100").code == 0, example


def test_help(run: Any) -> None:
    result = run("patterns", "--help", env={"COLUMNS": "100"})
    assert result.code == 0
    for name in (
        *("--file", "--probe", "--truncate", "--kind", "--target", "--layer", "--head", "--raw"),
        *("--without-first", "--norm-weighted", "--control", "--watch", "--stats", "--top"),
        *("--index-base", "--model", "--seed", "--device", "--dtype", "--json", "--save"),
        *("--palette", "--color", "--ascii", "--width", "--explain", "--quiet"),
    ):
        assert re.search(rf"{name}\b", result.out), name
    assert max(map(len, result.lines)) <= 100


@pytest.mark.parametrize(
    ("code", "arguments", "line"),
    [
        (2, ["a"], "token"),
        (2, [""], "the text is empty"),
        (2, ["a", "b"], "(put the text in quotes)"),
        (2, ["a", "--file", "b"], "give TEXT or --file, not both"),
        (2, ["--raw", "--without-first"], "--raw and --without-first exclude each other"),
        (2, ["--watch", "inducton"], "no label 'inducton': did you mean induction?"),
        (2, ["--watch", "zzz"], "no label 'zzz': labels are previous token, sink"),
        (3, ["--probe", "missing.tsv"], "cannot read 'missing.tsv'"),
        (3, ["--probe", "bad.tsv"], "line 2"),
        (3, ["--probe", "index.tsv"], "line 3"),
        (3, ["--probe", "latin.tsv"], "line 2"),
        (2, ["--control", "none"], "'none' is not one of 'random-weights'"),
        (2, ["--kind", "cross"], "'tiny' has no cross attention: expected --kind self"),
        (2, ["--target", "b"], "--target is the decoder's text"),
        (2, ["--layer", "9"], f"no layer 9: this model has layers 0 to {LAYERS - 1}"),
        (2, ["--head", "L1H9"], "no head 9: this model has heads 0 to 3"),
        (2, ["--save", "a.xyz"], "end it in one of .json, .csv, .md, .txt, .html, .svg, .png"),
        (3, ["--save", "no/a.csv"], "there is no directory no"),
        (2, ["--top", "0"], "'--top'"),
        (2, ["--width", "10"], "--width is 10 columns"),
        (2, ["--device", "cuda"], "'tiny' runs in NumPy on the cpu"),
        (3, ["--model", "./nothing"], "nothing"),
    ],
)
def test_bad_input(
    refused: Any, tmp_path: Path, code: int, arguments: list[str], line: str
) -> None:
    (tmp_path / "p.tsv").write_text(PROBES, encoding="utf-8")
    (tmp_path / "bad.tsv").write_text("text\tpairs\nOne two\n", encoding="utf-8")
    (tmp_path / "index.tsv").write_text(
        PROBES.replace("A bird sang.\tsubject:1>2", "A bird.\tsubject:1>7")
    )
    (tmp_path / "latin.tsv").write_bytes(b"text\tpairs\nCaf\xe9 two\tsubject:0>1\n")
    assert line in refused(code, "patterns", *arguments)


def test_labels_are_offered() -> None:
    assert complete_label("in") == ["induction"]
    assert complete_label("pre") == ["previous-token"]
    assert len(complete_label("")) == len(LABELS)
    assert [find_label(name) for name in complete_label("")] == list(LABELS)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("kind", ["tiny", "bert"])
@pytest.mark.parametrize("times", [1, 49], ids=["short", "long"])
def test_the_first_screen_fits_its_terminal(
    redrawn: Any, checkpoint: Any, columns: int, lines: int, kind: str, times: int
) -> None:
    model = "tiny" if kind == "tiny" else str(checkpoint(kind))
    text = " ".join(["the cat sat on the mat because tired"] * times)
    size = {"COLUMNS": str(columns), "LINES": str(lines)}
    shown = redrawn("patterns", text, "--model", model, "--truncate", "--no-full", env=size)
    assert shown.code == 0
    assert len(shown.lines) < lines
    assert max(map(cell_len, shown.lines)) <= columns
    assert " heads · " in shown.lines[0]
    assert re.match(r"\d+ of \d+ heads have a label|None of \d+ heads has a label", shown.lines[1])
    assert shown.lines[-1].endswith("--full: everything")
