"""``attnviz generate``: screens, files, the end of the context, a terminal while it writes."""

import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest

import attnviz
from attnviz.draw.theme import Theme
from attnviz.engine import generation
from attnviz.engine.generation import Sampling, Step, generate
from attnviz.errors import LoadError
from attnviz.inspect.generate import generate as job
from attnviz.inspect.generate.live import unfinished
from attnviz.inspect.generate.report import GenerateReport, WrittenRun, activities, read_run
from attnviz.inspect.generate.screen import loop_of
from attnviz.measures.labels import KnownLabel, KnownLabels
from attnviz.measures.rows import EQUAL_FORMULAS, FORMULAS
from attnviz.models.resolve import load
from attnviz.records import Tokens

from ...first_screens import SIZES, fitting
from ...terminals import finished, interrupted, on_screen, rows

PROMPT = "When Nancy met John, nobody knew why Nancy met"
ASCII = Theme(colour=False, ascii=True, encoding="ascii")
ASKED = "The cat sat on the mat because"


def made(texts, steps, heads=(2, 3), layers=2, seed=0):
    """A run of random weights over tokens with these texts."""
    generator = np.random.default_rng(seed)
    begun = Tokens(tuple(range(len(texts))), tuple(texts), (True, *[False] * (len(texts) - 1)))
    written = []
    for place, text in enumerate(steps, len(texts) - 1):
        rows = {
            layer: generator.dirichlet(np.full(place + 1, 0.3), count).astype(np.float32)
            for layer, count in zip(range(layers), heads, strict=True)
        }
        written.append(Step(place, place % 5, text, 0.25, (), 1.5, rows, text == "</s>"))
    info = load("tiny").info
    return WrittenRun(
        info, "self", "the prompt", None, begun, (), Sampling(), (), tuple(written), "end"
    )


def shown(run, chosen=False):
    return GenerateReport(run, activities(run), ((0, 1),), chosen)


@pytest.mark.parametrize(
    ("size", "theme"), [*zip(SIZES, (Theme(), Theme(colour=False), ASCII), strict=True)]
)
@pytest.mark.parametrize(
    ("texts", "steps"),
    [
        (["<s>", " a"], [" b"]),
        (["<s>", "\x1b[31m", "[red]", "\u202e"], ["\x1b]0;x\x07", "\n", ":smile:", "</s>"]),
        (["<s>", " 나", "<0xEB>", "<0x8A>"], ["<0x94>", " 🎈", " <0xED>", "<0x95>", " 한"] * 9),
        (["<s>", *[f" word{n}" for n in range(90)]], [f" more{n}" for n in range(60)]),
    ],
    ids=["one", "hostile", "korean", "long"],
)
def test_a_first_screen_fits(texts, steps, theme, size):
    run = made(texts, steps)
    for chosen in (False, True):
        document = shown(run, chosen).document(hints=True)
        lines_shown = fitting(document, theme, *size)
        assert any("attended to" in line for line in lines_shown)
        assert not any("\x1b" in line or "\u202e" in line for line in lines_shown)
        assert any(line.split()[:1] == ["L0"] for line in lines_shown) != chosen


def test_what_a_head_did_is_the_mean_over_the_steps():
    """By the definitions of the measures, over rows made up here."""
    texts = ["<s>", " a", " b", " c"]
    run = made(texts, [" d", " e", " a", " b", " c", " d"])
    ids = run.tokens.ids
    found = activities(run)
    for (layer, head), one in found.items():
        rows = [step.rows[layer][head] for step in run.steps]
        means = {
            "previous": np.mean([row[-2] for row in rows]),
            "self": np.mean([row[-1] for row in rows]),
            "first": np.mean([row[0] for row in rows]),
        }
        if one.name in means:
            assert one.score == pytest.approx(means[one.name], abs=1e-6)
            assert one.uniform == pytest.approx(np.mean([1 / len(row) for row in rows]))
        if one.name == "duplicate":
            each = [
                (sum(row[at] for at in earlier), len(earlier) / len(row))
                for place, row in enumerate(rows, run.start)
                if (earlier := [at for at in range(place) if ids[at] == ids[place]])
            ]
            assert (one.score, one.uniform) == pytest.approx(np.mean(each, 0), abs=1e-6)
            assert one.steps == len(each)
        assert one.name in {*FORMULAS, *EQUAL_FORMULAS, "spread", "peaked"}
        peaks = run.peaks((layer, head))
        for key in range(1, len(run.keys)):
            assert peaks[key] == max(row[key] for row in rows if key < len(row))
        assert np.isnan(peaks[0])
        assert run.sink_weight((layer, head), 2) == pytest.approx(rows[2][0])
    assert len({one.name for one in found.values()}) > 1


def test_the_object_the_table_and_the_lines_say_the_same(run, tmp_path):
    asked = ["generate", PROMPT, "--tokens", "7", "--ablate", "L5H0", "--head", "L1H2,L0H0"]
    files = ["--save", "a.json", "--save", "a.csv", "--save", "a.jsonl"]
    found = run(*asked, "--json", *files).document
    assert found == json.loads((tmp_path / "a.json").read_text())
    model = load("tiny")
    steps = list(generate(model, model.encode(PROMPT), Sampling(tokens=7), removed=[(5, 0)]))
    assert [step["id"] for step in found["steps"]] == [step.id for step in steps]
    assert found["written"] == "".join(step.text for step in steps)
    assert (found["removed"], found["ending"]) == ([[5, 0]], "tokens")
    assert found["steps"][0]["token"] == " John"
    weights = {(each["layer"], each["head"]): each.get("weights") for each in found["heads"]}
    assert len(weights) == 24
    assert {head for head, rows in weights.items() if rows} == {(0, 0), (1, 2)}
    for place, step in enumerate(steps):
        row = np.array(weights[1, 2][place][: step.query + 1])
        np.testing.assert_allclose(row, step.rows[1][2], rtol=6e-4, atol=1e-12)
        first = found["steps"][place]["sources"][0]
        assert first["weight"] == pytest.approx(step.rows[0][0][1:].max(), abs=1e-6)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert [row["token"] for row in rows[::2]] == [step.text for step in steps]
    back = read_run((tmp_path / "a.jsonl").read_bytes(), "a.jsonl")
    assert (back.text, back.removed, back.sampling) == (PROMPT, ((5, 0),), Sampling(tokens=7))
    for step, other in zip(back.steps, steps, strict=True):
        assert step.id == other.id
        np.testing.assert_allclose(step.rows[1], other.rows[1], rtol=6e-4, atol=1e-12)
    assert [layer.weights.shape for layer in back.prompt] == [(4, 11, 11)] * 6


@pytest.fixture(scope="module")
def saved():
    return []


@pytest.fixture
def lines(run, saved, tmp_path):
    if not saved:
        run("generate", "The cat", "--tokens", "3", "--save", "a.jsonl", "--quiet")
        saved.append((tmp_path / "a.jsonl").read_text())
    return [json.loads(line) for line in saved[0].splitlines()]


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines.clear(),
        lambda lines: lines.__setitem__(0, [1]),
        lambda lines: lines[0].update(schema="attnviz.heads/1"),
        lambda lines: lines[0].update(token_ids=lines[0]["token_ids"] * 10**5),
        lambda lines: lines[0]["sampling"].pop("seed"),
        lambda lines: lines[0].update(ending="\x1b[2J"),
        lambda lines: lines[1].update(prompt_rows={"0": [[[1.0]]]}),
        lambda lines: lines[2]["rows"].pop("0"),
        lambda lines: lines[2]["rows"]["0"].__setitem__(0, [0.9] * 3),
        lambda lines: lines[2]["rows"]["0"].__setitem__(0, [1e400, 0, 0]),
        lambda lines: lines[0].update(removed=[[99, 0]]),
        lambda lines: lines[0]["sampling"].update(temperature=10**400),
        lambda lines: lines[2].update(rows={"6": lines[2]["rows"]["0"]}),
        lambda lines: lines.__delitem__(slice(2, None)),
    ],
)
def test_a_damaged_run_is_refused_in_one_line(lines, change):
    change(lines)
    with pytest.raises(LoadError) as told:
        read_run("\n".join(map(json.dumps, lines)).encode(), "b.jsonl")
    assert "\n" not in str(told.value)
    assert "\x1b" not in str(told.value)
    assert len(str(told.value)) < 400


@pytest.mark.parametrize("content", [b"", b"\xff\xfe{", b"[" * 10**6], ids=["empty", "utf", "deep"])
def test_what_is_no_run_is_refused(content):
    with pytest.raises(LoadError):
        read_run(content, "b.jsonl")


@pytest.mark.parametrize(
    ("family", "backend"),
    [("gpt2", "numpy"), pytest.param("llama", "torch", marks=pytest.mark.long)],
)
def test_writing_ends_at_the_context(family, backend, run, checkpoint, tmp_path):
    options = ("--model", str(checkpoint(family)), "--backend", backend)
    asked = ("the cat sat on the mat", "--tokens", "60", "--save", "run.jsonl", *options)
    found = run("generate", *asked, "--json").document
    context = attnviz.load(str(checkpoint(family))).context
    assert found["ending"] == "context"
    assert len(found["tokens"]) + len(found["steps"]) == context
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 2 + len(found["steps"])


@pytest.mark.parametrize("options", [("--color", "always"), ()])
def test_a_pipe_gets_colours_and_no_cursor(run, options):
    forced = {} if options else {"FORCE_COLOR": "1"}
    result = run("generate", "The cat", "--tokens", "4", "--explain", *options, env=forced)
    assert result.code == 0
    assert "spreads its attention" in result.out  # the meaning of a cell of the grid: diff
    sent = set(re.findall(r"\x1b\[[0-9;?]*([a-zA-Z])", result.out + result.err))
    assert sent == {"m"}


def test_what_was_written_is_kept_when_a_step_fails(run, tmp_path, monkeypatch):
    whole = generation.generate

    def failing(*given, **more):
        for number, step in enumerate(whole(*given, **more)):
            if number == 3:
                raise attnviz.errors.LoadError("the disk is gone")
            yield step

    monkeypatch.setattr(job, "generate", failing)
    saved = tmp_path / "run.jsonl"
    result = run("generate", "The cat", "--tokens", "9", "--json", "--save", str(saved))
    assert result.code == 3
    assert "the disk is gone" in result.err
    assert json.loads(saved.read_text().splitlines()[0])["ending"] == "failed"
    assert len(saved.read_text().splitlines()) == 2 + 3


def test_the_text_grows_and_the_screen_is_what_stays(start):
    child = start("generate", ASKED, "--tokens", "30")
    child.expect(r"of 30 tokens")
    output = child.before + child.after + finished(child)
    assert output.count("of 30 tokens") > 1
    shown = [line for line in rows(on_screen(output)) if line]
    assert shown[0].startswith("tiny · greedy · 9 + 30 tokens")
    assert not any("of 30 tokens" in line for line in shown)
    assert shown[-1].endswith("--full: everything")


def test_what_was_written_stays_when_it_is_interrupted(start, tmp_path):
    child = start("generate", ASKED, "--tokens", "900", "--temperature", "1", "--save", "a.jsonl")
    child.expect(r"of 900 tokens")
    child.expect(r"of 900 tokens")
    output = interrupted(child)
    shown = rows(on_screen(output))
    assert any("interrupted" in line for line in shown)
    assert "saved a.jsonl" in output
    run = read_run((tmp_path / "a.jsonl").read_bytes(), "a.jsonl")
    assert run.ending == "interrupted"
    assert 0 < len(run.steps) < 900


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        ((" a", "b"), 0),
        ((" a", "<0xED>"), 1),
        ((" a<0xED>", "<0x95>"), 2),
        (("<0xED>", "<0x95>", "<0x9C>"), 0),
        (("<0xF0><0x9F>", "<0x8E>"), 2),
        (("<0xED>", "<0x95><0x9C><0xED>"), 1),
        (("<0x98>", "<0x98>"), 0),
        ((), 0),
    ],
)
def test_half_of_a_character_waits_for_the_rest(texts, count):
    tokens = Tokens(tuple(range(len(texts))), texts, (False,) * len(texts))
    assert unfinished(tokens) == count


@pytest.mark.parametrize(
    ("ids", "loop"),
    [
        ([7, 1, 2, 3, 1, 2, 3, 1, 2, 3], (3, 1)),
        ([99, *range(8), *range(8), *range(6)], (8, 1)),  # two rounds and six tokens of a third
        ([99, *range(8), *range(8), *range(5)], None),
        ([7, 7, 7, 7, 7, 7], (1, 0)),
        ([1, 2, 3, 1, 2, 3], None),
        ([5], None),
    ],
)
def test_a_loop_is_two_rounds_and_more(ids, loop):
    assert loop_of([9, 9, *ids], len(ids)) == loop


def test_the_text_of_a_loop_is_quoted_in_two_lines():
    cut = " b" * 30, f" “a,{' b' * 16}…” (5"
    for last, told in (" c", " “a, b c” (5"), (' "', ': a, b " (5'), ("<0xEC>", " the same 5"), cut:
        finding = shown(made(["<s>", "a"], [" ", "a", ",", " b", last] * 4)).finding
        assert finding.startswith(f"From output token 1 on, the model repeats{told} tokens")


def test_of_induction_heads_the_one_that_copies_most_is_shown():
    scores = {(0, 0): 0.4, (0, 1): 0.5, (1, 1): 0.6}  # these copy 6, 4, and 4 tokens
    known = KnownLabels("card", {at: KnownLabel("induction", scores[at]) for at in scores})
    run = replace(made(["<s>", " a", " b"], [" c"] * 20), known=known)
    assert [job._copying(run, head) for head in ((0, 1), (1, 2))] == [(0, 0), (1, 2)]
    del known.heads[0, 0]
    assert job._copying(run, (0, 1)) == (1, 1)


def test_copies_are_counted_without_the_sink():
    run = made(["<bos>", "a", "b", "c"], ["d", "e", "f"], seed=4)
    for layer, head in run.heads:
        by_hand = 0
        for at, step in enumerate(run.steps):
            row = run.steps[at].rows[layer][head][1:]
            by_hand += run.keys.ids[1 + int(row.argmax())] == step.id
        assert run.copies[layer, head] == by_hand
