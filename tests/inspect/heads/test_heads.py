"""``attnviz heads`` on the bundled model, as a pipe sees it: plain text at a fixed width."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnviz.models.bundled import Bundled

SENTENCE = "The cat sat on the mat because it was tired."
LAYERS, HEADS = Bundled().info.layers, Bundled().info.heads
NAMES = [f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)]


def titles(out: str) -> list[str]:
    """The names of the heads whose full maps were drawn, in their order."""
    starts = (part.split(" · ")[0] for line in out.splitlines() for part in line.split("   "))
    lines = (start.strip() for start in starts)
    return [start for start in lines if start in NAMES]


def test_the_whole_answer(run: Any) -> None:
    result = run("heads", SENTENCE, "--width", "100")
    assert (result.code, result.err) == (0, "")
    assert result.lines[0].startswith("tiny · revision ")
    assert f"trained weights · float32 · {LAYERS} layers × {HEADS} heads" in result.lines[0]
    assert "this text: 17 of 24 sink on first token" in result.out
    top = result.lines.index(next(line for line in result.lines if line.startswith("    H0 ")))
    assert result.lines[top].split() == [f"H{head}" for head in range(HEADS)]
    below = result.lines[top + 1 : result.lines.index("", top)]
    named = [line for line in below if line.startswith("L")]
    assert [line.split()[0] for line in named] == [f"L{layer}" for layer in range(LAYERS)]
    maps = result.out.partition("The most distinctive heads")[2]
    assert len(titles(maps)) == 3
    assert "\x1b" not in result.out
    assert max(map(len, result.lines)) <= 100
    assert "--pair WORD WORD" in result.out


def test_a_tall_screen_names_every_head(run: Any) -> None:
    result = run("heads", SENTENCE, env={"COLUMNS": "80", "LINES": "80"})
    assert all(name in result.out for name in NAMES)


@pytest.mark.parametrize("width", [20, 40, 80, 120, 300, 1000])
def test_no_line_is_wider_than_asked(redrawn: Any, width: int) -> None:
    result = redrawn("heads", SENTENCE, "--width", str(width))
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.lines)) <= width


def test_the_width_of_the_surroundings(redrawn: Any) -> None:
    narrow = redrawn("heads", SENTENCE, env={"COLUMNS": "60"})
    assert narrow.out == redrawn("heads", SENTENCE, "--width", "60").out


def test_the_same_run_gives_the_same_screen(run: Any) -> None:
    assert run("heads", SENTENCE) == run("heads", SENTENCE)


def test_one_head_in_full(run: Any) -> None:
    result = run("heads", SENTENCE, "--head", "L1H2")
    assert titles(result.out) == ["L1H2"] * 2  # its map and its arcs
    assert "distinctive" not in result.out
    for word in ("cat", "sat", "because", "tired"):
        assert any(line.endswith(f" {word}") for line in result.lines)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--layer", "2"], NAMES[2 * HEADS : 3 * HEADS]),
        (["-l", "-1"], NAMES[-HEADS:]),
        (["--head", "3"], [f"L{layer}H3" for layer in range(LAYERS)]),
        (["-H", "L0H1", "-H", "2.0"], ["L0H1", "L2H0"]),
        (["--layer", "1", "--head", "0,2"], ["L1H0", "L1H2"]),
    ],
)
def test_chosen_heads(document: Callable[..., Any], options: list[str], expected: Any) -> None:
    heads = document(SENTENCE, *options)["heads"]
    assert [f"L{head['layer']}H{head['head']}" for head in heads] == expected


def test_names_from_one(run: Any, document: Callable[..., Any]) -> None:
    options = ("--head", "L1H1", "--index-base", "1")
    assert titles(run("heads", SENTENCE, *options).out) == ["L1H1"] * 2
    head = document(SENTENCE, *options)["heads"][0]
    assert (head["layer"], head["head"]) == (0, 0)


def test_a_token_is_typed_as_it_is_read_whatever_the_index_base(run: Any) -> None:
    """``--index-base`` counts layers and heads; tokens count from 0 on screens and in options."""
    text, base = "the cat saw the dog", ("--index-base", "1")
    pairs = run("heads", text, "--top", "2", *base).out
    read = re.findall(r"the \([0-9]+\)", pairs)
    assert read
    for typed in read:
        assert f"“the” {typed[4:]}" in run("heads", text, "--token", typed, *base).out


def test_values_stand_in_the_cells(run: Any, document: Callable[..., Any]) -> None:
    options = (SENTENCE, "--head", "L1H0")
    out = run("heads", *options, "--values").out
    weights = document(*options)["heads"][0]["weights"]
    for row in weights:
        written = f"{max(row):.2f}".lstrip("0")
        assert written[:2] in out
    assert out != run("heads", *options).out


def test_the_strongest_pairs(run: Any, document: Callable[..., Any]) -> None:
    result = run("heads", SENTENCE, "--head", "L0H1", "--top", "2")
    drawn = document(SENTENCE, "--head", "L0H1")
    tokens, weights = drawn["tokens"], drawn["heads"][0]["weights"]
    pairs = [
        (weight, query, key)
        for query, row in enumerate(weights)
        for key, weight in enumerate(row[: query + 1])
        if query and key
    ]
    row = next(line for line in result.lines if line.startswith("L0H1"))
    shown = re.findall(r"(\S+) → (\S+) ([\d.]+)", row)
    strongest = sorted(pairs, reverse=True)[:2]
    for (first, second, number), (weight, query, key) in zip(shown, strongest, strict=True):
        assert tokens[query].strip().startswith(first.removesuffix("…"))
        assert tokens[key].strip().startswith(second.removesuffix("…"))
        assert float(number) == pytest.approx(weight, abs=0.006)


@pytest.mark.parametrize("wanted", ["cat", "2", "-11"])
def test_a_word_through_all_heads(run: Any, wanted: str) -> None:
    result = run("heads", SENTENCE, "--token", wanted)
    assert (result.code, result.err) == (0, "")
    assert "cat" in result.out
    assert all(name in result.out for name in NAMES)
    assert result.out == run("heads", SENTENCE, "--token", "cat").out


@pytest.mark.parametrize("measure", ["entropy", "distance", "first", "previous", "confidence"])
def test_sorting(document: Callable[..., Any], measure: str) -> None:
    found = document(SENTENCE, "--sort", measure)
    scores = [head[measure] for head in found["heads"]]
    assert found["sorted_by"] == measure
    assert scores == sorted(scores, reverse=True)
    turned = document(SENTENCE, "--sort", measure, "--reverse")
    assert [head[measure] for head in turned["heads"]] == sorted(scores)


def test_the_first_of_the_order_are_drawn(run: Any, document: Callable[..., Any]) -> None:
    heads = document(SENTENCE, "--sort", "entropy")["heads"][:3]
    drawn = run("heads", SENTENCE, "--sort", "entropy").out.partition("The first 3 by entropy")[2]
    assert titles(drawn) == [f"L{head['layer']}H{head['head']}" for head in heads]


def test_a_reading_for_newcomers(run: Any) -> None:
    plain, explained = run("heads", SENTENCE).out, run("heads", SENTENCE, "--explain").out
    assert len(explained) > len(plain) + 200


def test_quiet_leaves_out_the_hints(run: Any) -> None:
    assert "--token WORD" in run("heads", SENTENCE).out
    assert "--token WORD" not in run("heads", SENTENCE, "--quiet").out
    assert "--token WORD" not in run("heads", SENTENCE, "-q").out


def test_text_from_a_file_and_from_standard_input(run: Any, tmp_path: Path) -> None:
    text = f"{SENTENCE}\n"
    expected = run("heads", text).out
    (tmp_path / "story.txt").write_text(text)
    assert run("heads", "--file", "story.txt").out == expected
    assert run("heads", "-", stdin=text.encode()).out == expected


def test_a_text_too_long_is_refused_or_cut(run: Any, refused: Any, document: Any) -> None:
    text = "tired " * 1500
    line = refused(2, "heads", text)
    assert "takes at most 1,024: shorten it, or add --truncate to cut it there" in line
    assert "the text has 1,50" in line
    found = document(text, "--truncate", "--head", "L0H0")
    assert len(found["tokens"]) == 1024
    assert len(run("heads", text, "--truncate", "--head", "L0H0").lines) < 200


def test_ascii_only(run: Any) -> None:
    result = run("heads", SENTENCE, "--ascii", "--explain")
    assert result.code == 0
    assert result.out.isascii()


@pytest.mark.parametrize("palette", ["viridis", "magma", "blues", "grey"])
def test_palettes_colour_the_same_map(run: Any, palette: str) -> None:
    plain = run("heads", SENTENCE, "--color", "always")
    result = run("heads", SENTENCE, "--color", "always", "--palette", palette)
    assert result.code == 0
    assert "\x1b[38;2;" in result.out
    assert (result.out == plain.out) == (palette == "viridis")


def test_colour_in_a_pipe_only_when_forced(run: Any) -> None:
    plain = run("heads", SENTENCE).out
    assert run("heads", SENTENCE, env={"FORCE_COLOR": "0"}).out == plain
    assert "\x1b[38;2;" in run("heads", SENTENCE, env={"FORCE_COLOR": "1"}).out
    forced = {"FORCE_COLOR": "1", "NO_COLOR": "1"}
    assert "▀" not in run("heads", SENTENCE, env=forced).out
    assert run("heads", SENTENCE, "--color", "never", env={"FORCE_COLOR": "1"}).out == plain


def test_double_precision(document: Callable[..., Any]) -> None:
    assert document(SENTENCE, "--dtype", "float64")["model"]["dtype"] == "float64"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
def test_streams_that_carry_less(run: Any, encoding: str) -> None:
    text = "나는 오늘 “학교”에 갔다 ."
    for arguments in (
        ("heads", text, "--model", "mha"),
        ("heads", text),
        ("heads", text, "--explain"),
        ("heads", text, "--token", "갔다", "--model", "mha"),
        ("heads", text, "--top", "2", "--model", "mha"),
        ("heads", "--help"),
        ("--help",),
    ):
        result = run(*arguments, encoding=encoding)
        assert (result.code, result.err) == (0, ""), arguments
        assert result.out.strip()


HOSTILE = "a \x1b[31mred\x1b[0m \x07 [bold]b[/bold] [/] :smile: \u202eabc\u202c \x9b2J \u200b end"


def test_a_hostile_text_does_nothing_to_the_screen(run: Any) -> None:
    for options in ((), ("--model", "mha"), ("--top", "3"), ("--token", "end"), ("--explain",)):
        out = run("heads", HOSTILE, *options).out
        assert out
        assert not {c for c in out if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f"}
        assert not {"\u202e", "\u202c", "\u200b"} & set(out)
    assert "[bold]b[/bold]" in run("heads", HOSTILE, "--model", "mha", "--width", "200").out


def test_a_known_induction_head_that_follows_a_repetition_is_the_finding(redrawn):
    text = "When Nancy met John, nobody knew why Nancy met"
    said = " ".join(redrawn("heads", text).out.split())
    assert (
        "“met” (10) attends to “John”, which followed “met” (3), in the induction head L1H3" in said
    )
    unknown = " ".join(redrawn("heads", text, "--no-known-labels").out.split())
    assert "which followed" not in unknown
    assert "No link between words beats chance" in unknown


def test_the_word_that_came_before_is_quoted_whole(run):
    """The tokens of “Anna” are “An”, “n” and “a”; the last one is what repeats."""
    said = " ".join(run("heads", "Anna found the key, so Peter asked Anna").out.split())
    assert "“Anna” (11) attends to “found”, which followed “Anna” (1), in the induction" in said
