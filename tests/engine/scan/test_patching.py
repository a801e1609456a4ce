"""Patches in NumPy are those of the loop in float64, by hooks on the modules of transformers."""

import numpy as np
import pytest
import torch

from attnviz.engine.patching import Patch, Site
from attnviz.engine.scan import on_numpy
from attnviz.errors import UnsupportedError, UsageError

from ...attention.test_families import IDS
from ..ablation_loop import MASK
from ..patch_loop import Put, metrics, place_of, run
from ..stacks import HEADED, both, once_quick
from ..test_patching import ANSWER, FOIL, measured
from .test_on_numpy import FEW, inputs_of, ours

CORRUPT = [*IDS[:3], 8, *IDS[4:9], 60, *IDS[10:]]
SORTS = ("output", "query", "key", "value", "pattern", "mlp", "residual")


def prompts(model):
    if not model.masked:
        return IDS, CORRUPT
    return [*IDS[:6], MASK, *IDS[7:]], [*CORRUPT[:6], MASK, *CORRUPT[7:]]


def patches_of(model, patching):
    """Some of every sort, at all tokens and at some, alone and together."""
    fused, found = model.model.config.model_type == "phi3", []
    for what in SORTS:
        if fused and what in ("query", "key", "value"):
            continue
        sites = patching.sites(what, [None, (4, 9)])
        found.append(Patch((sites[-(len(found) % 2)],)))  # the first and the last in turn
    found.append(Patch((found[0].sites[0], found[-1].sites[0])))
    return found


def held_by(model, ids, sites):
    """What a run holds at sites, (token, head, dim); of a pattern its (query, head, key)."""
    shape = model.numpy.stack.shape
    places = {}
    for site in sites:
        if site.sort != "pattern":
            heads = {"key": shape.kv_heads, "value": shape.kv_heads}.get(site.sort, shape.heads)
            places[site.sort, site.layer] = place_of(
                model.loop, "self", site.sort, site.layer, heads
            )
    kept = run(model.wide, model.loop, inputs_of(ids), keep=list(places.values()))[1]
    return {key: (place, kept[place]) for key, place in places.items()}


def looped(model, base, source, clean, patches, position, places=None):
    """The metrics of each patch, one at a time. places: of each base token that of the source."""
    shape = model.numpy.stack.shape
    sites = {site for patch in patches for site in patch.sites}
    held = held_by(model, source, sites)
    before = run(model.wide, model.loop, inputs_of(clean))[0][position if places is None else -1]
    crossed = {}
    patterns = {site.layer for site in sites if site.sort == "pattern"}
    if patterns:
        with torch.inference_mode():
            seen = model.wide(**inputs_of(source), output_attentions=True).attentions
        values = held_by(model, base, {Site("value", layer, 0) for layer in patterns})
        for layer in patterns:
            value = values["value", layer][1].repeat_interleave(shape.heads // shape.kv_heads, 1)
            crossed[layer] = torch.einsum("hqk,khd->qhd", seen[layer][0], value)
    there = None if places is None else [at for at, place in enumerate(places) if place >= 0]

    def put(site):
        head, layer, tokens = site.head or 0, site.layer, site.tokens
        if site.sort == "pattern":
            place = place_of(model.loop, "self", "output", layer, shape.heads)
            return Put(place, head, tokens, crossed[layer][:, head])
        place, value = held[site.sort, layer]
        value = value[:, head]
        if places is not None:
            value = value[list(places)]
            tokens = [at for at in (tokens or there) if at in there]
        return Put(place, head, tokens, value)

    rows = []
    for patch in patches:
        puts = [put(site) for site in patch.sites]
        logits = run(model.wide, model.loop, inputs_of(base), puts)[0]
        rows.append(metrics(logits[position], before, ANSWER, FOIL))
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def compared(found, patches, expected):
    numpy = measured(found[0], patches)[0]
    try:
        other = measured(found[1], patches)[0]
    except UnsupportedError:  # torch does not see the queries of every model
        other = {name: oracle + 1e-6 for name, oracle in expected.items()}
    for name, oracle in expected.items():
        ours(numpy[name], other[name], oracle, name)
        np.testing.assert_allclose(other[name], oracle, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("name", once_quick(HEADED, every=2))
def test_sites_of_every_sort_equal_the_loop(name, tmp_path):
    """Every family, and the directions in turn; the other half of the classes hide edges."""
    model = both(name, tmp_path)
    direction = ("denoise", "noise")[HEADED.index(name) % 2]
    clean, corrupt = prompts(model)
    base, source = (corrupt, clean) if direction == "denoise" else (clean, corrupt)
    found = model.patchings(clean, corrupt, direction=direction)
    patches = patches_of(model, found[0])
    if model.model.config.model_type == "phi3":  # whose values are not apart
        patches = [
            patch for patch in patches if all(site.sort != "pattern" for site in patch.sites)
        ]
    position = clean.index(MASK) if model.masked else len(base) - 1
    expected = looped(model, base, source, clean, patches, position)
    compared(found, patches, expected)
    for what in SORTS if model.loop != "gpt_neo" else ("output", "pattern", "mlp"):
        assert found[0].sites(what) == found[1].sites(what)


@pytest.mark.parametrize(("name", "position"), [("gpt2", 3), ("neox", 7), ("qwen3", 12)])
def test_another_position_than_the_last(name, position, tmp_path):
    model = both(name, tmp_path)
    found = model.patchings(IDS, CORRUPT, position=position)
    patches = patches_of(model, found[0])
    compared(found, patches, looped(model, CORRUPT, IDS, IDS, patches, position))
    expected = run(model.wide, model.loop, inputs_of(IDS))[0][position]
    for one in found:
        assert one.predictions(0)[0].logits == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_prompts_of_unequal_length_are_patched_where_they_correspond(name, direction, tmp_path):
    """One token of the clean prompt is two tokens of the corrupt one."""
    model = both(name, tmp_path)
    clean, corrupt = IDS[:9], [*IDS[:3], 11, 13, *IDS[4:9]]
    places = (0, 1, 2, 3, -1, 4, 5, 6, 7, 8)
    found = model.patchings(clean, corrupt, places, direction=direction)
    patches = [
        Patch((site,))
        for what in ("output", "value", "mlp", "residual")
        for site in found[0].sites(what, [None, (4, 6)])[::3]
    ]
    if direction == "noise":
        back = {place: at for at, place in enumerate(places)}
        base, source, there = clean, corrupt, tuple(back.get(at, -1) for at in range(len(clean)))
    else:
        base, source, there = corrupt, clean, places
    expected = looped(model, base, source, clean, patches, len(base) - 1, there)
    compared(found, patches, expected)
    with pytest.raises(UsageError, match="the key of a token depends on where it stands"):
        measured(found[0], [Patch((Site("key", 1, 0),))])


@pytest.mark.parametrize("name", FEW[::2])
def test_one_at_a_time_is_the_growing_pass(name, tmp_path, monkeypatch):
    model = both(name, tmp_path)
    grown = model.patchings(*prompts(model))[0]
    patches = patches_of(model, grown)
    expected = measured(grown, patches)[0]
    monkeypatch.setattr(on_numpy, "_BLOCK", 1)
    monkeypatch.setattr(on_numpy, "_TOKENS", 1)
    alone = measured(model.patchings(*prompts(model))[0], patches)[0]
    for metric, values in expected.items():
        assert alone[metric] == pytest.approx(values, rel=0, abs=5e-6), metric


@pytest.mark.parametrize("name", FEW[:-1])
def test_what_both_runs_hold_alike_changes_nothing_and_is_not_run(name, tmp_path, monkeypatch):
    patching = both(name, tmp_path).patchings(IDS, CORRUPT)[0]
    early = [
        Patch((site,))
        for what in SORTS
        for site in patching.sites(what, [(0,), (2,)])
        if what != "pattern"
    ]
    early += [Patch((site,)) for site in patching.sites("query", [(4,), (8,)]) if not site.layer]

    def unexpected(*args, **kwargs):
        raise AssertionError("a pass")

    monkeypatch.setattr(on_numpy.NumpyRunner, "ends", unexpected)
    found, piece = measured(patching, early)
    for metric, values in found.items():
        assert set(values.tolist()) == {piece.corrupt[metric]}
