"""Sites of every sort, patched, equal the slow loop's, on every architecture."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnviz.engine.patchable import patchable_transformers
from attnviz.engine.patching import Pair, Patch, PatchOptions, Site, What
from attnviz.engine.scan.in_torch import torch_patching
from attnviz.engine.scan.patching import Patching

from .ablation_loop import MASK, PROJECTIONS
from .architectures import (
    ARCHITECTURES,
    eager_attentions,
    inputs_of,
    quick_or_long,
    small_model,
    state_of,
)
from .patch_loop import Place, Put, metrics, place_of, run, split
from .scans import input_of

ANSWER, FOIL = 5, 7
TOLERANCE = 1e-5


def prompts(name):
    """Two texts that differ in two tokens; of a masked model each has a hole near its end."""
    clean = inputs_of(name)
    corrupt = {key: ids.clone() for key, ids in clean.items()}
    for ids in corrupt.values():
        ids[0, 2], ids[0, 4] = 11, 13
    if ARCHITECTURES[name].stack == "encoder":
        for each in (clean, corrupt):
            each["input_ids"][0, 8] = MASK
    return clean, corrupt


def position_of(name):
    return 8 if ARCHITECTURES[name].stack == "encoder" else -1


def opened(model, name, kind, **options) -> Patching:
    clean, corrupt = (input_of(inputs) for inputs in prompts(name))
    patchable = patchable_transformers(model, kind, corrupt, MASK)
    return torch_patching(patchable, [Pair(clean, corrupt)], PatchOptions(**options))


def measured(patching, patches):
    """Each metric as an array in the order of the patches; and the last piece."""
    found: dict[str, np.ndarray] = {}
    for piece in patching.patch(0, patches, range(len(patches)), ANSWER, FOIL):
        for name, values in piece.metrics.items():
            found.setdefault(name, np.full(len(patches), np.nan))[list(piece.patches)] = values
    return found, piece


def looped(model, name, kind, patching, direction, patches):
    """The same patches one at a time; those of a pattern through the output that it makes."""
    clean, corrupt = prompts(name)
    base, source = (corrupt, clean) if direction == "denoise" else (clean, corrupt)
    sites = {(site.what, site.layer) for patch in patches for site in patch.sites}
    counts = {what: patching.heads(what) for what, _ in sites}

    def place(what, layer):
        heads = patching.queries[layer] if what == "output" else counts[what][layer]
        found = place_of(name, kind, what, layer, heads)
        assert found is not None
        return found

    places = {key: place(*key) for key in sites if key[0] != "pattern"}
    held = run(model, name, source, keep=list(places.values()))[1]
    before = run(model, name, clean)[0][position_of(name)]
    mixed = {}
    if any(what == "pattern" for what, _ in sites):
        maps = eager_attentions(name, **source)
        layers = sorted(layer for what, layer in sites if what == "pattern")
        # What computes attention by itself shows no values; of these models each head has its own.
        kv = patching.heads("value" if ARCHITECTURES[name].registered else "pattern")
        values = {layer: place_of(name, kind, "value", layer, kv[layer]) for layer in layers}
        found = run(model, name, base, keep=list(values.values()))[1]
        for layer in layers:
            value = found[values[layer]].repeat_interleave(patching.queries[layer] // kv[layer], 1)
            mixed[layer] = torch.einsum("hqk,khd->qhd", maps[kind, layer][0], value)

    def put(site: Site) -> Put:
        head, layer = site.head or 0, site.layer
        if site.what == "pattern":
            value = mixed[layer] * gates(model, name, base, layer, patching.queries[layer])
            return Put(place("output", layer), head, site.tokens, value[:, head])
        at = places[site.what, layer]
        value = held[at]
        if site.what == "output":
            of_base, of_source = (
                gates(model, name, inputs, layer, patching.queries[layer])
                for inputs in (base, source)
            )
            value = value / of_source * of_base
        return Put(at, head, site.tokens, value[:, head])

    rows = [
        metrics(
            run(model, name, base, [put(site) for site in patch.sites])[0][position_of(name)],
            before,
            ANSWER,
            FOIL,
        )
        for patch in patches
    ]
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def gates(model, name, inputs, layer, heads):
    """What a head's output is multiplied with on its way to the projection: (token, head, dim)."""
    if name != "qwen3_next":
        return torch.ones(())
    place = Place(f"model.layers.{layer}.self_attn.q_proj", split(heads, 1, 2, True))
    return run(model, name, inputs, keep=[place])[1][place].sigmoid()


def check(name, kind, whats, direction="denoise", patches=()):
    """Compare some sites of each sort, and patches given, with the loop."""
    model = small_model(name)
    before = state_of(model)
    patching = opened(model, name, kind, direction=direction)
    sites = [*patches, *(Patch((site,)) for what in whats for site in chosen(patching, what))]
    found, piece = measured(patching, sites)
    expected = looped(model, name, kind, patching, direction, sites)
    assert patching.notes == []
    for metric, values in expected.items():
        assert found[metric] == pytest.approx(values, rel=0, abs=TOLERANCE), metric
    plain = piece.corrupt if direction == "denoise" else piece.clean
    moved = np.abs(found["logit_diff"] - plain["logit_diff"])
    for what in whats:
        assert max(moved[at] for at, one in enumerate(sites) if one.sites[0].what == what) > 1e-4
    assert state_of(model) == before


def chosen(patching, what: What) -> list[Site]:
    """The first head and the last over all tokens, and one of a layer between at two of them."""
    whole = patching.sites(what)
    last = list({site.layer: site for site in whole}.values())
    between = last[(len(last) - 1) // 2]
    return [whole[0], whole[-1], Site(what, between.layer, between.head, (4, 5))]


def sorts_of(name, kind):
    """What can be patched: attention that the library does not register shows its rows alone."""
    sorts = ["output", "mlp", "residual"]
    if place_of(name, kind, "value", 0, 1):
        sorts += ["pattern"]
        sorts += ["query", "key", "value"] if ARCHITECTURES[name].registered else []
    return sorts


@pytest.mark.parametrize("name", quick_or_long(PROJECTIONS))
def test_sites_of_every_sort_equal_the_loop(name):
    for kind in PROJECTIONS[name]:
        check(name, kind, sorts_of(name, kind))
