"""The interactive page of ``attnviz generate``: the heads' maps, and the text step by step."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.labels import token_label, token_labels, token_name
from attnviz.draw.page.data import (
    UNLABELLED,
    Look,
    Page,
    PageCapture,
    PageHead,
    PageMeasure,
    PageStep,
    page_label,
)
from attnviz.draw.provenance import share
from attnviz.engine.head_run import Head
from attnviz.inspect.generate.records import GenerateReport, HeadActivity, WrittenRun
from attnviz.measures.registry import label_named

_LIKELY = 5
_ACTIVITY = "activity"


def run_page(report: GenerateReport) -> Page:
    """Return the page of a run: prompt and written tokens are queries, as far as they are known."""
    run, found, queries = report.run, report.found, report.run.queries
    order = [*dict.fromkeys([*report.heads, *run.heads])]
    places = {head: at for at, head in enumerate(run.heads)}
    ends = run.text if run.kind == "cross" else run.text + run.text_written
    capture = PageCapture(
        name="",
        kind=run.kind,
        causal=run.kind != "cross",
        heads=[_head(run, head, found[head]) for head in run.heads],
        weights=[_weights(run, head) for head in run.heads],
        queries=queries,
        keys=queries if run.kind != "cross" else run.keys,
        texts=(run.text_written if run.kind == "cross" else ends, ends),
        order=[places[head] for head in order],
        sink=np.flatnonzero(run.sink).tolist(),
        steps=[
            PageStep(
                step.place,
                step.text,
                step.probability,
                [(each.text, each.probability) for each in step.likely[:_LIKELY]],
            )
            for step in run.steps
        ],
        query=run.steps[0].place,
        head=places[order[0]],
    )
    look = [look for head in report.heads if (look := _look(run, places, head)) is not None]
    measure = PageMeasure(_ACTIVITY, "score over the steps")
    return Page(run.model.name, [capture], [measure], look, "; --save x.jsonl keeps everything")


def _head(run: WrittenRun, head: Head, activity: HeadActivity) -> PageHead:
    label = activity.label
    known = label_named("" if label is None else label.name)
    over = "" if math.isnan(activity.score) else f" {share(activity.score)}"
    return PageHead(
        *head,
        name=run.name(head),
        label=UNLABELLED if label is None else page_label(label, known.meaning, known.colour),
        score=math.nan if label is None else label.score,
        facts=f"{activity.said}{over} over the {activity.steps} steps that could show it",
        values={_ACTIVITY: None if math.isnan(activity.score) else activity.score},
    )


def _weights(run: WrittenRun, head: Head) -> NDArray[np.floating]:
    """Return the weights (query, key) of a head; NaN for a prompt whose weights were not kept."""
    layer, place = head
    whole = np.full((len(run.queries), len(run.keys)), np.nan, np.float32)
    for kept in run.prompt:
        if kept.layer == layer and place in kept.heads:
            rows = kept.weights[kept.heads.index(place)]
            whole[: rows.shape[0], : rows.shape[1]] = rows
    for step in run.steps:
        row = step.rows[layer][place]
        whole[step.place, : len(row)] = row
    return whole


def _look(run: WrittenRun, places: dict[Head, int], head: Head) -> Look | None:
    """Return the step in which a head's weight on one token was largest, the sink left out."""
    best = [(run.sources(head, at, 1), at) for at in range(len(run.steps))]
    found = [(sources[0][1], sources[0][0], at) for sources, at in best if sources]
    if not found:
        return None
    weight, key, at = max(found)
    step = run.steps[at]
    wrote, source = token_label(step.text), token_name(token_labels(run.keys), key)
    says = f"step {at + 1}, before “{wrote}”: “{source}”"
    return Look(0, places[head], step.place, key, f"{says} {share(weight)}")
