"""Order and names of ablations, and what a report gives to programs."""

import io
import json
from dataclasses import replace

from attnviz.draw.values import write_object
from attnviz.engine.effects import Variant
from attnviz.inspect.interventions.ablate.report import AblationReport

from .conftest import made_effect, scans, with_loss

JOINT = Variant(((0, 3), (1, 3), (2, 3)), "head 3 of every layer")


def of_many_texts(report, adjusted):
    """The same with intervals and p values; those of heads 0 include zero."""
    effects = []
    for effect in report.effects:
        value = effect.value("loss_delta")
        wide = 2 * abs(value) if effect.variant.heads[0][1] == 0 else abs(value) / 2
        ends = (value - wide, value + wide)
        effects.append(with_loss(effect, interval=ends, adjusted=adjusted))
    return replace(report, effects=tuple(effects))


def test_one_text_is_no_ranking():
    report = scans()
    order = report.ranking(99)
    sizes = [abs(effect.value("loss_delta")) for effect in order.matter]
    assert not report.ranks
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == len(report.effects)
    assert min(effect.value("loss_delta") for effect in order.matter) < 0
    assert not order.harm


def test_harm_must_be_significant_among_all():
    report = of_many_texts(scans(texts=6), adjusted=0.04)
    assert report.ranks
    order = report.ranking(99)
    matter = [effect.value("loss_delta") for effect in order.matter]
    harm = [effect.value("loss_delta") for effect in order.harm]
    assert matter == sorted(matter, reverse=True)
    assert min(matter) > 0
    assert harm == sorted(harm)
    assert max(harm) < 0
    assert 0 not in {effect.variant.heads[0][1] for effect in order.harm}
    assert {e.variant.heads[0][1] for e in order.matter if e.shown("loss_delta").unclear} == {0}
    assert not of_many_texts(report, adjusted=0.06).ranking(99).harm
    noise = replace(report, model=replace(report.model, weights="random"))
    assert not noise.ranks
    assert not noise.ranking(99).harm
    assert not replace(report, metric="kl").ranking(99).harm


def test_the_ranking_is_cut():
    assert len(scans(top=3).ranking().matter) == 3
    order = of_many_texts(scans(texts=6, top=3), adjusted=0.01).ranking()
    assert (len(order.matter), len(order.harm)) == (3, 2)


def test_what_speaks_for_the_answer_comes_first():
    report = scans(metric="logit_diff", texts=6)
    effects = tuple(
        made_effect(
            effect.variant,
            {"logit_diff": float(place - 4)},
            intervals={"logit_diff": (place - 4.5, place - 3.5)},
            adjusted={"logit_diff": 0.01},
        )
        for place, effect in enumerate(report.effects)
    )
    order = replace(report, effects=effects).ranking(2)
    assert [effect.value("logit_diff") for effect in order.matter] == [-4.0, -3.0]
    assert [effect.value("logit_diff") for effect in order.harm] == [10.0]


def test_names_by_unit():
    report = scans(heads=6, kv_heads=2)
    whole = Variant(tuple((1, head) for head in range(6)))
    group = Variant(((2, 3), (2, 4), (2, 5)))
    groups, layers = replace(report, unit="kv-head"), replace(report, unit="layer")
    block = Variant((), feed_forward=(1,))
    blocks = replace(report, unit="ffn")
    assert (blocks.name(block), blocks.cell(block), blocks.column(0)) == ("L1 MLP", (1, 0), "MLP")
    assert replace(report, unit="attention").name(whole) == "L1 attention"
    assert report.name(Variant(((0, 1),), feed_forward=(0, 1))) == "L0H1 L0 MLP L1 MLP"
    assert report.name(Variant(((1, 4),))) == "L1H4"
    assert replace(report, index_base=1).name(Variant(((1, 4),))) == "L2H5"
    assert (groups.name(group), groups.cell(group)) == ("L2KV1", (2, 1))
    assert (layers.name(whole), layers.cell(whole)) == ("L1", (1, 0))
    assert report.cell(whole) is None
    assert report.name(group) == "L2H3 L2H4 L2H5"
    assert report.name(whole) == "L1H0 L1H1 L1H2 and 3 more"


def test_json_has_no_infinity():
    endless = made_effect(Variant(((0, 0),)), {"loss_delta": float("inf"), "kl": float("nan")})
    stream = io.StringIO()
    write_object(replace(scans(), effects=(endless,)).data(), stream, AblationReport.lists)
    entry = json.loads(stream.getvalue())["heads"][0]
    assert (entry["loss_delta"], entry["kl"]) == (None, None)


def test_rows_hold_every_ablation_and_what_was_only_estimated():
    report = scans(
        variants=[Variant(((0, 3),)), JOINT], texts=5, gradients={(0, 3): 0.5, (1, 1): 2.0}
    )
    header, *rows = report.rows()
    single, joint, hint = (dict(zip(header, row, strict=True)) for row in rows)
    effect = report.effects[0]
    assert (single["name"], single["layer"], single["head"]) == ("L0H3", 0, 3)
    assert single["loss_delta"] == effect.value("loss_delta")
    assert (single["ci_low"], single["ci_high"]) == effect.means["loss_delta"].interval
    assert single["gradient"] == 0.5
    assert joint["removed"] == "L0H3 L1H3 L2H3"
    assert (joint["layer"], joint["head"], joint["gradient"]) == (None, None, None)
    assert (hint["name"], hint["loss_delta"], hint["gradient"]) == ("L1H1", None, 2.0)
