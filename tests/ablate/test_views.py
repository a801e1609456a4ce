"""The ranking, the text by token and the files say what the report holds."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnviz.ablate.by_token import by_token
from attnviz.ablate.csv import COLUMNS, write_ablation_csv
from attnviz.ablate.json import ablation_document, write_ablation_json
from attnviz.ablate.names import cell_of, variant_name
from attnviz.ablate.order import ranked_effects
from attnviz.ablate.ranking import ranking, together
from attnviz.ablate.run import Scanned
from attnviz.ablate.screen import ablation_screen
from attnviz.draw.files import save
from attnviz.draw.palette import DIVERGING
from attnviz.draw.theme import Theme
from attnviz.engine.effects import METRICS, Variant

COLOUR, PLAIN = Theme("viridis"), Theme("viridis", colour=False)
JOINT = Variant(((0, 3), (1, 3), (2, 3)), "head 3 of every layer")

Scans = Callable[..., Any]


def test_the_ranking_is_in_order_and_whole(scans: Scans) -> None:
    scan = scans()
    order = ranked_effects(scan.report, 99)
    matter = [effect.loss_delta for effect in order.matter]
    harm = [effect.loss_delta for effect in order.harm]
    assert matter == sorted(matter, reverse=True)
    assert min(matter) > 0
    assert harm == sorted(harm)
    assert max(harm) < 0
    assert len(matter) + len(harm) == len(scan.report.effects)


def test_the_ranking_is_cut(scans: Scans) -> None:
    order = ranked_effects(scans().report, 3)
    assert (len(order.matter), len(order.harm)) == (3, 2)


def test_a_metric_without_sign_has_no_harm(scans: Scans) -> None:
    order = ranked_effects(scans(metric="kl").report, 99)
    assert len(order.matter) == 15
    assert not order.harm


def test_what_speaks_for_the_answer_comes_first(scans: Scans) -> None:
    scan = scans()
    effects = tuple(
        type(effect)(effect.variant, logit_diff=float(place - 4))
        for place, effect in enumerate(scan.report.effects)
    )
    report = type(scan.report)(**{**vars(scan.report), "effects": effects, "metric": "logit_diff"})
    order = ranked_effects(report, 2)
    assert [effect.logit_diff for effect in order.matter] == [-4.0, -3.0]
    assert [effect.logit_diff for effect in order.harm] == [10.0]


def test_the_longest_bar_is_the_largest_value(scans: Scans) -> None:
    lines = ranking(*fields(scans()), PLAIN, 100).plain.splitlines()
    bars = [line.count("█") for line in lines if line.startswith("L")]
    assert bars[0] == max(bars) > 10


def fields(scan: Any) -> tuple[Any, Any]:
    return scan.report, scan.view


def test_together_says_what_the_parts_add_up_to(scans: Scans) -> None:
    singles = [Variant(((layer, 3),)) for layer in range(3)]
    scan = scans(variants=[*singles, JOINT])
    total = sum(effect.loss_delta for effect in scan.report.effects[:3])
    said = together(*fields(scan), PLAIN, 100).plain
    assert "head 3 of every layer: one at a time they add up to" in said
    found = re.search(r"add up to ([+-][\d.]+) x 1e-3", said)
    assert found is not None
    assert float(found[1]) == pytest.approx(total * 1000, abs=0.006)


def test_names_by_unit(scans: Scans) -> None:
    report = scans(heads=6, kv_heads=2).report
    whole = Variant(tuple((1, head) for head in range(6)))
    group = Variant(((2, 3), (2, 4), (2, 5)))
    by_unit = {unit: scans(heads=6, kv_heads=2, unit=unit).report for unit in ("kv-head", "layer")}
    assert variant_name(report, Variant(((1, 4),)), 0) == "L1H4"
    assert variant_name(report, Variant(((1, 4),)), 1) == "L2H5"
    assert variant_name(by_unit["kv-head"], group, 0) == "L2KV1"
    assert cell_of(by_unit["kv-head"], group) == (2, 1)
    assert variant_name(by_unit["layer"], whole, 0) == "L1"
    assert cell_of(by_unit["layer"], whole) == (1, 0)
    assert cell_of(report, whole) is None
    assert variant_name(report, group, 0) == "L2H3 L2H4 L2H5"
    assert variant_name(report, whole, 0) == "L1H0 L1H1 L1H2 and 3 more"


def test_the_text_carries_the_colour_of_each_token(scans: Scans, look: Callable[..., Any]) -> None:
    tokens = scans().report.texts[0]
    deltas = np.linspace(-1, 1, len(tokens))
    deltas[0] = np.nan
    shown = look(by_token(tokens, deltas, 1.0, COLOUR, 70), 70, palette=DIVERGING)
    y, x = shown.find("Old")
    assert "Old Tom saw Ann, and Ann saw Tom." in shown.text(y)
    for label, place in (("Old", 1), ("saw", 3), ("and", 7)):
        _, at = shown.find(label)
        _, back = shown.cell(y, at)
        expected = 127.5 + 127.5 * np.sign(deltas[place]) * np.sqrt(abs(deltas[place]))
        assert back is not None
        assert min(abs(step - expected) for step in back) <= 1.5
    assert shown.cell(y, x - 1) == (None, None)  # the blank before a word is not coloured


def test_the_tokens_that_change_most_are_named(scans: Scans) -> None:
    tokens = scans().report.texts[0]
    deltas = np.zeros(len(tokens))
    deltas[0], deltas[6], deltas[11] = np.nan, 2.5, -1.25
    said = by_token(tokens, deltas, 2.5, PLAIN, 70).plain
    assert "hurts most at: , (6) +2.500 nats" in said
    assert "helps most at: Tom (11) -1.250 nats" in said


def test_no_loss_by_token_is_said(scans: Scans) -> None:
    scan = scans(view={"by_token": True})
    bare = tuple(type(e)(e.variant, output_mse=e.output_mse) for e in scan.report.effects)
    report = type(scan.report)(**{**vars(scan.report), "effects": bare, "metric": "output_mse"})
    assert "no loss for each token" in ablation_screen(report, scan.view, PLAIN, 100).plain


def test_the_control_and_the_errors_have_their_columns(scans: Scans) -> None:
    scan = scans(mode="resample", draws=3, reference="another text")
    effects = tuple(
        type(e)(e.variant, loss_delta=e.loss_delta, errors={"loss_delta": 0.0011})
        for e in scan.report.effects
    )
    control = (type(effects[0])(effects[0].variant, loss_delta=0.0042),)
    report = type(scan.report)(**{**vars(scan.report), "effects": effects, "control": control})
    said = ablation_screen(report, scan.view, PLAIN, 120).plain
    row = next(line for line in said.splitlines() if line.startswith("L0H0 "))
    assert "1.10" in row
    assert "+4.20" in row
    assert "std error" in said
    assert "random direction of equal norm" in said


def written(write: Callable[[io.StringIO], None]) -> str:
    stream = io.StringIO()
    write(stream)
    return stream.getvalue()


def test_json_is_the_document(scans: Scans) -> None:
    scan = scans(
        variants=[Variant(((0, 3),)), Variant(((1, 3),)), JOINT], texts=5, gradients={(0, 3): 0.5}
    )
    text = written(lambda stream: write_ablation_json(scan.report, scan.view, stream))
    assert text.isascii()
    assert json.loads(text) == ablation_document(scan.report, scan.view)


def test_json_has_the_fields_that_programs_rely_on(scans: Scans) -> None:
    scan = scans(texts=5)
    document = ablation_document(scan.report, scan.view)
    assert next(iter(document)) == "schema"
    assert document["schema"] == "attnviz.ablate/1"
    assert document["model"]["layers"] == 3
    assert document["tokens"] == list(scan.report.texts[0].texts)
    assert document["token_ids"] == list(scan.report.texts[0].ids)
    assert (document["mode"], document["metric"]) == ("zero", "loss_delta")
    assert document["baseline"] == {"loss": 3.25}
    for entry, effect in zip(document["heads"], scan.report.effects, strict=True):
        assert (entry["layer"], entry["head"]) == effect.variant.heads[0]
        for name in METRICS:
            assert entry[name] == effect.metric(name)
        assert entry["ci_low"] == effect.ci_low["loss_delta"] < entry["loss_delta"]
        assert entry["ci_high"] == effect.ci_high["loss_delta"] > entry["loss_delta"]
        assert entry["token_loss_deltas"][0][0] is None
        assert entry["trait"]["score"] <= 1
    few = scans(texts=4)
    for entry in ablation_document(few.report, few.view)["heads"]:
        assert (entry["ci_low"], entry["ci_high"], entry["intervals"]) == (None, None, {})


def test_json_has_no_infinity(scans: Scans) -> None:
    scan = scans()
    endless = type(scan.report.effects[0])(
        Variant(((0, 0),)), loss_delta=float("inf"), kl=float("nan")
    )
    report = type(scan.report)(**{**vars(scan.report), "effects": (endless,)})
    entry = json.loads(written(lambda s: write_ablation_json(report, scan.view, s)))["heads"][0]
    assert entry["loss_delta"] is None
    assert entry["kl"] is None


def test_json_of_gradients_alone(scans: Scans) -> None:
    scan = scans(variants=[], method="gradient", gradients={(0, 1): 0.5, (1, 0): 0.25})
    heads = ablation_document(scan.report, scan.view)["heads"]
    assert [(h["layer"], h["head"], h["gradient"]) for h in heads] == [(0, 1, 0.5), (1, 0, 0.25)]


def test_the_screen_shows_the_numbers_of_the_json(scans: Scans) -> None:
    scan = scans()
    screen = ablation_screen(scan.report, scan.view, PLAIN, 120).plain
    for entry in ablation_document(scan.report, scan.view)["heads"]:
        assert f"{entry['loss_delta'] * 1000:+.2f}" in screen


def test_what_is_no_number_stays_blank_and_is_told(scans: Scans) -> None:
    scan = scans(view={"by_token": True})
    odd = {0: float("nan"), 1: float("inf"), 2: float("-inf")}
    effects = tuple(
        type(e)(
            e.variant, loss_delta=odd.get(place, e.loss_delta), token_losses=(np.full(13, np.inf),)
        )
        for place, e in enumerate(scan.report.effects)
    )
    report = type(scan.report)(**{**vars(scan.report), "effects": effects})
    said = ablation_screen(report, scan.view, PLAIN, 100).plain
    assert "no numbers: 3 removals overflowed" in said
    assert "nan" not in said
    assert "inf" not in said
    order = ranked_effects(report, 99)
    assert len(order.matter) + len(order.harm) == 12
    whole = tuple(type(e)(e.variant, loss_delta=float("nan")) for e in effects)
    empty = type(scan.report)(**{**vars(scan.report), "effects": whole})
    assert "none, no removal changes" in ablation_screen(empty, scan.view, PLAIN, 100).plain


def test_csv_reads_back(scans: Scans) -> None:
    scan = scans(
        variants=[Variant(((0, 3),)), JOINT], texts=5, gradients={(0, 3): 0.5, (1, 1): 2.0}
    )
    text = written(lambda stream: write_ablation_csv(scan.report, stream))
    single, joint, hint = csv.DictReader(io.StringIO(text))
    assert tuple(single) == COLUMNS
    assert (single["name"], single["layer"], single["head"]) == ("L0H3", "0", "3")
    assert float(single["loss_delta"]) == scan.report.effects[0].loss_delta
    assert float(single["ci_low"]) == scan.report.effects[0].ci_low["loss_delta"]
    assert float(single["gradient"]) == 0.5
    assert joint["removed"] == "L0H3 L1H3 L2H3"
    assert (joint["layer"], joint["head"], joint["gradient"]) == ("", "", "")
    assert (hint["name"], hint["loss_delta"], hint["gradient"]) == ("L1H1", "", "2.0")


@pytest.mark.parametrize("ending", [".csv", ".svg", ".html", ".png", ".pdf"])
def test_every_format_is_written(scans: Scans, tmp_path: Path, ending: str) -> None:
    scan = scans(texts=5, view={"text": "</svg><script>alert(1)</script>"})
    path = tmp_path / f"scan{ending}"
    save(path, Scanned(scan.report, scan.view).files("viridis"))
    if ending in (".png", ".pdf"):
        assert path.read_bytes().startswith((b"\x89PNG", b"%PDF"))
        return
    content = path.read_text(encoding="utf-8")
    assert "L1H2" in content
    if ending in (".svg", ".html"):
        assert "<script" not in content
        assert "http://" not in content.replace("http://www.w3.org/2000/svg", "")
    if ending == ".svg":
        ET.fromstring(content)
    if ending == ".html":
        HTMLParser().feed(content)
        assert content.count("<tr>") == 16


def test_a_wide_model_and_gradients_are_drawn(scans: Scans, tmp_path: Path) -> None:
    wide = scans(heads=23, patterns=False)
    hint = scans(variants=[], method="gradient", gradients={(0, 1): 0.5, (1, 0): 0.25})
    for name, scan in (("wide", wide), ("hint", hint)):
        path = tmp_path / f"{name}.svg"
        save(path, Scanned(scan.report, scan.view).files("magma"))
        assert "H1" in path.read_text(encoding="utf-8")
