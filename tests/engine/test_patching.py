"""Sites of every sort, patched, equal the slow loop's; and what patching promises beside them."""

import numpy as np
import pytest
import torch

from attnviz.engine.patchable import patchable_transformers
from attnviz.engine.patching import Pair, Patch, PatchOptions, PatchScores, Site
from attnviz.engine.scan import on_torch
from attnviz.engine.scan.on_torch import torch_patching
from attnviz.errors import UnsupportedError, UsageError
from attnviz.records import Input

from ..terminals import in_fresh_process
from . import architectures
from .ablation_loop import MASK, PROJECTIONS
from .patch_loop import Place, Put, metrics, place_of, run, split
from .scans import IDS, input_of
from .sizes import set_sizes

ANSWER, FOIL = 5, 7
TOLERANCE = 1e-5


def prompts(name):
    """Two texts that differ in two tokens; of a masked model each has a hole near its end."""
    clean = architectures.inputs_of(name)
    corrupt = {key: ids.clone() for key, ids in clean.items()}
    for ids in corrupt.values():
        ids[0, 2], ids[0, 4] = 11, 13
    if architectures.ARCHITECTURES[name].stack == "encoder":
        for each in (clean, corrupt):
            each["input_ids"][0, 8] = MASK
    return clean, corrupt


def position_of(name):
    return 8 if architectures.ARCHITECTURES[name].stack == "encoder" else -1


def opened(model, name, kind, **options):
    clean, corrupt = (input_of(inputs) for inputs in prompts(name))
    patchable = patchable_transformers(model, kind, corrupt, MASK)
    return torch_patching(patchable, [Pair(clean, corrupt)], PatchOptions(**options))


def measured(patching, patches):
    """Each metric as an array in the order of the patches; and the last piece."""
    found = {}
    for piece in patching.patch(0, patches, range(len(patches)), ANSWER, FOIL):
        for name, values in piece.metrics.items():
            found.setdefault(name, np.full(len(patches), np.nan))[list(piece.patches)] = values
    return found, piece


def looped(model, name, kind, patching, direction, patches):
    """The same patches one at a time; those of a pattern through the output that it makes."""
    clean, corrupt = prompts(name)
    base, source = (corrupt, clean) if direction == "denoise" else (clean, corrupt)
    sites = {(site.sort, site.layer) for patch in patches for site in patch.sites}
    counts = {what: patching.heads(what) for what, _ in sites}

    def place(what, layer):
        heads = patching.queries[layer] if what == "output" else counts[what][layer]
        return place_of(name, kind, what, layer, heads)

    places = {key: place(*key) for key in sites if key[0] != "pattern"}
    held = run(model, name, source, keep=list(places.values()))[1]
    before = run(model, name, clean)[0][position_of(name)]
    mixed = {}
    if any(what == "pattern" for what, _ in sites):
        maps = architectures.eager_attentions(name, **source)
        layers = sorted(layer for what, layer in sites if what == "pattern")
        # What computes attention by itself shows no values; of these models each head has its own.
        kv = patching.heads("value" if architectures.ARCHITECTURES[name].registered else "pattern")
        values = {layer: place_of(name, kind, "value", layer, kv[layer]) for layer in layers}
        found = run(model, name, base, keep=list(values.values()))[1]
        for layer in layers:
            value = found[values[layer]].repeat_interleave(patching.queries[layer] // kv[layer], 1)
            mixed[layer] = torch.einsum("hqk,khd->qhd", maps[kind, layer][0], value)

    def put(site):
        head, layer = site.head or 0, site.layer
        if site.sort == "pattern":
            value = mixed[layer] * gates(model, name, base, layer, patching.queries[layer])
            return Put(place("output", layer), head, site.tokens, value[:, head])
        at = places[site.sort, layer]
        value = held[at]
        if site.sort == "output":
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
    model = architectures.small_model(name)
    before = architectures.state_of(model)
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
        assert max(moved[at] for at, one in enumerate(sites) if one.sites[0].sort == what) > 1e-4
    assert architectures.state_of(model) == before


def chosen(patching, what):
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
        sorts += ["query", "key", "value"] if architectures.ARCHITECTURES[name].registered else []
    return sorts


@pytest.mark.parametrize("name", architectures.quick_or_long(PROJECTIONS))
def test_sites_of_every_sort_equal_the_loop(name):
    for kind in PROJECTIONS[name]:
        check(name, kind, sorts_of(name, kind))


MIXED = Patch(
    (Site("output", 0, 1), Site("key", 1, 1, (2, 3)), Site("mlp", 1), Site("value", 2, 0))
)


def patching_of(model, clean, corrupt, places=None, kind="self", **options):
    pair = Pair(Input.of_ids(clean), Input.of_ids(corrupt), places)
    patchable = patchable_transformers(model, kind, pair.corrupt, MASK)
    return on_torch.torch_patching(patchable, [pair], PatchOptions(**options))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_sites_of_different_sorts_and_layers_together(name, direction):
    check(name, "self", [], direction, [MIXED, Patch(MIXED.sites[1:]), Patch(MIXED.sites[:1])])


def test_the_clean_run_made_worse():
    check("llama", "self", ["output", "pattern", "residual"], "noise")


def test_pieces_change_nothing_and_leave_the_model_as_it_was(monkeypatch):
    model = architectures.small_model("llama")
    before = architectures.state_of(model)
    patching = opened(model, "llama", "self")
    sites = [Patch((site,)) for what in ("output", "key") for site in patching.sites(what)]
    expected, _ = measured(patching, sites)
    set_sizes(monkeypatch, pass_tokens=11 * 4)
    pieces, seen = 0, []
    for piece in patching.patch(0, sites, range(3, len(sites)), ANSWER, FOIL):
        pieces += 1
        assert architectures.state_of(model) == before
        seen += piece.patches
        for name, values in piece.metrics.items():
            assert values == pytest.approx(expected[name][list(piece.patches)], rel=0, abs=1e-6)
    assert sorted(seen) == list(range(3, len(sites)))
    assert pieces > 3


@pytest.mark.parametrize("what", ["value", "residual"])
def test_one_at_a_time_where_a_batch_cannot_grow(what, monkeypatch):
    model = architectures.small_model("gpt2")
    patches = [Patch((site,)) for site in opened(model, "gpt2", "self").sites(what)]
    expected, _ = measured(opened(model, "gpt2", "self"), patches)
    monkeypatch.setattr("attnviz.engine.scan.plan.STRATEGIES", ())
    slow = opened(model, "gpt2", "self")
    found, _ = measured(slow, patches)
    assert slow.notes == ["this model cannot carry all runs in one pass: they ran one at a time"]
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=0, abs=1e-6)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("name", ["gpt2", "bloom"])
def test_an_exception_leaves_the_model_as_it_was(name, stop, monkeypatch):
    model = architectures.small_model(name)
    before = architectures.state_of(model)

    def stopped(*args):
        raise stop("ours")

    monkeypatch.setattr("attnviz.engine.scan.unembedding.Unembedding.compare", stopped)
    with pytest.raises(stop, match="ours"):
        measured(opened(model, name, "self"), [Patch((Site("mlp", 1), Site("output", 1, 0)))])
    assert architectures.state_of(model) == before


def test_what_both_runs_hold_alike_changes_nothing_and_is_not_run(monkeypatch):
    patching = opened(architectures.small_model("llama"), "llama", "self")
    early = [Patch((site,)) for site in patching.sites("residual", [(0,), (1,)])]

    def unexpected(*args):
        raise AssertionError("a pass")

    monkeypatch.setattr("attnviz.engine.scan.on_torch.run_changed", unexpected)
    found, piece = measured(patching, early)
    for name, values in found.items():
        assert set(values.tolist()) == {piece.corrupt[name]}


@pytest.mark.parametrize("what", ["output", "key", "pattern", "mlp"])
def test_the_slope_is_that_of_a_small_step(what):
    """Towards what the other run holds, in float64: (M(z + ε Δ) − M(z − ε Δ)) / 2ε."""
    model = architectures.small_model("gpt2", attention="eager").double()
    patching = opened(model, "gpt2", "self", method="gradient")
    sites = [site for site in patching.sites(what, [None, (3, 9)]) if site.head in (None, 1)]
    found, piece = measured(patching, [Patch((site,)) for site in sites])
    (pair, *_) = patching._pairs
    both = [{"input_ids": torch.tensor([given.ids])} for given in (pair.clean, pair.corrupt)]
    before, step = run(model, "gpt2", both[0])[0][-1], 1e-5
    for at, site in enumerate(sites):
        place, (clean, corrupt) = _held_by_both(model, patching, site, both)
        ends = []
        for sign in (1, -1):
            value = corrupt + sign * step * (clean - corrupt)
            logits = run(model, "gpt2", both[1], [Put(place, site.head or 0, site.tokens, value)])
            ends.append(metrics(logits[0][-1], before, ANSWER, FOIL))
        for name, values in found.items():
            slope = (ends[0][name] - ends[1][name]) / (2 * step)
            assert values[at] - piece.corrupt[name] == pytest.approx(slope, rel=1e-4, abs=1e-6)


def _held_by_both(model, patching, site, both):
    """Where a site lies, and what two runs hold there (token, dim)."""
    heads, head = patching.heads(site.sort)[site.layer], site.head or 0
    if site.sort != "pattern":
        place = place_of("gpt2", "self", site.sort, site.layer, heads)
        held = [run(model, "gpt2", inputs, keep=[place])[1][place][:, head] for inputs in both]
        return place, held
    # A pattern acts through the output that it makes of the values of the run that is patched.
    value = place_of("gpt2", "self", "value", site.layer, heads)
    values = run(model, "gpt2", both[1], keep=[value])[1][value][:, head]
    with torch.inference_mode():
        maps = [model(**inputs, output_attentions=True).attentions for inputs in both]
    outputs = [each[site.layer][0, head] @ values for each in maps]
    return place_of("gpt2", "self", "output", site.layer, heads), outputs


def test_a_masked_model_predicts_at_its_only_mask_or_where_it_is_told():
    model = architectures.small_model("bert")
    other = (*IDS[:4], 13, *IDS[5:])
    told = patching_of(model, IDS, other, position=8)
    masked = patching_of(model, *((*ids[:8], MASK, *ids[9:]) for ids in (IDS, other)))
    both = [measured(each, [Patch((Site("output", 0, 1),))])[0] for each in (told, masked)]
    assert {name: float(value[0]) for name, value in both[0].items()} == {
        name: float(value[0]) for name, value in both[1].items()
    }
    with pytest.raises(UsageError, match="one mask token, '<mask>', in each prompt"):
        patching_of(model, IDS, other).predictions(0)


def test_shared_heads_say_whom_they_serve():
    patching = opened(architectures.small_model("llama"), "llama", "self")
    assert patching.heads("output") == patching.heads("pattern") == {0: 6, 1: 6, 2: 6}
    assert patching.heads("key") == patching.heads("value") == {0: 2, 1: 2, 2: 2}
    assert patching.served(Site("value", 1, 1)) == (3, 4, 5)
    assert patching.served(Site("query", 1, 4)) == (4,)
    assert patching.served(Site("mlp", 1)) == ()


def test_refusals_are_said_in_words():
    model = architectures.small_model("bloom")
    with pytest.raises(UnsupportedError, match="only output and pattern can be"):
        opened(model, "bloom", "self").heads("query")
    with pytest.raises(UnsupportedError, match="no language-model head"):
        patching_of(architectures.small_model("gpt2").transformer, IDS, IDS).predictions(0)
    patching = opened(architectures.small_model("llama"), "llama", "self")
    for site, words in (
        (Site("output", 7, 0), "no output in layer 7"),
        (Site("key", 1, 2), "expected 0 to 1"),
        (Site("mlp", 1, None, (11,)), "no token 11"),
    ):
        with pytest.raises(UsageError, match=words):
            measured(patching, [Patch((site,))])
    with pytest.raises(UsageError, match="no token 97: expected an id from 0 to 96"):
        list(patching.patch(0, [MIXED], [0], 97))
    with pytest.raises(UsageError, match="expected equal lengths"):
        Pair(Input.of_ids(IDS), Input.of_ids(IDS[:-1]))
    with pytest.raises(UsageError, match="no position 11"):
        opened(architectures.small_model("llama"), "llama", "self", position=11).predictions(0)
    for wrong in (lambda: Site("mlp", 0, 1), lambda: Site("key", 0), lambda: Patch(())):
        with pytest.raises(ValueError, match=r"head|at least one"):
            wrong()
    with pytest.raises(ValueError, match="2 numbers of kl"):
        PatchScores(0, (0, 1), {"kl": np.zeros(1)}, {}, {})


def test_the_types_load_neither_numpy_nor_torch():
    _, loaded = in_fresh_process("import attnviz.engine.patching", ["numpy", "torch"])
    assert loaded == ""
