"""What heads write towards the answer: a grid, a ranking, the text in colours, write maps.

Of a feed-forward block, what its neurons write: the finding, and a table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnviz.attention.functional import NEARLY_ZERO
from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, counted, listed, percent
from attnviz.draw.provenance import known_text, label_title
from attnviz.draw.signed import (
    colour_words,
    explained,
    interval_text,
    ranked_table,
    signed_grid,
    signed_scale,
)
from attnviz.engine.attribution.parts import NeuronReading
from attnviz.inspect.why.report import HeadEffect, WhyReport
from attnviz.measures.labels import label_look
from attnviz.prompts.naming import logits, placed, quoted
from attnviz.records import HeadKey, Tokens

_LEAST_SHARE = 0.01
_MOST_MAPPED = 8
_GREY = "95% CI includes 0"

_MLP = "MLP"  # the heading of the column of the MLPs


def explained_logit(report: WhyReport) -> str:
    """Return the name of the explained logit, such as ``the logit of “Tom”``."""
    first = report.first
    if first.attribution.span is not None:
        return f"the logit of the answer's {first.answer}"
    if len({(prompt.answer, prompt.foil) for prompt in report.prompts}) > 1:
        pairs = any(prompt.foil is not None for prompt in report.prompts)
        return "the answer's logit" + (" less the other token's" if pairs else "")
    if first.foil is not None:
        return f"logits {quoted(first.answer)} - {quoted(first.foil)}"
    return f"the logit of {quoted(first.answer)}"


def head_grid(report: WhyReport, scaled: bool = True) -> doc.HeadGrid:
    """Return a grid of what heads and MLPs contribute. scaled: whether with a colour bar."""
    layers, kinds, rows = report.layers, report.kinds, list[tuple[int, str]]()
    with_heads = {(effect.head[1], effect.head[0]) for effect in report.effects}
    for layer in layers:
        own = [(layer, kind) for kind in kinds if (layer, kind) in with_heads]
        rows += own or [(layer, kinds[0])]  # a layer without heads has one row
    heads = 1 + max(effect.head[2] for effect in report.effects)
    values: dict[tuple[int, int], float] = {}
    grey = set()
    for effect in report.effects:
        kind, layer, head = effect.head
        cell = rows.index((layer, kind)), head
        values[cell] = effect.value
        grey |= {cell} if effect.unclear else set()
    for layer in layers:
        first = next(at for at, row in enumerate(rows) if row[0] == layer)
        values[first, heads] = report.part("mlp", layer)
    scale, base = NumberScale.over(values.values()), report.index_base
    names = [f"L{layer + base}" + f" {kind}" * (len(kinds) > 1) for layer, kind in rows]
    columns = [*(f"H{head + base}" for head in range(heads)), _MLP]
    title, colours = f"logits{scale.times}", colour_words(scale, grey, True)
    if scaled:
        title = f"Direct effect on {explained_logit(report)}"
        colours = [(f"grey: {_GREY}", False)] * bool(grey)
    labels = {report.name(head): label_look(label) for head, label in report.labels.items()}
    grid = signed_grid(names, columns, values, scale, grey, _GREY)
    return grid.with_known(labels, "direct effect")._replace(
        title=[(title, True), (f"{_MLP}: feed-forward", False), *colours],
        scale=signed_scale(scale, "logits", "value") if scaled else None,
    )


def rankings(report: WhyReport) -> list[doc.Part]:
    """Return two tables: the heads that contribute most for the answer, and against it."""
    titles = ("Largest contributions to the answer", "Largest contributions against it")
    sides = zip(report.ranking, titles, strict=True)
    return [_table(report, effects, title) for effects, title in sides if effects]


def ranking_table(report: WhyReport, least: int) -> doc.Table:
    """Return all heads, the largest contribution first; a small terminal has ``least`` rows."""
    return _table(report, report.ordered, "")._replace(least=least)


def _table(report: WhyReport, effects: Sequence[HeadEffect], title: str) -> doc.Table:
    scale = NumberScale.over(effect.value for effect in effects)
    sources = [None if report.many else report.first.source(effect.head) for effect in effects]
    from_words = [
        "" if source is None else placed(report.first.keys(effect.head), source.key, False)
        for effect, source in zip(effects, sources, strict=True)
    ]
    written = ["" if source is None else scale.text(source.contribution) for source in sources]
    whole, shares = report.logit, [""] * len(effects)
    if whole > max(abs(effect.value) for effect in report.effects):
        least = _LEAST_SHARE * whole
        shares = [f"{row.value / whole:.0%}" * (abs(row.value) >= least) for row in effects]
    columns: list[tuple[str | doc.Column, list[str]]] = [
        (f"logits{scale.times}", [scale.text(effect.value) for effect in effects]),
        ("95% CI", [interval_text(effect.interval, scale) for effect in effects]),
        ("control", ["" if row.base is None else scale.text(row.base) for row in effects]),
        (
            doc.Column(label_title(report.labels.values()), right=False),
            [label_text(report, effect.head) for effect in effects],
        ),
        (doc.Column("from", right=False), from_words),
        ("", written),
        ("share", shares),
    ]
    names, values = zip(*((report.name(row.head), row.value) for row in effects), strict=True)
    table = ranked_table(title, names, values, scale, columns, [row.unclear for row in effects])
    return explained(
        table, "control", "every occurrence of the answer in the prompt is replaced by another word"
    )


def label_text(report: WhyReport, head: HeadKey) -> str:
    """Return the head's label and its score; empty without a label."""
    label = report.labels.get(head)
    return "" if label is None else known_text(label)


def every_part(report: WhyReport) -> doc.Table:
    """Return a table of all parts of the sum, the largest first."""
    base = report.index_base
    parts = {report.name(effect.head): effect.value for effect in report.effects}
    for layer in report.layers:
        parts[f"L{layer + base} {_MLP}"] = report.part("mlp", layer)
        parts[f"L{layer + base} bias"] = report.part("bias", layer)
    inner = sum(report.part("bias", layer) for layer in report.layers)
    parts |= {"embedding": report.part("embedding"), "final bias": report.part("bias") - inner}
    names = sorted((name for name in parts if parts[name]), key=lambda name: -abs(parts[name]))
    values = [parts[name] for name in names]
    scale = NumberScale.over(values)
    column = (f"logits{scale.times}", [scale.text(value) for value in values])
    return ranked_table("Every part", names, values, scale, [column])


def text_parts(report: WhyReport, brief: bool = False) -> list[doc.Part]:
    """Return the first prompt in the colours of heads' contributions. brief: of one head alone."""
    first, maps = report.first, []
    heads = report.shown or ([] if report.best is None else [report.best.head])
    largest = max(abs(effect.value) for effect in report.effects) if report.many else 0.0
    for head in heads[: 1 if brief else _MOST_MAPPED]:
        row = first.attribution.rows.get(head)
        if row is None:
            continue
        value, name = logits(first.attribution.heads[head]), report.name(head)
        where = "by source token" if brief else f"towards {quoted(first.answer)}, by source token"
        maps.append(
            doc.Map(
                f"{name} by source token",
                row[None],
                queries=Tokens.bare((0,)),
                keys=first.keys(head),
                words=[(name, True), (f"{value} {where}", False)],
                limit=float(np.abs(row).max(initial=largest)),
            )
        )
    if not maps:
        return []
    if brief:
        return [doc.Maps(maps, texts=True, scale=None)]
    title = [("Contribution by source token" + ", first prompt" * report.many, True)]
    scale = signed_scale(NumberScale(maps[0].limit), "logits", "value")
    return [doc.Maps(maps, title, texts=True, scale=scale)]


def write_maps(report: WhyReport) -> list[doc.Maps]:
    """Return maps of the chosen heads' contributions (query, key) to the answer's logit."""
    first, written = report.first, report.first.attribution.maps
    heads = [head for head in report.shown if head in written]
    limit = max((float(np.abs(written[head]).max(initial=0.0)) for head in heads), default=0.0)
    maps = []
    for head in heads:
        weights = written[head]
        later = np.triu(np.ones(weights.shape, bool), 1)
        causal = head[0] != "cross" and len(weights) > 1 and not weights[later].any()
        maps.append(
            doc.Map(
                report.name(head),
                np.where(later, np.nan, weights) if causal else weights,
                queries=first.given.queries(head[0]),
                keys=first.keys(head),
                words=[(report.name(head), True), (label_text(report, head) or "no label", False)],
                causal=causal,
                limit=limit,
            )
        )
    if not maps:
        return []
    title: doc.Words = [
        (f"Write map towards {quoted(first.answer)}", True),
        ("what each query (row) gets from each key", False),
        *([("first prompt", False)] if report.many else []),
    ]
    return [doc.Maps(maps, title, scale=signed_scale(NumberScale(limit), "logits", "value"))]


_NAMED = 3  # the most neurons that a finding names
_MOST_ACTIVE = 2  # the tokens that the table names for each neuron


def neuron_words(report: WhyReport, block: NeuronReading, predicted: str) -> str:
    """Return what the block writes, and how few neurons write most; ``predicted`` comes first."""
    order, logit = block.order[:_NAMED].tolist(), report.logit
    names = listed([f"N{neuron} {logits(float(block.written[neuron]))}" for neuron in order])
    whole = f"{_block_name(report, block)} writes {logits(block.part)} of {logit:.2f} logits"
    if report.model.weights == "random":
        return f"Random weights: the {whole}; its neurons are arbitrary."
    the = "the" if predicted.endswith(":") else "The"
    half = f"{block.half:,} of {counted(len(block.written), 'neuron')}"
    half += " have half of all contributions by size"
    return f"{predicted} {the} {whole}; largest: {names}. {half}. One prompt."


def _block_name(report: WhyReport, block: NeuronReading) -> str:
    return f"L{block.layer + report.index_base} MLP"


def _neuron_facts(report: WhyReport, block: NeuronReading) -> doc.Words:
    total = float(block.written.sum())
    words = [
        (f"The {_block_name(report, block)} {logits(block.part)}", True),
        (f"{len(block.written):,} neurons {logits(total)}", False),
        *[(f"bias {logits(block.bias)}", False)] * bool(block.bias),
        (f"error {abs(total + block.bias - block.part):.4f}", False),
    ]
    off, near = block.off(), block.nearly_off()
    if off is None or near is None:
        return [*words, ("activation not recognised", False)]
    units, whole = "gates" if block.up is not None else "neurons", block.off(everywhere=True)
    zero = "0" if block.activation == "ReLU" else "at most 0"
    text = f", {percent(whole or 0.0, whole=True)} over the text"
    return [
        *words,
        (f"{block.activation}: {percent(off, whole=True)} of {units} {zero} here{text}", False),
        (f"{percent(near, whole=True)} within ±{NEARLY_ZERO:g}".replace("0.", "."), False),
    ]


def neuron_parts(report: WhyReport, block: NeuronReading) -> tuple[doc.Facts, doc.Table]:
    """Return facts on a feed-forward block, and a table of its largest contributions by neuron."""
    order, at = block.order[: report.top].tolist(), block.position
    tokens = report.first.given.predicted
    written = [float(block.written[neuron]) for neuron in order]
    scale = NumberScale.over(written)
    numbers = {
        "active" if block.up is None else "value": block.values,
        "gate": block.active if block.up is not None else None,
        "up": block.up,
    }

    def fires(neuron: int) -> str:
        most = block.fires(neuron, _MOST_ACTIVE)
        return " · ".join(f"{placed(tokens, at, quotes=False)} {own:+.2f}" for at, own in most)

    columns: list[tuple[str | doc.Column, list[str]]] = [
        ("writes" + scale.times, list(map(scale.text, written))),
        *(
            (name, [f"{values[at, neuron]:+.2f}" for neuron in order])
            for name, values in numbers.items()
            if values is not None
        ),
        (doc.Column("most active on", right=False), list(map(fires, order))),
    ]
    table = ranked_table("", [f"N{neuron}" for neuron in order], written, scale, columns)
    here = placed(tokens, at)
    title: doc.Words = [("Neurons that write most", True), (f"values at {here}", False)]
    facts = doc.Facts(_neuron_facts(report, block))
    return facts, table._replace(title=title, least=3)
