"""What is shown of every causal class is the model's own, or it is refused in one line."""

import warnings

import numpy as np
import pytest
import torch

from attnviz.engine import observe_torch
from attnviz.engine.backend import backend_of
from attnviz.engine.capture import capture
from attnviz.engine.effects import Variant
from attnviz.engine.scan.run import open_scan
from attnviz.errors import AttnvizError, LoadError, UnsupportedError
from attnviz.models.prepare import prepared
from attnviz.models.third_party import third_party
from attnviz.records import Input, Tokens

from ..every_causal import WORDS, causal_kinds, small_causal
from .causal_oracle import loss_of, removed, reported, runs

LENGTH = 13
"""Beyond every window, chunk and top-k of these models, and beyond the texts they are tried on."""

IDS = torch.randint(4, WORDS, (1, LENGTH), generator=torch.Generator().manual_seed(3))
TOKENS = Tokens(
    tuple(IDS[0].tolist()), tuple(f"w{word}" for word in IDS[0].tolist()), (False,) * LENGTH
)
TOLERANCE = 1e-4

CRASHES = (RuntimeError, ValueError, LookupError, TypeError, AttributeError)

QUICK = ("deepseek_v32", "jamba", "llama4_text", "xlstm", "gptj")
"""Attention by an index, blocks without attention, chunks, a refusal, its own functions."""

SEEN = {
    *QUICK,
    "minimax_m3_vl_text",
    "kimi_linear",
    "hrm_text",
    "glm_moe_dsa",
    "hy_v4",
    "axk2",
    "qwen3_next",
    "gemma2",
    "gpt_oss",
}
SEEN |= {*causal_kinds()[::2]}
"""What the long run measures: these, and every second of all classes."""


class Rows:
    """Gathers the weights (head, query, key) of each layer from blocks of rows."""

    norms = False

    def __init__(self):
        self.layers = {}

    def wants(self, kind, layer):
        return True

    def observe(self, text, kind, layer, start, weights, beside):
        heads, rows, keys = weights.shape
        whole = self.layers.setdefault(layer, np.zeros((heads, LENGTH, LENGTH)))
        whole[:, start : start + rows, :keys] = weights


def outcome(kind, monkeypatch):
    """``right``, what is refused, or what the library itself cannot make; else an assertion."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with third_party("cannot be made"):
                plain, eager = small_causal(kind), small_causal(kind, "eager")
                runs(plain, IDS)
        except LoadError as error:
            return str(error)
        refusals = []
        for check in (heads, patterns, ablate):
            try:
                opened = prepared(kind, plain, None, torch.device("cpu"), seed=0)
                check(opened, eager, monkeypatch)
            except UnsupportedError as error:
                refusals.append(f"{check.__name__} refused: {error}")
    assert not any("\n" in refusal for refusal in refusals)
    return "; ".join(refusals) or "right"


def heads(opened, eager, monkeypatch):
    layers = capture(opened, TOKENS, kind="self").layers
    expected = reported(eager, IDS)
    if len(expected) == opened.info.layers:  # linear attention reports as well
        expected = [expected[layer.layer] for layer in layers]
    assert len(expected) in (0, len(layers))
    for layer, weights in zip(layers, expected, strict=False):
        assert np.array_equal(layer.weights, weights.float().numpy()), layer.layer


def patterns(opened, eager, monkeypatch):
    layers = capture(opened, TOKENS, kind="self").layers
    for long in (10**6, 2):  # whole matrices, then in blocks where that is possible
        monkeypatch.setattr(observe_torch, "LONG", long)
        rows = Rows()
        backend_of(opened).observe(rows, [Input(TOKENS)])
        for layer in layers:
            apart = abs(rows.layers[layer.layer] - layer.weights).max()
            assert apart <= TOLERANCE, (long, layer.layer, apart)


def ablate(opened, eager, monkeypatch):
    scan = open_scan(opened, [Input(TOKENS)])
    points = scan._runner.model.hook_points.calls
    chosen = sorted({0, len(points) // 2, len(points) - 1})
    variants = [Variant(((points[at].layer, points[at].heads - 1),)) for at in chosen]
    clean = loss_of(eager, IDS)
    for piece in scan.scan(0, variants, range(len(variants))):
        assert piece.baseline["loss"] == pytest.approx(clean, abs=TOLERANCE)
        for place, index in enumerate(piece.variants):
            point = points[chosen[index]]
            with removed(eager, chosen[index], len(points), point.heads - 1, point.heads):
                expected = loss_of(eager, IDS) - clean
            found = piece.metrics["loss_delta"][place]
            assert found == pytest.approx(expected, abs=TOLERANCE), variants[index]


@pytest.mark.parametrize("kind", QUICK)
def test_what_is_shown_is_the_models_own(kind, monkeypatch):
    refused = {"xlstm": "heads refused: xLSTMForCausalLM computes no attention weights"}
    assert outcome(kind, monkeypatch).startswith(refused.get(kind, "right"))


@pytest.mark.long
def test_every_second_causal_class_is_right_or_refused(monkeypatch):
    found, wrong = {}, {}
    for kind in sorted(SEEN):
        try:
            found[kind] = outcome(kind, monkeypatch)
        except (*CRASHES, AttnvizError, AssertionError) as error:  # one run tells all
            wrong[kind] = f"{type(error).__name__} {' '.join(str(error).split())[:200]}"
    assert wrong == {}
    assert sum(said == "right" or "refused:" in said for said in found.values()) >= 70
