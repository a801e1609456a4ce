"""What prune shows, read back: points where they belong, screens that fit, numbers that add up."""

from dataclasses import replace

import pytest

from attnviz.draw.terminal import first_screen, terminal_block
from attnviz.draw.theme import Theme
from attnviz.inspect.prune.report import Half, PrunedModel, PruneReport, PruneStep, RandomLoss
from attnviz.inspect.prune.request import PruneRequest
from attnviz.records import ModelInfo

from ...first_screens import fitting

_PLAIN = Theme(colour=False)
_ASCII = Theme(colour=False, ascii=True, encoding="ascii")
_COLOUR = Theme()
_BEGIN, _END = "Without 4 of 15 heads the held-out ", " Based on one text."
_ONE = f"{_BEGIN}loss rises by 20.0% (2.000 → 2.400)"
_SHAPES = ((3, 5, 4), (12, 12, 43), (48, 25, 400))


def _report(layers=3, heads=5, count=4, **changes):
    """Head (i mod layers, i // layers) goes at step i; the loss rises by 0.1 a step, twice at
    random."""
    total = layers * heads
    steps = tuple(
        PruneStep(
            i % layers, i // layers, 0.1, total - i - 1, 2.0 + 0.1 * (i + 1), 1.5 + 0.05 * (i + 1)
        )
        for i in range(count)
    )
    random = tuple(
        RandomLoss(step.heads_left, (step.loss, *[(9 * step.loss - 10) / 4] * 4)) for step in steps
    )
    info = ModelInfo("a\x1b[31mmodel", None, "LlamaForCausalLM", "float32", layers, heads, heads, 2)
    report = PruneReport(
        model=info,
        layers=tuple(range(layers)),
        text="A text with [red]markup[/] in it.",
        source="",
        texts=1,
        tokens=11,
        ranking=Half(1, 5, 1.5),
        held_out=Half(1, 6, 2.0),
        loss_name="loss",
        request=PruneRequest(fraction=0.3, seed=7),
        limit=None,
        steps=steps,
        random=random,
        parameters_before=1000,
        pruned=PrunedModel("cut", heads - 1, heads - 1, "LlamaForCausalLM", 900, ((0, 1),)),
        seed=7,
        seconds=0.5,
    )
    return replace(report, **changes)


def prune_screen(report):
    return " ".join(terminal_block(report.document(), _PLAIN, 200).plain.split())


def test_what_is_said_agrees_with_the_numbers():
    text = prune_screen(_report())
    assert "Held-out loss: 2.0000 to 2.4000 nats per token (×1.20)" in text
    assert "on the half that ranked 1.5000 to 1.7000 (×1.13)" in text
    assert "in random order 2.8000 (2.4000 to 2.9000 in 5 orders)" in text
    assert "1,000 to 900 (-10.0%); every layer can be cut to 4 of 5 heads, 1 removed head" in text
    masked = PrunedModel(
        "masked", 5, 5, "M", 1000, path="out", max_difference=2e-7, note="the reason"
    )
    text = prune_screen(_report(pruned=masked))
    assert "1,000, none saved: the reason" in text
    assert "Written: out (masked, with zeroed output rows; M)" in text
    assert "(max difference 2e-07 in float32)" in text


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        (
            {},
            _ONE
            + "; with as many random heads removed it rises by 40.0% (+20.0% to +45.0%, 5 draws). "
            "1 of 5 random orders does as well." + _END,
        ),
        (
            {"random": (RandomLoss(11, (3.0, 2.9, 3.1, 3.0, 3.0)),)},
            _ONE
            + "; with as many random heads removed it rises by 50.0% (+45.0% to +55.0%, 5 draws)."
            + _END,
        ),
        (
            {"random": (RandomLoss(11, (3.0,)),), "request": PruneRequest(fraction=0.3, draws=1)},
            _ONE + "; with as many random heads removed it rises by 50.0% (1 draw)." + _END,
        ),
        ({"random": ()}, _ONE + "." + _END),
        (
            {"random": (), "loss_name": "pseudo-loss"},
            f"{_BEGIN}pseudo-loss rises by 20.0% (2.000 → 2.400).{_END}",
        ),
        ({"steps": (), "random": (), "notes": ("why",)}, "No head removed: why."),
    ],
)
def test_the_finding(changes, finding):
    assert _report(**changes).document().finding == finding


@pytest.mark.parametrize(("columns", "height"), [(80, 24), (120, 40), (200, 60), (50, 24)])
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
def test_a_first_screen_fits_with_the_finding_in_line_2(columns, height, shape):
    document = _report(*shape, limit=2.5).document(hints=True)
    assert ("Stopped on this same loss" in document.finding) == bool(document.groups[2:-1])
    for theme in (_PLAIN, _ASCII, _COLOUR):
        lines = fitting(document, theme, columns, height)
        assert any(line.startswith("Held-out loss") for line in lines)


@pytest.mark.parametrize(("columns", "height"), [(80, 24), (120, 40)])
def test_golden_first_screen(columns, height, golden):
    document = _report().document(hints=True)
    screen = first_screen(document, _PLAIN, columns, height - 1)
    golden(f"first_{columns}", screen.plain)
