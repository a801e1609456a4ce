"""Scans of hidden edges and of removed feed-forward blocks, against hooks on transformers."""

import numpy as np
import pytest
import torch

from attnviz.engine.effects import ScanOptions, Variant
from attnviz.engine.patching import Site
from attnviz.engine.replacing import Point, Replace
from attnviz.engine.scan.run import open_scan
from attnviz.models.bundled import Bundled
from attnviz.models.huggingface import load_transformers
from attnviz.models.work import LoadOptions
from attnviz.records import Input

from ...attention.test_families import IDS as FAMILY_IDS
from ...attention.test_families import MODELS
from ..ablation_loop import MASK, PROJECTIONS
from ..architectures import ARCHITECTURES, inputs_of, quick_or_long, small_model, state_of
from ..edge_loop import loop_metrics
from ..patch_loop import Put, place_of, run
from ..scans import IDS, every, input_of, measured, torch_scan
from ..stacks import HEADED, both, once_quick

EDGES = ((6, 2), (7, 2), (7, 3))
SOME = ((0, 1), (2, 0), (2, 1))
STACKS = [name for name in PROJECTIONS if ARCHITECTURES[name].stack != "encoder"]


def hiding(heads, edges=EDGES):
    return Variant(tuple(heads), edges=tuple(edges))


def equal(found, expected):
    for name in ("loss_delta", "kl", "flip_rate"):
        means = [float(one[name].mean()) for one in expected]
        assert found[name] == pytest.approx(means, abs=1e-5, rel=1e-4), name


@pytest.mark.parametrize(
    "name", ["gpt2", "bloom", "gpt_neo", "llama", "mistral", "gpt_oss", "bert", "roberta"]
)
def test_a_softmax_without_the_edges_predicts_the_same(name):
    masked = ARCHITECTURES[name].stack == "encoder"
    scan = torch_scan(small_model(name), [IDS], mask=MASK)
    heads = [variant.heads[0] for variant in every(scan)]
    chosen = [((1, 1),), SOME, tuple(heads)]
    found = measured(scan, [hiding(some) for some in chosen])
    eager = small_model(name, attention="eager")
    equal(found, [loop_metrics(eager, IDS, some, EDGES, masked=masked) for some in chosen])


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_bundled_model_is_that_of_transformers(backend):
    tiny = Bundled()
    given = Input(tiny.encode("The old captain saw the ship and the captain sat."))
    model = load_transformers(str(tiny.checkpoint.directory), LoadOptions(dtype="float32"))
    scan = open_scan(tiny if backend == "numpy" else model, [given], ScanOptions(token_losses=True))
    chosen = [((0, 1),), ((1, 1), (4, 2), (4, 3)), tuple(v.heads[0] for v in every(scan))]
    model.model.set_attn_implementation("eager")
    expected = [loop_metrics(model.model, given.ids, some, EDGES) for some in chosen]
    variants = [hiding(some) for some in chosen]
    equal(measured(scan, variants), expected)
    for piece in scan.scan(0, variants, range(3)):
        losses = np.stack([expected[at]["loss_delta"].numpy() for at in piece.variants])
        assert piece.token_losses[:, 1:] == pytest.approx(losses, abs=2e-5)
        assert (abs(piece.token_losses[:, 1:7]) < 1e-6).all(), "earlier tokens see no edge"


@pytest.mark.parametrize("name", once_quick(HEADED, every=2, start=1))
def test_every_family_in_numpy_measures_as_on_torch(name, tmp_path):
    """The quick run has those classes of models whose sites are not patched there."""
    model = both(name, tmp_path)
    heads, last = model.heads, len(FAMILY_IDS) - 1
    variants = [
        hiding((heads[0],), [(5, 2)]),
        hiding(heads, EDGES),
        hiding(heads[1:3], [(last, 1)]),
    ]
    for options in {}, {"positions": "last"}:
        ours, theirs = (measured(scan, variants) for scan in model.scans([FAMILY_IDS], **options))
        for metric, values in ours.items():
            assert values == pytest.approx(theirs[metric], abs=1e-5, rel=1e-3), metric


@pytest.mark.parametrize("name", quick_or_long(name for name in ARCHITECTURES if name != "fsmt"))
def test_every_architecture(name):
    """What a hidden edge must and must not move, whatever computes the attention."""
    model = small_model(name)
    before = state_of(model)
    given = input_of(inputs_of(name))
    for kind in ("self",) if given.target is None else ("encoder", "decoder", "cross"):
        scan = torch_scan(model, [given], kind=kind, mask=MASK)
        heads = [variant.heads[0] for variant in every(scan)]
        alone, other, whole = measured(
            scan,
            [hiding(heads[:1], [(5, 2)]), hiding(heads[1:2], [(5, 2)]), hiding(heads, [(5, 2)])],
        )["kl"]
        assert alone != other
        assert min(alone, other, whole) > 1e-12
    assert state_of(model) == before


@pytest.mark.parametrize("array", [np.asarray, torch.from_numpy])
def test_nearly_all_of_the_weight_may_be_hidden(array):
    """The weights of the other keys are small, and keep all of their digits."""
    scores = np.random.default_rng(0).normal(0, 3, (2, 4, 3, 5))  # row, query, head, key
    scores[..., 1] = 40
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    site = Site("pattern", 0, 2, edges=((3, 1), (3, 4), (2, 1)))
    given = array(weights.astype(np.float32))
    rows = {1: Variant(((0, 2),), edges=site.edges)}
    found = np.asarray(Replace("cross", rows).edit_rows(Point("cross", "pattern", 0), given, 0))
    hidden = scores.copy()
    hidden[1, 3, 2, [1, 4]] = hidden[1, 2, 2, 1] = -np.inf
    expected = np.exp(hidden - hidden.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    assert found == pytest.approx(expected, rel=1e-5)
    assert (found[0] == weights[0].astype(np.float32)).all()
    assert (found[1, 3, 2, [1, 4]] == 0).all()


def test_a_part_of_the_sum_that_belongs_to_no_key_stays():
    weights = np.array([0.5, 0.2, 0.1])[None, None, None].repeat(2, 1)  # a sink has .2
    edges = ((2, 0),)  # of three tokens, the last two are queries
    rows = {None: Variant(((0, 0),), edges=edges)}
    found = Replace("self", rows).edit_rows(Point("self", "pattern", 0), weights, 0)
    assert found[0, 1, 0] == pytest.approx([0, 0.4, 0.2])
    assert found[0, 0, 0] == pytest.approx([0.5, 0.2, 0.1])


def test_a_query_that_sees_nothing_else_reads_nothing():
    scan = torch_scan(small_model("gpt2"), [IDS])
    hidden, gone = measured(scan, [hiding(((0, 0),), [(0, 0)]), Variant(((0, 0),))])["output_mse"]
    assert 0 < hidden < gone


def variants_of(layers, heads):
    """A block, two of them, and one with all heads of its layer."""
    first, last = layers[0], layers[-1]
    whole = Variant(tuple((last, head) for head in range(heads)), feed_forward=(last,))
    return [Variant((), feed_forward=(first,)), Variant((), feed_forward=(first, last)), whole]


def loop_losses(model, name, inputs, variants, heads, values=None):
    """The mean loss of the text as it is and without each variant, in nats per token."""
    kind = "decoder" if "decoder_input_ids" in inputs else "self"
    read = inputs["decoder_input_ids" if kind == "decoder" else "input_ids"][0]

    def put(what, layer, head):
        place = place_of(name, kind, what, layer, heads)
        width = 0 if values is None else values[what, layer].shape[-1]
        value = None if values is None else torch.as_tensor(values[what, layer][:, head])
        return Put(place, head, None, Zeros() if value is None else value.expand(len(read), width))

    losses = []
    for variant in (None, *variants):
        heads_out = [put("output", *head) for head in variant.heads] if variant else []
        blocks = [put("mlp", layer, 0) for layer in variant.feed_forward] if variant else []
        scores = run(model, name, inputs, [*heads_out, *blocks])[0].log_softmax(-1)
        losses.append(-float(scores[:-1].gather(-1, read[1:, None]).mean()))
    return np.array(losses)


class Zeros:
    def __getitem__(self, tokens):
        return 0.0


@pytest.mark.parametrize("name", quick_or_long(STACKS))
def test_every_architecture_loses_what_it_loses_by_hooks(name):
    model = small_model(name)
    before, inputs = state_of(model), inputs_of(name)
    kind = "decoder" if ARCHITECTURES[name].stack == "both" else "self"
    scan = torch_scan(model, [input_of(inputs)], kind=kind)
    heads = min(scan.heads.values())
    variants = variants_of([*scan.heads], heads)
    found = measured(scan, variants)["loss_delta"]
    losses = loop_losses(model, name, inputs, variants, heads)
    assert found == pytest.approx(losses[1:] - losses[0], abs=1e-5)
    assert np.abs(found).max() > 1e-3
    assert state_of(model) == before


def test_a_masked_model_loses_its_guess_of_each_word():
    model, ids = small_model("bert"), inputs_of("bert")["input_ids"][0, :5]
    scan = torch_scan(model, [input_of({"input_ids": ids[None]})], mask=MASK)
    changes = []
    for at, word in enumerate(ids.tolist()):
        hidden = ids.clone()
        hidden[at] = MASK
        place = place_of("bert", "self", "mlp", 1, 1)
        scores = [
            run(model, "bert", {"input_ids": hidden[None]}, puts)[0].log_softmax(-1)[at, word]
            for puts in ((), [Put(place, 0, None, Zeros())])
        ]
        changes.append(float(scores[0] - scores[1]))
    found = measured(scan, [Variant((), feed_forward=(1,))])["loss_delta"]
    assert found == pytest.approx([np.mean(changes)], abs=1e-5)
    assert not any("mask token" in note for note in scan.notes)


def test_a_masked_model_without_a_mask_token_says_that_it_has_no_loss():
    ids = inputs_of("bert")["input_ids"][0, :5]
    scan = torch_scan(small_model("bert"), [input_of({"input_ids": ids[None]})] * 2)
    assert "loss_delta" not in measured(scan, [Variant((), feed_forward=(1,))])
    assert [note for note in scan.notes if note.startswith("no loss")] == [
        "no loss: the model is bidirectional, and its tokenizer has no mask token"
    ]


@pytest.mark.parametrize(
    "name",
    once_quick([name for name in HEADED if "MaskedLM" not in MODELS[name][0]], every=2, start=1),
)
def test_numpy_loses_the_same(name, tmp_path):
    model = both(name, tmp_path)
    shape = model.numpy.stack.shape
    variants = variants_of(range(shape.layers), shape.heads)
    losses = loop_losses(
        model.wide, model.loop, {"input_ids": torch.tensor([FAMILY_IDS])}, variants, shape.heads
    )
    for scan in model.scans([FAMILY_IDS]):
        found = measured(scan, variants)["loss_delta"]
        assert found == pytest.approx(losses[1:] - losses[0], abs=1e-5)


def test_another_text_or_the_mean_stands_in_on_both_backends(tmp_path):
    model, other = both("gpt2", tmp_path), [*FAMILY_IDS[5:], *FAMILY_IDS[:5]]
    heads, layers = model.numpy.stack.shape.heads, range(model.numpy.stack.shape.layers)
    places = {
        (what, layer): place_of(model.loop, "self", what, layer, heads)
        for what in ("output", "mlp")
        for layer in layers
    }
    inputs = {"input_ids": torch.tensor([other])}
    held = run(model.wide, model.loop, inputs, keep=list(places.values()))[1]
    values = {key: held[place] for key, place in places.items()}
    means = {key: value.mean(0, keepdim=True) for key, value in values.items()}
    variants, given = variants_of(layers, heads), {"input_ids": torch.tensor([FAMILY_IDS])}
    for mode, puts in (("mean", means), ("resample", values)):
        losses = loop_losses(model.wide, model.loop, given, variants, heads, puts)
        for scan in model.scans([FAMILY_IDS], [other], mode=mode):
            found = measured(scan, variants)["loss_delta"]
            assert found == pytest.approx(losses[1:] - losses[0], abs=1e-5), mode


def test_a_random_direction_of_equal_norm_is_the_control(tmp_path):
    model = both("gpt2", tmp_path)
    for scan in model.scans([FAMILY_IDS]):
        variants = [Variant((), feed_forward=(1,))]
        whole, control = (measured(one, variants) for one in (scan, scan.changed(control=True)))
        assert 0 < control["output_mse"][0] != whole["output_mse"][0]
