"""The interactive page of ``attnviz rollout``: the whole flow, and the last layer's attention."""

from __future__ import annotations

import numpy as np

from attnviz.draw.numbers import counted
from attnviz.draw.page.data import Page, PageCapture, PageHead
from attnviz.inspect.rollout.records import RolloutReport

ROLLOUT, LAYER = "rollout", "last layer"


def rollout_page(report: RolloutReport) -> Page:
    """Return the page: two maps over one text, without the sink at first unless it is kept."""
    read = report.text if report.target is None else report.target
    capture = PageCapture(
        name="",
        kind=report.kind,
        causal=report.causal,
        heads=[
            PageHead(0, 0, ROLLOUT, facts=f"through {counted(report.layers, 'layer')}"),
            PageHead(1, 0, LAYER, facts="mean of its heads"),
        ],
        weights=[report.matrix, report.raw],
        queries=report.tokens,
        keys=report.tokens,
        texts=(read, read),
        order=(0, 1),
        sink=np.flatnonzero(report.at_sink).tolist(),
        of_heads=False,
        verbs=("comes from", "goes into"),
        query=report.last,
    )
    bare = report.at_sink.any() and not report.keep_sink and not report.at_sink.all()
    return Page(report.model.name, [capture], link=f"{ROLLOUT}&mode=sinkless" if bare else ROLLOUT)
