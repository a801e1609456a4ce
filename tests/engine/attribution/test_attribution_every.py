"""On every causal class of transformers the parts add up to the logit, or it is refused; and its
heads' parts are what the model loses without them while everything else stays as it was."""

import warnings
from contextlib import suppress

import pytest
import torch

from attnviz.engine.attribution.on_torch import TorchAttributor
from attnviz.engine.attribution.parts import AskedLogit
from attnviz.engine.patchable import patchable_transformers
from attnviz.errors import LoadError, UnsupportedError
from attnviz.models.third_party import third_party
from attnviz.records import Input

from ...every_causal import WORDS, causal_kinds, small_causal
from ...quick import one_in
from ..causal_oracle import runs
from .frozen_replay import FrozenReplay

IDS = torch.randint(4, WORDS, (1, 13), generator=torch.Generator().manual_seed(3))
GIVEN = Input.of_ids(IDS[0].tolist())
ASKED = AskedLogit(None, None, None, ())
ANSWER, FOIL = 5, 7
ROUNDING = 5e-6

LOST = {"jetmoe", "zamba"}
"""Experts that read heads; heads that only a mixer reads."""

STREAMS = {"deepseek_v4", "gemma3n_text", "hrm_text", "hy_v4", "xlm"}
"""The lens refuses several residual streams, loops over blocks, blocks taken apart into lists."""

TWO_STEPS = {"deepseek_v4"}
"""The replay knows no output projection of two linear maps."""

COMPARED = (
    *("bert", "deepseek_v3", "llama4_text", "inkling_text", "qwen3_next", "kimi_linear", "zaya"),
    *("recurrent_gemma", "longcat_flash"),
)
"""Gates, convolutions, mixers, experts, multipliers, soft caps, two attentions in a block."""


def opened(kind, dtype=torch.float32):
    """The model, as ablation takes it; LoadError where the library cannot run it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with third_party("cannot be made"):
            model = small_causal(kind)
            runs(model, IDS)
            model = model.to(dtype)
        return model, patchable_transformers(model, "self", GIVEN)


def taken_apart(patchable, **options):
    return TorchAttributor(patchable, GIVEN).attribute(GIVEN, foil=FOIL, **options)


def apart(kind):
    """How far parts are from what the replay loses, at most; None where that is not linear."""
    _, patchable = opened(kind, torch.float64)
    found, replay = taken_apart(patchable, answer=ANSWER), FrozenReplay(patchable, IDS)

    def written(*heads):
        logits = replay.written(*heads)[-1]
        return float(logits[ANSWER] - logits[FOIL])

    layers = list(patchable.heads)
    last = layers[-1]
    ends = [(last, 0), (last, patchable.heads[last] - 1)]
    if abs(written(*ends) - sum(map(written, ends))) > ROUNDING:
        return None  # an activation behind the blocks
    chosen = {
        (layer, patchable.heads[layer] - 1) for layer in (layers[0], layers[len(layers) // 2])
    }
    return max(abs(written(head) - found.heads["self", *head]) for head in {*ends, *chosen})


@pytest.mark.parametrize("kind", one_in(2, [kind for kind in COMPARED if kind in causal_kinds()]))
def test_a_heads_part_is_what_is_lost_without_it_and_nothing_else(kind):
    assert apart(kind) <= ROUNDING


@pytest.mark.long
def test_every_causal_class_tallies_and_is_read_or_is_refused():
    """The replay, which takes most of the time, is compared with every fourth of them."""
    differ, refused, far, tallied = {}, {}, {}, 0
    for at, kind in enumerate(causal_kinds()):
        try:
            model, patchable = opened(kind)
            found = taken_apart(patchable)
        except LoadError:
            continue
        except UnsupportedError as error:
            refused[kind] = str(error)
            continue
        logits = runs(model, IDS).logits[0, -1]
        own = float(logits[found.answer].double() - logits[FOIL].double())
        tallied += 1
        if not found.tallies or abs(found.logit - own) > found.tolerance:
            differ[kind] = found.sum, found.logit, own
        try:
            lens = TorchAttributor(patchable, GIVEN).lens(GIVEN, ASKED)
        except UnsupportedError as error:
            refused[kind] = str(error)
        else:
            read = lens.blocks[-1].probability
            assert lens.tallies, kind
            assert read == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5), kind
        if not at % 4 and kind not in TWO_STEPS:
            with suppress(LoadError):  # it has no float64
                far[kind] = apart(kind)
    assert differ == {}
    assert {kind: gap for kind, gap in far.items() if gap and gap > ROUNDING} == {}
    assert tallied >= 140
    assert sum(gap is not None for gap in far.values()) >= 25
    for words, kinds in (("cannot be followed", LOST), ("between its blocks", STREAMS)):
        assert {kind for kind, said in refused.items() if words in said} == kinds & {
            *causal_kinds()
        }
    assert not any("\n" in said for said in refused.values())
