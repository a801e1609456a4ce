"""Rows in small parts, copies that share a row, and a last block cut short change no number."""

from itertools import cycle

import numpy as np
import pytest
import torch

from attnviz.engine.backend import backend_of
from attnviz.engine.effects import ScanOptions, Variant
from attnviz.engine.replacing import LostTrackError
from attnviz.engine.scan import on_torch
from attnviz.engine.scan import plan as scan_plan
from attnviz.engine.scan.expansion import STRATEGIES, BatchExpansion
from attnviz.engine.scan.plan import rows_at_once
from attnviz.models.bundled import Bundled
from attnviz.records import Input

from ...quick import one_in
from ..architectures import inputs_of, small_model
from ..scans import every, input_of, torch_scan
from ..sizes import set_sizes

NAMES = (
    *("gpt2", "llama", "gemma2", "gptj", "gpt_neo"),
    *("falcon", "bloom", "deepseek_v3", "albert", "tiny"),
)
MODES = list(zip(NAMES, cycle(("zero", "zero", "mean", "mean"))))
"""Each test has every second of them in the quick run, and so half of either mode."""


def scan_of(name, **options):
    options |= {"pair": (5, 7)}
    if name == "tiny":
        given = Input(Bundled().encode("One day a little girl went to the park."))
        patchable = backend_of(Bundled()).open_patchable("self", given)
        return on_torch.torch_scan(patchable, [given], ScanOptions(**options), [given])
    ids = input_of(inputs_of(name, source=5 if name == "albert" else 11)).ids
    return torch_scan(small_model(name), [ids], [ids], mask=96, **options)


def measured(name, **options):
    scan = scan_of(name, **options)
    variants = every(scan)
    variants.append(Variant((variants[0].heads[0], variants[-1].heads[0])))
    (piece,) = scan.scan(0, variants, range(len(variants)))
    with scan._runner.open() as plan:
        return piece, plan


def compared(found, expected):
    assert found.variants == expected.variants
    for metric, values in expected.metrics.items():
        np.testing.assert_allclose(found.metrics[metric], values, rtol=0, atol=1e-5, err_msg=metric)


@pytest.mark.parametrize(("name", "mode"), one_in(2, MODES))
def test_a_row_at_a_time_costs_the_same(name, mode, monkeypatch):
    whole, _ = measured(name, mode=mode)
    set_sizes(monkeypatch, buffer_bytes=1)
    compared(measured(name, mode=mode)[0], whole)


@pytest.mark.parametrize("name", one_in(2, NAMES[1:] + NAMES[:1]))
def test_every_way_that_works_costs_the_same(name, monkeypatch):
    whole, first = measured(name)
    assert first.strategy is not None
    monkeypatch.setattr(
        scan_plan, "STRATEGIES", tuple(each for each in STRATEGIES if not each.late)
    )
    apart, second = measured(name)
    assert not second.strategy.late
    compared(apart, whole)


@pytest.mark.parametrize(("name", "mode"), one_in(2, MODES[1:] + MODES[:1]))
def test_a_last_block_cut_short_costs_the_same(name, mode, monkeypatch):
    short, plan = measured(name, positions="last", mode=mode)
    assert plan.ends_short == (name != "albert")  # a masked model is asked anywhere in its text
    monkeypatch.setattr("attnviz.engine.scan.on_torch.ENDING", 100)
    compared(short, measured(name, positions="last", mode=mode)[0])


def test_copies_share_a_row_where_the_model_lets_them():
    assert measured("gpt2")[1].strategy.late
    assert measured("gpt_neo")[1].strategy.late
    assert not measured("llama")[1].strategy.late  # it shapes the output as the input was


def test_how_many_rows_fill_the_buffer():
    block = torch.nn.Linear(30, 50)
    assert rows_at_once([block], 10) == 16_000_000 // (50 * 10 * 4)
    assert rows_at_once([block], 1_000_000) == 1
    assert rows_at_once([], 10) > 1_000_000
    assert rows_at_once([block.to("meta")], 10) > 1_000_000


def test_a_block_with_two_attentions_runs_both_for_each_part_and_is_not_cut():
    calls = measured("gpt2")[1].calls[:2]

    def order(entries, added, kept=None):
        return BatchExpansion(calls, entries, added, STRATEGIES[0], None, 1, kept).order

    assert order((0, 0, 1), {0: 1}) == (0, 1, 0, 1, 2, 2)
    assert order((0, 0, 1), {}, kept=2) == (0, 1, 2, 2)
    with pytest.raises(LostTrackError, match="more than one"):
        order((0, 1, 1), {}, kept=2)
