"""Rows in small parts, copies that share a row, and a last block cut short change no number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnviz.engine.effects import Variant
from attnviz.engine.patchable import Passage, transformers_subject
from attnviz.engine.scan import memory as scan_memory
from attnviz.engine.scan import plan as scan_plan
from attnviz.engine.scan.growth import WAYS, Growth
from attnviz.engine.scan.memory import rows_at_once
from attnviz.engine.scan.models import open_subject
from attnviz.engine.scan.on_torch import TorchScan
from attnviz.engine.scan.options import ScanOptions
from attnviz.engine.sites import LostTrackError
from attnviz.models.bundled import Bundled

from .architectures import inputs_of, small_model

NAMES = ("gpt2", "llama", "gemma2", "gptj", "falcon", "bloom", "deepseek_v3", "albert", "tiny")


def subject_of(name):
    if name == "tiny":
        passage = Passage(Bundled().encode("One day a little girl went to the park.").ids)
        return open_subject(Bundled(), "self", passage), passage
    inputs = inputs_of(name, source=5 if name == "albert" else 11)
    passage = Passage(tuple(inputs["input_ids"][0].tolist()))
    return transformers_subject(small_model(name), "self", passage, 96), passage


def measured(name, **options):
    subject, passage = subject_of(name)
    special = [(False,) * len(passage.ids)]
    scan = TorchScan(subject, [passage], special, ScanOptions(pair=(5, 7), **options), [passage])
    variants = [
        Variant(((layer, head),)) for layer, some in subject.heads.items() for head in range(some)
    ]
    variants.append(Variant((variants[0].heads[0], variants[-1].heads[0])))
    (piece,) = scan.scan(0, variants, range(len(variants)))
    with scan._open() as plan:
        return piece, plan


def compared(found, expected):
    assert found.variants == expected.variants
    for metric, values in expected.metrics.items():
        np.testing.assert_allclose(found.metrics[metric], values, rtol=0, atol=1e-5, err_msg=metric)


@pytest.mark.parametrize("mode", ["zero", "mean"])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_at_a_time_costs_the_same(name, mode, monkeypatch):
    whole, _ = measured(name, mode=mode)
    monkeypatch.setattr(scan_memory, "_BUFFER", 1)
    compared(measured(name, mode=mode)[0], whole)


@pytest.mark.parametrize("name", NAMES)
def test_every_way_that_works_costs_the_same(name, monkeypatch):
    whole, first = measured(name)
    assert first.way is not None
    monkeypatch.setattr(scan_plan, "WAYS", tuple(way for way in WAYS if not way.late))
    apart, second = measured(name)
    assert not second.way.late
    compared(apart, whole)


@pytest.mark.parametrize("mode", ["zero", "mean"])
@pytest.mark.parametrize("name", NAMES)
def test_a_last_block_cut_short_costs_the_same(name, mode, monkeypatch):
    short, plan = measured(name, positions="last", mode=mode)
    assert plan.ends_short == (name != "albert")  # a masked model is asked anywhere in its text
    monkeypatch.setattr("attnviz.engine.scan.text.ENDING", 100)
    compared(short, measured(name, positions="last", mode=mode)[0])


def test_copies_share_a_row_where_the_model_lets_them():
    assert measured("gpt2")[1].way.late
    assert measured("gptj")[1].way.late
    assert not measured("llama")[1].way.late  # it shapes the output as the input was


def test_how_many_rows_fill_the_buffer():
    block = torch.nn.Linear(30, 50)
    assert rows_at_once([block], 10) == 16_000_000 // (50 * 10 * 4)
    assert rows_at_once([block], 1_000_000) == 1
    assert rows_at_once([], 10) > 1_000_000
    assert rows_at_once([block.to("meta")], 10) > 1_000_000


def test_a_block_with_two_attentions_runs_both_for_each_part_and_is_not_cut():
    calls = measured("gpt2")[1].calls[:2]
    assert Growth(calls, (0, 0, 1), {0: 1}, WAYS[0], None, 1).order == (0, 1, 0, 1, 2, 2)
    assert Growth(calls, (0, 0, 1), {}, WAYS[0], None, 1, kept=2).order == (0, 1, 2, 2)
    with pytest.raises(LostTrackError, match="more than one"):
        Growth(calls, (0, 1, 1), {}, WAYS[0], None, 1, kept=2)
