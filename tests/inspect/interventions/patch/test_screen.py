"""What is said and drawn: the finding, first screens that fit, numbers that are the report's."""

from dataclasses import replace

import numpy as np
import pytest

from attnviz.draw.terminal import first_screen, terminal_block
from attnviz.draw.theme import Theme
from attnviz.inspect.interventions.patch.report import PatchEffect
from attnviz.inspect.interventions.patch.screen import finding, token_grid
from attnviz.inspect.interventions.study import Mean

from ....first_screens import SIZES, fitting
from .conftest import reports

PLAIN = Theme("viridis", colour=False)
JOINT = PatchEffect(((0, 0), (0, 1)), 1.6, 5.6, Mean(0.7, base_rate=0.2))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"pairs": 40},
        {"together": JOINT},
        {"by_token": True},
        {"what": "residual", "by_token": True, "layers": 12},
        {"what": "mlp", "layers": 48},
        {"layers": 32, "heads": 8},
        {"ratio": False, "why": "clean and corrupt differ by +0.01 logits, less than 0.1"},
        {"method": "both", "pairs": 6, "fdr": True},
    ],
)
def test_it_fits(fields):
    report = reports(**fields)
    for size, colour in zip(SIZES, (False, True, True), strict=True):
        lines = fitting(report.document(hints=True), Theme("viridis", colour=colour), *size)
        assert lines[0].startswith("made · ")
        assert " ".join(lines[1:4]).startswith(finding(report))
        assert any("clean +4.00, corrupt -4.00" in line for line in lines)
        assert lines[-1].endswith("--full: everything")


@pytest.mark.parametrize("size", SIZES)
def test_golden(size, golden):
    cases = {"one": {}, "many": {"pairs": 40}, "tokens": {"by_token": True, "what": "residual"}}
    for name, fields in cases.items():
        document = reports(**fields).document(hints=True)
        lines = first_screen(document, PLAIN, size[0], size[1] - 1).plain.splitlines()
        golden(f"first_{name}_{size[0]}", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "Patching L0H0 recovers 60% of the logit difference (control: 20%), L0H1 30% "
             "(10%). Based on one pair."),
        ({"pairs": 40}, "Patching L0H0 recovers 60% of the logit difference (control: 20%), L0H1 "
                        "30% (10%)."),
        ({"pairs": 3}, "3 pairs are too few for intervals. Patching L0H0 recovers 60%"),
        ({"pairs": 6, "metric": "kl", "index_base": 1},
         "L1H1 carries 60% of the KL divergence (control: 20%), L1H2 30% (10%)."),
        ({"together": JOINT}, "L0H0 L0H1 together carry 70% of the "
                              "logit difference; singly they add up to 90%."),
        ({"pairs": 9, "complete": False, "pairs_wanted": 40},
         "Incomplete, 9 of 40 pairs. Patching L0H0 recovers"),
        ({"what": "mlp"}, "Patching the MLP of L0 recovers 60% of"),
        ({"what": "residual", "by_token": True},
         "On entering L1, “Tom” (7), which predicts, carries 50% of the logit difference."),
        ({"by_token": True}, "Patching L0H0 recovers 60% of the logit diff"),
        ({"corrupt_metric": 5.0}, "The clean prompt favours the answer less "
                                  "than the corrupt one does. Patching L0H0 recovers 60% of"),
        ({"effects": (PatchEffect(((0, 0),), 4.66, 1.21, Mean(2.2)),), "corrupt_metric": 3.45},
         "L0H0 overshoots: patching it moves the logit difference from +3.45 past +4.00 to +4.66 "
         "(220% of the way). Based on one pair."),
        ({"effects": (PatchEffect(((0, 0),), 4.66, 1.21, Mean(2.2)),), "corrupt_metric": 3.45,
          "pairs": 7},
         "L0H0 overshoots: it carries 220% of the logit difference"),
        ({"ratio": False, "why": "clean and corrupt differ by 0 logits"},
         "Clean and corrupt differ by 0 logits: no shares."),
    ],
)  # fmt: skip
def test_findings(fields, said):
    assert finding(reports(**fields)).startswith(said)


def with_shares(report, **fields):
    return tuple(replace(e, share=replace(e.share, **fields)) for e in report.effects)


def test_what_no_pair_supports_is_not_found():
    report = reports(pairs=40)
    unsure = replace(report, effects=with_shares(report, adjusted=0.4))
    said = "None of 12 heads carries more of the logit difference than its control."
    one = reports()
    below = with_shares(one, base_rate=0.9)
    assert finding(replace(one, effects=below)) == f"{said} Based on one pair."
    assert finding(unsure) == said
    against = reports(effects=(PatchEffect(((0, 0),), -9.0, -5.0, Mean(-0.6)),))
    said = "No head that was patched carries any of the logit difference."
    assert finding(against) == f"{said} Based on one pair."


def test_random_weights_are_said_to_be_random():
    info = replace(reports().model, weights="random")
    many = reports(pairs=40, model=info)
    flat = with_shares(many, adjusted=0.4)
    assert finding(replace(many, effects=flat)) == (
        "Random weights: nothing carries more than its control."
    )
    close = replace(many, ratio=False, why="clean and corrupt differ by 0 logits")
    assert finding(close).startswith("Random weights: nothing carries a difference: clean and")
    assert "says nothing about a trained model" in finding(reports(model=info))


def test_a_grid_of_tokens_keeps_those_that_carry_most():
    report = reports(by_token=True)
    found = report.by_token
    (whole,), (few,) = token_grid(report), token_grid(report, 2)
    assert [name.split(" (")[1] for name in whole.rows] == [f"{at})" for at in range(2, 8)]
    sizes = np.abs(found.values).max(axis=1)
    kept = sorted(np.argsort(-sizes)[:2].tolist())
    assert list(few.rows) == [whole.rows[row] for row in kept]
    assert few.title[1][0] == f"4 other tokens: at most {np.sort(sizes)[-3]:.2g}"


def test_numbers_are_the_same_on_every_outlet():
    report = reports(pairs=40, together=JOINT, index_base=1)
    data = report.to_dict()
    screen = terminal_block(report.document(explain=True), PLAIN, 100).plain
    assert data["heads"][0]["name"] == "L0H0"
    assert "L1H1" in screen
    assert "L0" not in screen
    for entry, effect in zip(data["heads"], report.effects, strict=True):
        assert entry["effect"] == effect.share.value
        assert (entry["ci_low"], entry["ci_high"]) == effect.share.interval
    for effect in report.ranking():
        assert f"{effect.share.value:+.3f}" in screen
    rows = list(report.rows())
    assert [row[4] for row in rows[1:]] == [e.share.value for e in (*report.effects, JOINT)]
    assert rows[0][:4] == ("name", "layer", "head", "pairs")
