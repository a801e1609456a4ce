"""Scans of hidden edges, held against transformers whose softmax sees a score of −∞."""

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
from ..ablation_loop import MASK
from ..architectures import ARCHITECTURES, inputs_of, quick_or_long, small_model, state_of
from ..edge_loop import loop_metrics
from ..scans import IDS, every, input_of, measured, torch_scan
from ..stacks import HEADED, both, once_quick

EDGES = ((6, 2), (7, 2), (7, 3))
SOME = ((0, 1), (2, 0), (2, 1))


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
