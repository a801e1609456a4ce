"""What is said, on screens of every width: nothing too wide, every printed column adds up."""

import re

import pytest
from rich.cells import cell_len

from attnviz.count.params.compare import MARK
from attnviz.count.params.cost import BuiltCount, MadeModel
from attnviz.count.params.parts import Case
from attnviz.count.params.report import ParamsReport
from attnviz.count.params.request import ParamsRequest
from attnviz.draw.terminal import terminal_block
from attnviz.draw.theme import Theme

from ...first_screens import SIZES

WIDTHS = (20, 47, 80, 200)
PLAIN = Theme(colour=False)
ASCII = Theme(colour=False, ascii=True, encoding="ascii")
BARE, FORMULAS = ParamsRequest(), ParamsRequest(formula=True)
SHAPE = ("--d-model", "4096", "--heads", "32")


def drawn(cases, width, view=BARE, theme=PLAIN, by=()):
    """The lines of a screen, with everything that may stand on it."""
    document = ParamsReport(cases, view, by, 1).document(hints=True, explain=True)
    return terminal_block(document, theme, width).plain.splitlines()


def total_of(case):
    return case.cost.total


def table_of(lines):
    """Label, count and share of each line of the parameter table, up to the total."""
    for line in lines:
        match = re.match(r"( *\S.*?)\s{2,}(?:.*\s)?([\d,]+)\s+<?([\d.]+)%", line)
        if match:
            yield match[1], int(match[2].replace(",", "")), float(match[3])
            if match[1] == "total":
                return


@pytest.mark.parametrize(
    ("formula", "theme"), [(False, PLAIN), (True, ASCII)], ids=["plain", "formulas in ascii"]
)
def test_no_line_is_wider_than_the_room(any_case, formula, theme):
    for width in WIDTHS:
        lines = drawn((any_case,), width, ParamsRequest(formula=formula, per_layer=True), theme)
        longest_number = max(len(word) for line in lines for word in line.split())
        assert max(map(cell_len, lines)) <= max(width, longest_number + 6), width
        assert not [line for line in lines if line != line.rstrip()]
        assert theme is PLAIN or all(line.isascii() for line in lines)


@pytest.mark.parametrize("formulas", [False, True])
@pytest.mark.parametrize("width", [80, 200])
def test_the_printed_column_adds_up(any_case, width, formulas):
    if total_of(any_case) > 10**40:
        width = 200  # numbers of 60 digits leave no room for the shares
    rows = list(table_of(drawn((any_case,), width, ParamsRequest(formula=formulas))))
    *parts, (label, total, whole) = rows
    assert (label, total, whole) == ("total", total_of(any_case), 100.0)
    towers = len(any_case.cost.spec.stacks) > 1
    details = formulas or not towers
    step = "  " if towers else ""
    kept = [row for row in parts if not details or not row[0].startswith(f"{step}  ")]
    assert sum(row[1] for row in kept) == total
    assert abs(sum(row[2] for row in kept) - 100) <= 0.1 * len(kept)


def test_formulas_are_true(any_case):
    """Every ``a × b = c`` and ``a + b = c`` on the screen is computed again."""
    text = "\n".join(drawn((any_case,), 1000, FORMULAS))
    found = re.findall(
        r"(?<![\w(^])((?:[\d,]+ [×+] )+[\d,]+)(?: layers)? = ([\d,]+)\b(?! [×+])", text
    )
    assert found
    for left, right in found:
        wanted = int(right.replace(",", ""))
        assert eval(left.replace(",", "").replace("×", "*")) == wanted, (left, right)


def compared(case, *names):
    return tuple(
        case(name, tokens=11)._replace(values=(str(place),)) for place, name in enumerate(names)
    )


def test_changed_columns_are_marked(case):
    refused = Case("", values=("3",), refusal="it does not divide")
    cases = (*compared(case, "attention", "biased"), refused)
    lines = drawn(cases, 300, by=("kv-heads",))
    text = "\n".join(lines)
    assert f"attention {MARK}" in text
    assert f"cache/token {MARK}" in text
    assert re.search(r"attention weights(?! \*)", text)
    assert "not possible: it does not divide" in text
    assert f"{MARK} changes from row to row" in text
    (what,) = [line for line in lines if line.startswith("kv-heads 0 → 1:")]
    assert what == "kv-heads 0 → 1: cache/token ÷ 7, attention ÷ 1.63, FLOPs ÷ 1.56."


def test_a_comparison_without_change_says_so(case):
    text = "\n".join(drawn(compared(case, "whole", "whole"), 200, by=("vocab",)))
    assert "vocab 0 → 1: none of this changes." in text
    assert MARK not in text


def test_a_model_that_was_built():
    made = MadeModel("Odd", 21, 3, (("body", 13), ("tail", 7)))
    sizes = {"tokens": 5, "total": 21, "buffer_total": 3, "dtype": "float32"}
    built = BuiltCount(name="x", source="", revision=None, made=made, **sizes)
    lines = drawn((Case("x", built),), 80)
    assert list(table_of(lines)) == [
        ("body", 13, 61.9),
        ("tail", 7, 33.3),
        ("outside these", 1, 4.8),
        ("total", 21, 100.0),
    ]
    assert any("Counted by building Odd" in line for line in lines)


ASKED = {
    "fits": ("llama-3-8b", "--tokens", "32768", "--memory", "24GB"),
    "layer": SHAPE,
    "pair": ("t5-base",),
    "experts": ("deepseek-v3", "--memory", "80GB"),
    "encoder": ("bert-base",),
    "vision": ("vit-base",),
    "compared": (*SHAPE, "--compare", "kv-heads=32,8,1", "--compare", "tokens=1024,4096"),
    "formula": (*SHAPE, "--formula"),
    "kinds": ("gemma-2-2b", "--per-layer"),
    "models": ("gpt2", "bert-base", "llama-2-7b"),
    "tiny": ("tiny",),
    "cards": ("llama-2-7b", "--gpu", "all", "--tokens", "4096", "--batch", "8"),
    "card": ("llama-3-8b", "--gpu", "L4"),
    "cards for an encoder": ("bert-base", "--gpu", "all"),
    "cards for several": ("llama-3-8b", "mixtral-8x7b", "--gpu", "H100,4090"),
    "cards compared": ("llama-3-8b", "--gpu", "T4", "--compare", "dtype=bfloat16,int4"),
}


@pytest.fixture
def first(fitted):
    """The lines of a first screen: ``first(80, 24, "gpt2")``."""
    return lambda columns, lines, *asked: fitted(columns, lines, "params", *asked).lines


@pytest.mark.parametrize(
    ("name", "columns", "lines"),
    [
        (name, *size)
        for at, name in enumerate(ASKED)
        for size in (*SIZES[at % 2 :], ((40, 10), (300, 90))[at % 2])
    ],
)
def test_it_fits(first, name, columns, lines):
    usual = (columns, lines) in SIZES
    shown = first(columns, lines, *ASKED[name], *["--ascii"] * (not usual))
    assert all(line == line.rstrip() for line in shown)
    if not usual:
        assert all(line.isascii() for line in shown)
        return
    assert shown[1].endswith((".", ";")) or shown[2].endswith(".")
    assert shown[-1].endswith("--full: everything")


@pytest.mark.parametrize("name", ["fits", "layer", "pair", "experts", "compared", "models", "wide"])
def test_first_screens(first, golden, name):
    size = (120, 40) if name == "wide" else (80, 24)
    golden(f"first_{name}", "\n".join([*first(*size, *ASKED.get(name, ASKED["fits"])), ""]))


def test_the_total_is_weights_and_cache(run, first):
    """Llama 3 8B by hand: 8,030,261,248 × 2 bytes, and 2 × 32 × 8 × 128 × 2 bytes per token."""
    needed = 8_030_261_248 * 2 + 2 * 32 * 8 * 128 * 2 * 32_768
    shown = first(80, 24, *ASKED["fits"])
    assert shown[1] == (
        f"Fits in 24 GB: needs {needed / 1e9:.2f} GB. ! The model was trained for 8,192 tokens "
        "only."
    )
    document = run("params", *ASKED["fits"], "--json").document
    assert document["needed_bytes"] == needed
    refused = first(80, 24, *ASKED["fits"][:-1], "20GB")
    assert refused[1].startswith(f"Does not fit in 20 GB: needs {needed / 1e9:.2f} GB, ")
    assert f"{(needed - 20e9) / 1e6:.1f} MB too much." in " ".join(refused[1:3])


def test_what_the_first_sentence_warns_of(first):
    shown = first(80, 24, "gpt2", "bert-base", "llama-2-7b", "--memory", "8GB")
    assert shown[1].startswith("2 of 3 fit in 8 GB: gpt2, bert-base. llama-2-7b against")
    shown = first(80, 24, "llama-3-8b", "--tokens", "8192", "--memory", "24GB")
    assert shown[1] == "Fits in 24 GB: needs 17.13 GB."
