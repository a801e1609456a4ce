"""Changes that are alike up to a layer share their row until they differ."""

import numpy as np

from attnviz.engine.effects import ScanOptions, Variant
from attnviz.engine.patching import Patch, Site
from attnviz.engine.scan.on_numpy import forks
from attnviz.engine.scan.run import open_scan
from attnviz.models.bundled import Bundled
from attnviz.records import Input


def test_equal_beginnings_are_one_row():
    changes = [
        Variant(((0, 1),)),
        Variant(((0, 1), (2, 0))),
        Variant(((0, 1), (2, 0), (2, 3))),
        Variant(((1, 2),)),
        Variant(((0, 1),), "the same"),
    ]
    grown, ends = forks(changes, 0, 4)
    assert [fork.sources for fork in grown] == [(-1,), (0, -1), (0, 0, 0, 1), (0, 1, 2, 3)]
    assert ends == [0, 1, 2, 3, 0]
    assert grown[2].patches == {
        1: Patch((Site("output", 2, 0),)),
        2: Patch((Site("output", 2, 0), Site("output", 2, 3))),
    }


def test_removals_in_any_order_are_those_measured_alone():
    """In one scan many rows are shared, in scans of one removal none."""
    heads = [(layer, head) for layer in range(6) for head in range(4)]
    drawn = np.random.default_rng(3)
    variants = [
        Variant(tuple(sorted(map(heads.__getitem__, drawn.permutation(24)[:count]))))
        for count in range(1, 24, 6)
        for _ in range(2)
    ]
    text = Input.of_ids(drawn.integers(5, 4000, 19).tolist())

    def losses(some):
        (scores,) = open_scan(Bundled("float64"), [text], ScanOptions()).scan(
            0, some, range(len(some))
        )
        order = np.argsort(scores.variants)
        return np.stack([scores.metrics[name][order] for name in ("loss_delta", "kl")])

    alone = np.concatenate([losses([variant]) for variant in variants], axis=1)
    np.testing.assert_allclose(losses(variants), alone, rtol=1e-9, atol=1e-12)
