"""On every causal class of transformers the parts add up to the logit, or it is refused; and its
heads' parts are what the model loses without them while everything else stays as it was."""

from __future__ import annotations

import warnings

import pytest
import torch

from attnviz.engine.attribution.on_torch import TorchAttributor
from attnviz.engine.patchable import patchable_transformers
from attnviz.errors import LoadError, UnsupportedError
from attnviz.models.third_party import third_party
from attnviz.records import Input

from ..causal_oracle import runs
from ..every_causal import WORDS, causal_kinds, small_causal
from .frozen_replay import FrozenReplay

IDS = torch.randint(4, WORDS, (1, 13), generator=torch.Generator().manual_seed(3))
ANSWER, FOIL = 5, 7
ROUNDING = 5e-6

LOST = {"jetmoe", "zamba"}
"""Experts that read heads; heads that only a mixer reads."""

TWO_STEPS = {"deepseek_v4"}
"""The replay knows no output projection of two linear maps."""

COMPARED = (
    *("gpt2", "falcon", "bert", "mixtral", "deepseek_v3", "llama4_text", "gpt_neox", "granite"),
    *("beam", "inkling_text", "lfm3", "qwen3_next", "kimi_linear", "zaya", "cohere", "olmo2"),
    *("mpt", "recurrent_gemma", "minicpm3", "xlm", "longcat_flash"),
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
        return model, patchable_transformers(model, "self", Input.of_ids(IDS[0].tolist()))


def taken_apart(patchable, **options):
    given = Input.of_ids(IDS[0].tolist())
    return TorchAttributor(patchable, given).attribute(given, foil=FOIL, **options)


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


@pytest.mark.parametrize("kind", [kind for kind in COMPARED if kind in causal_kinds()])
def test_a_heads_part_is_what_is_lost_without_it_and_nothing_else(kind):
    assert apart(kind) <= ROUNDING


@pytest.mark.long
def test_every_causal_class_tallies_or_is_refused(capsys):
    tallied, differ, refused, compared = {}, {}, {}, {}
    for kind in causal_kinds():
        try:
            model, patchable = opened(kind)
            found = taken_apart(patchable)
        except LoadError:
            continue
        except UnsupportedError as error:
            refused[kind] = str(error)
            continue
        logits = runs(model, IDS).logits[0, -1].double()
        own = float(logits[found.answer] - logits[FOIL])
        tallied[kind] = found
        if not found.tallies or abs(found.logit - own) > found.tolerance:
            differ[kind] = found.sum, found.logit, own
        try:
            compared[kind] = None if kind in TWO_STEPS else apart(kind)
        except LoadError:  # it has no float64
            compared[kind] = None
    with capsys.disabled():
        print(
            f"\n{'class':24} {'logit':>10} {'gap':>8} {'allowed':>8} {'replay':>8} heads with rows"
        )
        for kind, found in tallied.items():
            gap, far = abs(found.sum - found.decomposed), compared[kind]
            print(
                f"{kind:24} {found.logit:10.5f} {gap:8.1e} {found.tolerance:8.1e} "
                f"{'-' if far is None else f'{far:.1e}':>8} {len(found.rows)} of {len(found.heads)}"
            )
        for kind, said in refused.items():
            print(f"{kind}: {said}")
    assert differ == {}
    assert {kind: far for kind, far in compared.items() if far and far > ROUNDING} == {}
    assert len(tallied) >= 140
    assert sum(far is not None for far in compared.values()) >= 110
    assert {kind for kind, said in refused.items() if "cannot be followed" in said} == LOST
    assert not any("\n" in said for said in refused.values())
