"""The interactive page of ``attnviz rollout``: the whole flow, and the last layer's attention."""

from __future__ import annotations

import numpy as np

from attnviz.draw.numbers import counted
from attnviz.draw.page.data import Page, PageCapture, PageHead
from attnviz.inspect.rollout.records import RolloutReport

ROLLOUT, LAYER = "rollout", "last layer"


def rollout_page(found: RolloutReport) -> Page:
    """Return the page: two maps over one text, without the sink at first unless it is kept."""
    read = found.text if found.target is None else found.target
    capture = PageCapture(
        name="",
        kind=found.kind,
        causal=found.causal,
        heads=[
            PageHead(0, 0, ROLLOUT, facts=f"through {counted(found.layers, 'layer')}"),
            PageHead(1, 0, LAYER, facts="mean of its heads"),
        ],
        weights=[found.matrix, found.raw],
        queries=found.tokens,
        keys=found.tokens,
        texts=(read, read),
        order=(0, 1),
        sink=np.flatnonzero(found.at_sink).tolist(),
        of_heads=False,
        verbs=("comes from", "goes into"),
        query=found.last,
    )
    bare = found.at_sink.any() and not found.keep_sink and not found.at_sink.all()
    return Page(found.model.name, [capture], link=f"{ROLLOUT}&mode=sinkless" if bare else ROLLOUT)
