"""The first screen: no taller than the terminal, the finding in line 2, what fits of the rest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from attnviz.draw.labels import width
from attnviz.draw.terminal import first_screen
from attnviz.draw.theme import Theme
from attnviz.engine.effects import Variant
from attnviz.inspect.interventions.ablate.document import first_groups
from attnviz.inspect.interventions.ablate.records import AblationReport
from attnviz.inspect.interventions.ablate.words import finding
from attnviz.texts import natural_texts

from ....first_screens import SIZES
from .conftest import made_effect, with_loss

SENTENCE = "When Mary and John went out, John gave a book to Mary."
LONG = " ".join(natural_texts())
PLAIN = Theme("viridis", colour=False)

Scans = Callable[..., AblationReport]


def shown(report: AblationReport, columns: int, lines: int, theme: Theme = PLAIN) -> list[str]:
    document = report.document(hints=True)._replace(first=partial(first_groups, report))
    return first_screen(document, theme, columns, lines - 1).plain.splitlines()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"texts": 6},
        {"by_token": True},
        {"layers": 12, "heads": 12},
        {"layers": 24, "heads": 16, "texts": 6},
        {"layers": 4, "heads": 47},
        {"pieces": ("<s>", *(f" word{place}" for place in range(388)))},
        {"pieces": ("<s>", *(f" word{place}" for place in range(388))), "by_token": True},
        {"metric": "kl", "texts": 6},
        {"variants": [Variant(((0, 3),))], "patterns": False},
    ],
)
def test_it_fits(scans: Scans, fields: dict[str, Any], size: tuple[int, int], colour: bool) -> None:
    report = scans(**fields)
    lines = shown(report, *size, Theme("viridis", colour=colour))
    assert len(lines) < size[1]
    assert max(map(width, lines)) <= size[0]
    assert lines[0].startswith("made · ")
    assert lines[1] == finding(report)[: len(lines[1])] != ""
    assert lines[-1].endswith("--full: everything")
    assert any(line.startswith(report.name(report.ranking(1).matter[0].variant)) for line in lines)


def test_a_deep_model_has_the_colours_of_all_its_layers(scans: Scans) -> None:
    lines = shown(scans(layers=24, heads=32), 120, 40, Theme())
    for layer in range(0, 24, 2):
        (row,) = (line for line in lines if line.startswith(f"L{layer} L{layer + 1} "))
        assert row.count("▀") == 2 * 32
    assert any(line.startswith("nats/token") for line in lines)


@pytest.mark.parametrize("size", SIZES)
def test_golden(scans: Scans, size: tuple[int, int], golden: Callable[[str, str], None]) -> None:
    for name, fields in (("many", {"texts": 6}), ("one", {}), ("by_token", {"by_token": True})):
        report = scans(**fields)
        golden(f"first_{name}_{size[0]}", "\n".join(shown(report, *size)) + "\n")


def with_doubts(report: AblationReport, p: float, sign: float = 1.0) -> AblationReport:
    """Clear effects, head 3 of each layer below zero times ``sign``."""
    effects = []
    for effect in report.effects:
        value = 0.1 * (1 + effect.variant.heads[0][0]) * (-sign if effect.head[1] == 3 else 1)
        ends = (value - 0.05, value + 0.05)
        one = made_effect(effect.variant, {"loss_delta": value}, texts=6)
        effects.append(with_loss(one, interval=ends, adjusted=p))
    return replace(report, effects=tuple(effects))


def test_findings(scans: Scans) -> None:
    six = scans(texts=6)
    assert finding(with_doubts(six, 0.01, -1)) == (
        "Without L2H0 the loss rises by 0.300 nats a token (3.250 → 3.550), the most of 15 heads, "
        "then without L2H1 and L2H2; no head is clearly harmful."
    )
    assert finding(with_doubts(six, 0.01)) == (
        "Without L2H0 the loss rises by 0.300 nats a token (3.250 → 3.550), the most of 15 heads, "
        "then without L2H1 and L2H2; the loss falls without L2H3, L1H3 and L0H3."
    )
    assert finding(with_doubts(six, 0.3)) == ("No significant effect among 15 heads.")
    three = finding(scans(texts=3))
    assert three.endswith("the largest change of 15 heads. 3 texts are too few for a ranking.")
    assert finding(scans()) == (
        "Without L1H2 the loss rises by 0.0747 nats a token (3.250 → 3.325), the largest change of "
        "15 heads, not beyond chance (203 of 1,000 draws). One text."
    )
    one = finding(scans(variants=[Variant(((1, 3),))]))
    assert one == (
        "Without L1H3 the loss rises by 0.0175 nats a token (3.250 → 3.268), not beyond chance "
        "(403 of 1,000 draws). One text."
    )
    noise = replace(six, model=replace(six.model, weights="random"))
    assert finding(noise) == "Random weights: differences are noise, not a ranking."
    assert finding(replace(six, complete=False, texts_wanted=9)).startswith("Incomplete, 6 of 9 t")
    guess = scans(variants=[], method="gradient", gradients={(0, 1): 0.5, (1, 0): 0.25})
    assert finding(guess) == (
        "Largest gradients: L0H1 and L1H0; an estimate, nothing was ablated. One text."
    )


def test_what_is_not_clear_is_grey_and_no_harm(scans: Scans) -> None:
    report = with_doubts(scans(texts=6), 0.01)
    blurred = tuple(
        with_loss(effect, interval=(-0.5, 0.5)) if effect.head[1] == 3 else effect
        for effect in report.effects
    )
    document = replace(report, effects=blurred).document()
    grid = document.groups[2].parts[0]
    for (row, column), cell in grid.cells.items():
        assert (cell.tint is None) == (column == 3), (row, column)
    assert "no head is clearly harmful" in document.finding
    assert "grey: 95% interval includes 0" in grid.title[1][0]


def test_random_directions_that_do_as_much_are_told(scans: Scans) -> None:
    report = scans(metric="kl", texts=6)

    def controlled(share: float) -> AblationReport:
        """Random directions do so much of what each ablation does."""
        effects = [
            replace(
                effect,
                means={
                    name: replace(one, base_rate=share * one.value)
                    for name, one in effect.means.items()
                },
            )
            for effect in report.effects
        ]
        return replace(report, effects=tuple(effects))

    assert finding(controlled(1.0)).endswith("but as large for random directions of equal norm.")
    assert "random" not in finding(controlled(0.5))


def test_the_text_shown_is_where_it_changes_most(scans: Scans) -> None:
    pieces = ("<s>", *(f" word{place}" for place in range(388)))
    report = scans(pieces=pieces)
    losses = np.zeros(389)
    losses[300] = 4.0
    effects = tuple(replace(effect, token_losses=(losses,)) for effect in report.effects)
    lines = shown(replace(report, effects=effects), 80, 24)
    assert any("word299" in line for line in lines)


@pytest.mark.parametrize(("columns", "lines"), SIZES)
def test_commands_fit(redrawn: Any, checkpoint: Any, columns: int, lines: int) -> None:
    """On the bundled model and on a BERT with random weights, a short and a long text."""
    size = {"COLUMNS": str(columns), "LINES": str(lines)}
    bert = str(checkpoint("bert"))
    for options in (
        (SENTENCE, "--budget", "3"),
        (LONG[:1900], "--head", "L0H0"),
        (SENTENCE, "--head", "L1H0", "--by-token"),
        ("the cat sat on the mat", "--model", bert),
    ):
        result = redrawn("ablate", *options, "--no-full", env=size)
        assert result.code == 0
        assert len(result.lines) < lines, options
        assert max(map(width, result.lines)) <= columns
        assert re.match(r"Without|Random weights", result.lines[1]), options
        assert "more rows: --full" not in result.out, options


def test_no_step_is_proposed_that_fails(run: Any) -> None:
    assert "--together" not in run("ablate", "a b c a b", "--model", "mha", "--no-full").out
    chosen = ("--model", "mha", "--head", "L0H0,L0H1")
    assert "--together" in run("ablate", "a b c a b", *chosen, "--no-full").out
