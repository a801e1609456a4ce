"""``attnviz rollout``: the two maps, JSON and files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.cli.rollout import EXAMPLES
from attnviz.draw.html import document_html
from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme
from attnviz.inspect.rollout.report import RolloutReport
from attnviz.records import ModelInfo, Tokens

TEXT = "The cat sat on the mat because it was tired."
SHORT = "Old Tom saw Ann, and Ann saw Tom."
PLAIN = Theme(colour=False)
PIECES = ("<s>", "Old", " Tom", " saw", " A", "nn", ",", " and", " A", "nn", " saw", " Tom", ".")


def make_rollout(pieces: Sequence[str] = PIECES, **fields: Any) -> RolloutReport:
    """Made-up weights, followed through three layers."""
    rng = np.random.default_rng(5)
    count = len(pieces)
    raw = np.tril(rng.dirichlet(np.full(count, 0.3), count) + 1e-4)
    raw /= raw.sum(-1, keepdims=True)
    step = 0.5 * raw + 0.5 * np.eye(count)
    info = ModelInfo("made", "0123456789abcdef", "None", "float32", 3, 5, 5, 8)
    tokens = Tokens(tuple(range(count)), tuple(pieces), tuple(text == "<s>" for text in pieces))
    made = RolloutReport(info, "self", True, tokens, step @ step @ step, raw, 3)
    return replace(made, **fields)


def test_the_sink_is_left_out_unless_asked(run: Any) -> None:
    """Each row without its first column, divided by what is left of it."""
    found = run("rollout", TEXT, "--json").document
    assert found["sink"] == [0]
    matrix = np.array(found["rollout"])
    left = np.array(found["rollout_without_sink"], dtype=float)
    assert np.isnan(left[0]).all()
    assert np.isnan(left[:, 0]).all()
    expected = matrix[1:, 1:] / matrix[1:, 1:].sum(-1, keepdims=True)
    np.testing.assert_allclose(left[1:, 1:], expected)
    last = matrix[-1]
    finding = run("rollout", TEXT).out.replace("\n", " ").replace("  ", " ")
    assert f"{last[0]:.0%} of “.”, the last token, comes from" in finding
    best = int(np.argmax(expected[-1])) + 1
    assert f"without it: “{found['tokens'][best].strip()}” {expected[-1].max():.2f}"[:-4] in finding
    assert "--sink keeps it" in run("rollout", TEXT, "--width", "200").out
    raw = run("rollout", TEXT, "--sink", "--width", "200")
    assert "raw rollout" in raw.out
    assert "“.”, the last token, comes mostly from “" in raw.out


def test_an_encoder_leaves_out_what_its_tokenizer_added(run: Any, checkpoint: Any) -> None:
    options = ["--model", str(checkpoint("bert"))]
    found = run("rollout", "the cat sat on the mat", *options, "--json").document
    assert found["sink"] == [0, len(found["tokens"]) - 1]
    shown = run("rollout", "the cat sat on the mat", *options).out
    assert "of “mat”, the last token, comes from <s> and </s>" in " ".join(shown.split())


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_an_encoder_decoder(run: Any, checkpoint: Any, kind: str) -> None:
    options = ["--model", str(checkpoint("t5")), "--kind", kind]
    target = ["--target", "the mat sat"] if kind == "decoder" else []
    found = run("rollout", "the cat sat", *options, *target, "--json").document
    assert found["kind"] == kind
    assert found["causal"] == (kind == "decoder")
    assert np.shape(found["rollout"]) == (len(found["tokens"]),) * 2


def drawn(
    rollout: RolloutReport, theme: Theme, room: int, explain: bool = False, **fields: Any
) -> str:
    document = replace(rollout, text=SHORT, **fields).document(explain=explain)
    return terminal_block(document, theme, room).plain


@pytest.mark.parametrize(
    ("name", "room", "wish"),
    [
        ("rollout_80", 80, {}),
        ("rollout_120", 120, {"values": True, "explain": True}),
        ("rollout_40", 40, {"target": "a target"}),
    ],
)
def test_golden(
    name: str,
    room: int,
    wish: dict[str, Any],
    golden: Callable[[str, str], None],
) -> None:
    golden(name, drawn(make_rollout(), PLAIN, room, **wish))


def test_tokens_and_names_cannot_act() -> None:
    evil = "\x1b[31m<script>[/]\x9b\u202e"
    report = make_rollout(pieces=("<s>", evil, "\n", " \u200b"), text=evil, target=evil)
    content = terminal_block(report.document(), PLAIN, 90).plain
    content += "".join(document_html(report.document(), "viridis"))
    assert not {"\x1b", "\x9b", "\u202e", "\u200b"} & set(content)
    assert "<script>[" not in content.partition("<html")[2]


def test_programs_get_both_matrices() -> None:
    rollout = make_rollout()
    report = replace(rollout, text=SHORT)
    document = report.to_dict()
    assert np.array_equal(document["rollout"], rollout.matrix)
    assert np.array_equal(document["last_layer"], rollout.raw)
    header, *rows = report.rows()
    assert header == ("query", "key", "query_token", "key_token", "rollout", "last_layer")
    assert len(rows) == 13 * 14 // 2
    for query, key, *tokens, followed, last in rows:
        assert (followed, last) == (rollout.matrix[query, key], rollout.raw[query, key])
        assert tokens == [rollout.tokens.texts[query], rollout.tokens.texts[key]]


def test_every_example_of_the_help_runs(run: Any, tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text("The cat sat on the mat.")
    examples = [line for line in EXAMPLES.splitlines() if line.startswith("attnviz ")]
    assert len(examples) == 3
    for example in examples:
        assert run(*shlex.split(example)[1:]).code == 0, example


@pytest.mark.parametrize(
    ("code", "arguments", "line"),
    [
        (2, [], 'expected a text: attnviz rollout "The cat'),
        (2, ["a", "--kind", "cross"], "'cross' is not one of 'self', 'encoder', 'decoder'"),
        (2, ["a", "--kind", "decoder"], "'tiny' has no decoder attention"),
        (2, ["a", "--target", "b"], "add --kind decoder"),
    ],
)
def test_bad_input(refused: Any, code: int, arguments: list[str], line: str) -> None:
    assert line in refused(code, "rollout", *arguments)


LONG = " ".join(["The old captain saw the ship and the boat came home again"] * 32)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("tiny", TEXT),
        ("tiny", LONG),
        ("tiny", "one"),
        ("mha", "나는 오늘 학교에 갔다"),
        ("bert", LONG),
    ],
)
def test_the_first_screen(
    redrawn: Any, checkpoint: Any, golden: Any, columns: int, lines: int, text: str, kind: str
) -> None:
    model = str(checkpoint(kind)) if kind == "bert" else kind
    size = {"COLUMNS": str(columns), "LINES": str(lines)}
    result = redrawn("rollout", text, "--model", model, "--truncate", "--no-full", env=size)
    assert result.code == 0
    assert len(result.lines) < lines
    assert max(map(cell_len, result.lines)) <= columns
    assert re.search("comes (mostly )?from|Every token", " ".join(result.lines[1:3]))
    if kind == "tiny" and text in (TEXT, LONG):
        golden(f"rollout_first_{'long_' * (text == LONG)}{columns}", result.out)
