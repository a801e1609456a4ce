"""What a scan says on the screen: whole, at fixed widths, and what each part of it tells."""

from dataclasses import replace

import numpy as np
import pytest

from attnviz.draw import document as doc
from attnviz.draw.terminal import first_screen, terminal_block
from attnviz.draw.theme import Theme
from attnviz.engine.effects import Variant
from attnviz.inspect.interventions.ablate.claims import _most_hurt, finding
from attnviz.inspect.interventions.ablate.screen import where_it_hurts
from attnviz.inspect.interventions.study import Mean

from ....first_screens import SIZES, fitting, unframed
from .conftest import made_effect, scans, with_loss

PLAIN = Theme("viridis", colour=False)
ASCII = Theme("viridis", colour=False, ascii=True, encoding="ascii")
JOINT = Variant(((0, 3), (1, 3), (2, 3)), "head 3 of every layer")
THREE = [*(Variant(((layer, 3),)) for layer in range(3)), JOINT]
GRADIENTS = {(layer, head): (layer + 2 * head) / 700 for layer in range(3) for head in range(5)}

CASES = {
    "all_80": ({}, 80, PLAIN),
    "narrow_40": ({"by_token": True}, 40, PLAIN),
    "ascii_80": ({"by_token": True}, 80, ASCII),
    "chosen_80": ({"variants": THREE}, 80, PLAIN),
    "many_texts_120": (
        {"texts": 6, "mode": "mean", "reference": "the 6 measured texts", "source": "six.txt"},
        120,
        PLAIN,
    ),
    "gradient_80": ({"variants": [], "method": "gradient", "gradients": GRADIENTS}, 80, PLAIN),
    "budget_80": (
        {
            "variants": [Variant(((2, 4),)), Variant(((1, 4),)), Variant(((0, 4),))],
            "method": "budget",
            "rank_correlation": 0.5,
            "gradients": GRADIENTS,
        },
        80,
        PLAIN,
    ),
    "incomplete_80": ({"texts": 2, "complete": False, "texts_wanted": 7}, 80, PLAIN),
}
LONG = ("<s>", *(f" word{place}" for place in range(388)))


def screen(report, theme, room, explain=False):
    """The whole document of a report, without its colours."""
    return terminal_block(report.document(explain=explain), theme, room).plain


@pytest.mark.parametrize("name", CASES)
def test_golden(name, golden):
    fields, room, theme = CASES[name]
    golden(name, screen(scans(**fields), theme, room, explain=name == "all_80"))


def with_losses(report, change):
    """The report with what ``change`` makes of each effect and its place."""
    effects = tuple(change(place, effect) for place, effect in enumerate(report.effects))
    return replace(report, effects=effects)


def test_no_loss_by_token_is_said():
    report = scans(by_token=True)
    bare = with_losses(
        report, lambda _, e: made_effect(e.variant, {"output_mse": e.value("output_mse")})
    )
    alone = replace(bare, metric="output_mse")
    said = screen(alone, PLAIN, 100)
    assert "no loss for each token" in said
    assert finding(alone).endswith("One text is too few to rank heads: give 5 or more (--texts).")
    assert "this text alone has no control" in " ".join(said.split())
    assert "too few to rank" not in finding(report)


def test_the_control_and_the_errors_have_their_columns():
    report = with_losses(
        scans(mode="resample", draws=3, reference="another text"),
        lambda place, e: made_effect(
            e.variant,
            {"loss_delta": e.value("loss_delta")},
            bases={} if place else {"loss_delta": 0.0042},
            errors={"loss_delta": 0.0011},
        ),
    )
    said = screen(report, PLAIN, 120)
    row = next(line for line in said.splitlines() if line.startswith("L0H0 "))
    assert "0.0011" in row
    assert "+0.0042" in row
    assert "std error" in said
    assert "random vector of equal norm" in said


def test_what_is_no_number_stays_blank_and_is_told():
    odd = {0: float("nan"), 1: float("inf"), 2: float("-inf")}
    report = scans(by_token=True)
    broken = with_losses(
        report,
        lambda place, e: made_effect(
            e.variant,
            {"loss_delta": odd.get(place, e.value("loss_delta"))},
            token_losses=(np.full(13, np.inf),),
        ),
    )
    said = screen(broken, PLAIN, 100)
    assert "no numbers: 3 ablations overflowed" in said
    assert not {"nan", "inf"} & {*said.split()}
    assert len(broken.ranking(99).matter) == 12
    lost = with_losses(report, lambda _, e: made_effect(e.variant, {"loss_delta": odd[0]}))
    assert "none, no ablation changes" in screen(lost, PLAIN, 100)


def shown(report, columns, lines):
    return first_screen(report.document(hints=True), PLAIN, columns, lines - 1).plain.splitlines()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"texts": 6},
        {"by_token": True},
        {"layers": 24, "heads": 4, "texts": 6},
        {"layers": 2, "heads": 47},
        {"pieces": LONG},
        {"pieces": LONG, "by_token": True},
        {"variants": [Variant(((0, 3),))], "patterns": False},
    ],
)
def test_it_fits(fields):
    report = scans(**fields)
    name = report.name(report.ranking(1).matter[0].variant)
    for size, colour in zip(SIZES, (False, True, True), strict=True):
        lines = fitting(report.document(hints=True), Theme("viridis", colour=colour), *size)
        assert lines[0].startswith("made · ")
        assert lines[-1].endswith("--full: everything")
        assert any(unframed(line).startswith(name) for line in lines)


@pytest.mark.parametrize("size", SIZES)
def test_golden_first_screens(size, golden):
    for name, fields in (("many", {"texts": 6}), ("one", {}), ("by_token", {"by_token": True})):
        report = scans(**fields)
        golden(f"first_{name}_{size[0]}", "\n".join(shown(report, *size)) + "\n")


def with_doubts(report, p, sign=1.0):
    """Clear effects, head 3 of each layer below zero times ``sign``."""

    def clear(_, effect):
        layer, head = effect.variant.heads[0]
        value = 0.1 * (1 + layer) * (-sign if head == 3 else 1)
        made = made_effect(effect.variant, {"loss_delta": value}, texts=6)
        return with_loss(made, interval=(value - 0.05, value + 0.05), adjusted=p)

    return with_losses(report, clear)


def test_findings():
    six = scans(texts=6)
    assert finding(with_doubts(six, 0.01, -1)) == (
        "Ablating L2H0 raises the loss most, by 0.300 nats/token (3.250 → 3.550), followed by "
        "L2H1 and L2H2; no head is clearly harmful."
    )
    assert finding(with_doubts(six, 0.01)) == (
        "Ablating L2H0 raises the loss most, by 0.300 nats/token (3.250 → 3.550), followed by "
        "L2H1 and L2H2; the loss falls without L2H3, L1H3 and L0H3."
    )
    assert finding(with_doubts(six, 0.3)) == ("No significant effect among 15 heads.")
    assert finding(scans(texts=3)).endswith("3.325). 3 texts are too few for a ranking.")
    assert finding(scans()) == (
        "Ablating L1H2 raises the loss most, by 0.0747 nats/token (3.250 → 3.325), but not "
        "significantly (p = .20, threshold .02; one text)."
    )
    most = _most_hurt(scans(), scans().ranking(1).matter[0])
    assert most.startswith(", most of all at “,” (+")
    one = scans()
    tie = replace(one.ranking(2).matter[1], means=one.ranking(1).matter[0].means)
    effects = tuple(tie if effect.variant == tie.variant else effect for effect in one.effects)
    tied = finding(replace(one, effects=effects))
    assert "not significantly (p = .20, threshold .02; one text); L1H2 comes close." in tied
    noise = replace(six, model=replace(six.model, weights="random"))
    assert finding(noise) == "Random weights: differences are noise, not a ranking."
    assert finding(replace(six, complete=False, texts_wanted=9)).startswith("Incomplete, 6 of 9 t")
    guess = scans(variants=[], method="gradient", gradients={(0, 1): 0.5, (1, 0): 0.25})
    assert finding(guess) == (
        "Largest gradients: L0H1 and L1H0; an estimate, nothing was ablated. Based on one text."
    )


def test_random_directions_that_do_as_much_are_told():
    def controlled(share):
        """Random directions do so much of what each ablation does."""
        return with_losses(
            scans(metric="kl", texts=6),
            lambda _, e: replace(
                e, means={n: replace(m, base_rate=share * m.value) for n, m in e.means.items()}
            ),
        )

    assert finding(controlled(1.0)).endswith("but as large for random vectors of equal norm.")
    assert "random" not in finding(controlled(0.5))


def test_the_text_shown_is_where_it_changes_most():
    losses = np.zeros(389)
    losses[300] = 4.0
    report = with_losses(scans(pieces=LONG), lambda _, e: replace(e, token_losses=(losses,)))
    assert any("word299" in line for line in shown(report, 80, 24))


def test_no_step_is_proposed_that_fails(run):
    assert "--together" not in run("ablate", "a b c a b", "--model", "mha", "--no-full").out
    chosen = ("--model", "mha", "--head", "L0H0,L0H1")
    assert "--together" in run("ablate", "a b c a b", *chosen, "--no-full").out


def test_a_head_without_which_the_loss_falls_has_its_text_too():
    """An effect that is in neither part of a ranking, as on a head's card."""
    report = scans(texts=6, by_token=True)
    effect = replace(report.effects[0], means={"loss_delta": Mean(-0.01, (-0.02, 0.001))})
    (part,) = where_it_hurts(replace(report, effects=(effect,)))
    assert isinstance(part, doc.Maps)
